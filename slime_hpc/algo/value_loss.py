"""The critic's loss: squared error, with a bound on what a value gains by moving (Engstrom et al. 2020, arXiv:2005.12729, section 3)."""

from __future__ import annotations

import torch


def value_loss(value_R: torch.Tensor, old_R: torch.Tensor, return_R: torch.Tensor, *, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(R,) losses max((V - G)^2, (old + clamp(V - old, -clip, clip) - G)^2) / 2, and 1.0 where the bound set one; clip 0 = no bound."""
    plain_R = (value_R - return_R) ** 2 / 2
    if not clip:
        return plain_R, torch.zeros_like(plain_R)
    bounded_R = (old_R + (value_R - old_R).clamp(-clip, clip) - return_R) ** 2 / 2
    return torch.maximum(plain_R, bounded_R), (bounded_R > plain_R).float()
