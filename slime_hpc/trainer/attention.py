"""Core attention over packed sequences through torch's own kernels; on CPU and CUDA, without Transformer Engine.

Where the sequences begin comes in as `attention_mask`, a tensor of offsets, because Megatron hands that through recomputation and pipeline.
With context parallelism queries stay where they are, and see the keys and values of all ranks.
On a GPU in 16 bits the flash kernel takes the pack as it is. Elsewhere, and where runs must repeat to the bit, spans of similar length
are attended to together, right-padded: with a causal mask no real token ever sees the padding behind it.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.module import MegatronModule

from slime_hpc.trainer import context
from slime_hpc.trainer.context import Span

_SLACK = 1.25
"""A class of lengths pads at most by a quarter, and by 8 tokens."""


def _near(longest: int, length: int) -> bool:
    return longest <= max(length * _SLACK, length + 8)


@functools.lru_cache(maxsize=256)
def classes(spans: tuple[Span, ...]) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], ...]:
    """Spans grouped by length: for each class the places of queries (B, L) and of keys (B, K), which queries are real (B, L), and how many
    keys each query sees (B, L); None where those are its own place's and all before it.
    """
    grouped: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.end - span.start, span.count), reverse=True):
        first = grouped[-1][0] if grouped else None
        if first and _near(first.end - first.start, span.end - span.start) and _near(first.count, span.count) and span.count <= first.count:
            grouped[-1].append(span)
        else:
            grouped.append([span])
    return tuple(_places(members) for members in grouped)


def _places(members: list[Span]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values).unsqueeze(1)

    query, count = column([span.query for span in members]), column([span.count for span in members])
    start, keys = column([span.start for span in members]), column([span.end - span.start for span in members])
    step_q, step_k = torch.arange(members[0].count).unsqueeze(0), torch.arange(members[0].end - members[0].start).unsqueeze(0)
    real = step_q < count
    seen = None if bool((count == keys).all()) else keys - count + step_q + 1
    return torch.where(real, query + step_q, query), torch.where(step_k < keys, start + step_k, start), real, seen


class PackedAttention(MegatronModule):
    """Causal attention within each packed sequence; tokens after the last offset get zeros."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale or config.kv_channels**-0.5

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        """query (T, 1, heads, d), key (T, 1, groups, d), value (T, 1, groups, e), attention_mask: offsets -> (T, 1, heads * e)."""
        q, k, v = (x.squeeze(1) for x in (query, key, value))
        offsets = tuple(attention_mask.tolist())
        group = parallel_state.get_context_parallel_group()
        if group.size() > 1:
            k, v = context.gather(torch.cat([k, v], dim=-1), offsets, group).split([k.size(-1), v.size(-1)], dim=-1)
        spans = context.spans(offsets, group.rank(), group.size())
        if not spans:
            # The other ranks wait in the backward pass of the gathering.
            return (q.new_zeros(*q.shape[:2], v.size(-1)) + 0.0 * (q.sum() + k.sum() + v.sum())).reshape(query.size(0), 1, -1)
        attend = _flash if q.is_cuda and q.dtype != torch.float32 and not torch.are_deterministic_algorithms_enabled() else _by_classes
        return attend(q, k, v, spans, self._scale).reshape(query.size(0), 1, -1)


def _by_classes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: tuple[Span, ...], scale: float) -> torch.Tensor:
    indices, outputs = [], []
    for *group, seen in classes(spans):
        at_q, at_k, real = (x.to(q.device) for x in group)
        q_BHLD, k_BHKD, v_BHKE = (x[at].transpose(1, 2) for x, at in ((q, at_q), (k, at_k), (v, at_k)))
        mask = None if seen is None else (torch.arange(at_k.size(1)) < seen.unsqueeze(2)).unsqueeze(1).to(q.device)
        out = F.scaled_dot_product_attention(
            q_BHLD, k_BHKD, v_BHKE, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.size(1) != k.size(1)
        )
        indices.append(at_q[real])
        outputs.append(out.transpose(1, 2)[real])
    return q.new_zeros(*q.shape[:2], v.size(-1)).index_copy(0, torch.cat(indices), torch.cat(outputs))


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: tuple[Span, ...], scale: float) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    tokens, width = q.size(0), v.size(-1)
    counts, keys = [span.count for span in spans], [span.end - span.start for span in spans]
    if spans[0].start == 0 and all(span.start == before.end for before, span in itertools.pairwise(spans)):
        k, v = k[: sum(keys)], v[: sum(keys)]
    else:
        k, v = (torch.cat([x[span.start : span.end] for span in spans]) for x in (k, v))
    if q.size(-1) != width:
        v = F.pad(v, (0, q.size(-1) - width))
    # Repeated heads are several times faster here than the kernel's own grouping.
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    ends_q, ends_k = (torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device=q.device) for n in (counts, keys))
    result = varlen_attn(q[: sum(counts)], k, v, ends_q, ends_k, max(counts), max(keys), scale=scale, window_size=(-1, 0))
    assert isinstance(result, torch.Tensor)
    return F.pad(result[..., :width], (0, 0, 0, 0, 0, tokens - sum(counts)))
