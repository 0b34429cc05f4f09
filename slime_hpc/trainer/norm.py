"""RMSNorm for Megatron's layers: fp32 inside, and allowed under sequence parallelism, which the local one refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class RMSNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang & Sennrich 2019), rounded as Hugging Face rounds it."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.eps = eps
        # Megatron's finalize_model_grads sums the gradients of such weights over tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape and dtype as `x` (..., hidden_size)."""
        if x.dtype == torch.float32:
            return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype) * self.weight


class PostNorm(RMSNorm):
    """Stands in the place of Megatron's bias-dropout-add: a block's output is normed before it is added to the residual."""

    def forward(self, training: bool, fused: bool) -> Callable[..., torch.Tensor]:  # type: ignore[override]
        """Both without effect: the model has no dropout and no biases here."""

        def add(output_with_bias: tuple[torch.Tensor, None], residual: torch.Tensor, _: float) -> torch.Tensor:
            normed: torch.Tensor = super(PostNorm, self).forward(output_with_bias[0])
            return residual + normed

        return add
