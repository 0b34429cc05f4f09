"""Rotary angles of packed tokens: each token's position is its own, not its place in the pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from slime_hpc.errors import DataError


def inverse_frequencies(values: Mapping[str, Any], rotary_dim: int) -> torch.Tensor:
    """(rotary_dim / 2,) of a Hugging Face config.json: the default (Su et al. 2021), or one of transformers' scalings.

    Raises DataError for a scaling that also scales the attention, which this model does not do.
    """
    parameters = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    base = float(parameters.get("rope_theta") or values.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return 1.0 / base ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim)
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    where = "config.json of model.path: rope_parameters"
    if kind not in ROPE_INIT_FUNCTIONS:
        raise DataError(f"Rotary scaling {kind!r} is unknown.", where=where, fix=f"one of default, {', '.join(ROPE_INIT_FUNCTIONS)}")
    config = AutoConfig.for_model(values["model_type"], **{k: v for k, v in values.items() if k != "model_type"})
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    if attention_factor != 1.0:
        raise DataError(f"Rotary scaling {kind!r} also scales the attention by {attention_factor}.", where=where, fix="use another model")
    return frequencies.float()


class PackedRotary(torch.nn.Module):
    """Stands in the place of Megatron's RotaryEmbedding; `positions` (T,) is set before each forward pass."""

    def __init__(self, frequencies: torch.Tensor, *, interleaved: bool = False) -> None:
        super().__init__()
        self._interleaved = interleaved
        self._frequencies = frequencies
        self.positions: torch.Tensor | None = None

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        """Number of packed tokens: of all tensor-parallel ranks together."""
        assert self.positions is not None
        return self.positions.numel()

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Angles (T, 1, 1, rotary_dim): of pairs (i, i + rotary_dim / 2), or interleaved of pairs (2 i, 2 i + 1)."""
        assert self.positions is not None
        angles = torch.outer(self.positions.float(), self._frequencies.to(self.positions.device))
        pairs = angles.repeat_interleave(2, dim=-1) if self._interleaved else torch.cat((angles, angles), dim=-1)
        return pairs[:, None, None, :]
