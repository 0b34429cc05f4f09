"""RMSNorm for Megatron's layers: fp32 inside, and allowed under sequence parallelism, which the local one refuses."""

from __future__ import annotations

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
