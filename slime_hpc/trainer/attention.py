"""Core attention over packed sequences through torch's own kernels; on CPU and CUDA, without Transformer Engine.

Where the sequences begin comes in as `attention_mask`, a tensor of offsets, because Megatron hands that through recomputation and pipeline.
On a GPU in 16 bits the flash kernel takes the pack as it is. Elsewhere, and where runs must repeat to the bit, sequences of similar length
are attended to together, right-padded: with a causal mask no real token ever sees the padding behind it.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule

_SLACK = 1.25
"""A class of lengths pads at most by a quarter, and by 8 tokens."""


@functools.lru_cache(maxsize=256)
def classes(offsets: tuple[int, ...]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Sequences grouped by length: for each class the token index of every place (B, L), and which places are real (B, L)."""
    spans = sorted(((end - start, start) for start, end in itertools.pairwise(offsets) if end > start), reverse=True)
    grouped: list[list[tuple[int, int]]] = []
    for length, start in spans:
        if grouped and grouped[-1][0][0] <= max(length * _SLACK, length + 8):
            grouped[-1].append((length, start))
        else:
            grouped.append([(length, start)])
    return tuple(_places(members) for members in grouped)


def _places(members: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths, starts = (torch.tensor(values).unsqueeze(1) for values in zip(*members, strict=True))
    steps = torch.arange(members[0][0]).unsqueeze(0)
    real = steps < lengths
    return torch.where(real, starts + steps, starts), real


class PackedAttention(MegatronModule):
    """Causal attention within each packed sequence; tokens after the last offset get zeros."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale or config.kv_channels**-0.5

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        """query (T, 1, heads, d), key and value (T, 1, groups, d), attention_mask: offsets (sequences + 1,) -> (T, 1, heads * d)."""
        q, k, v = (x.squeeze(1) for x in (query, key, value))
        offsets = tuple(attention_mask.tolist())
        if q.is_cuda and q.dtype != torch.float32 and not torch.are_deterministic_algorithms_enabled():
            return _flash(q, k, v, offsets).reshape(query.size(0), 1, -1)
        return self._by_classes(q, k, v, offsets).reshape(query.size(0), 1, -1)

    def _by_classes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: tuple[int, ...]) -> torch.Tensor:
        indices, outputs = [], []
        for places, real in classes(offsets):
            places, real = places.to(q.device), real.to(q.device)
            q_BHLD, k_BHLD, v_BHLD = (x[places].transpose(1, 2) for x in (q, k, v))
            grouped = q.size(1) != k.size(1)
            out = F.scaled_dot_product_attention(q_BHLD, k_BHLD, v_BHLD, is_causal=True, scale=self._scale, enable_gqa=grouped)
            indices.append(places[real])
            outputs.append(out.transpose(1, 2)[real])
        return q.new_zeros(q.shape).index_copy(0, torch.cat(indices), torch.cat(outputs))


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: tuple[int, ...]) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # The padding at the end is a sequence of its own.
    ends = (*offsets, q.size(0)) if offsets[-1] < q.size(0) else offsets
    cumulative = torch.tensor(ends, dtype=torch.int32, device=q.device)
    longest = max(end - start for start, end in itertools.pairwise(ends))
    # Repeated heads are several times faster here than the kernel's own grouping.
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    result = varlen_attn(q, k, v, cumulative, cumulative, longest, longest, window_size=(-1, 0))
    assert isinstance(result, torch.Tensor)
    return result
