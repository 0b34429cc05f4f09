"""The router of a mixture of experts: Megatron's, with its choice open to `routes`, and group-limited as Hugging Face limits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.moe.router import TopKRouter

from slime_hpc.trainer import routes

_BEST_OF_GROUP = 2
"""A group's score is the sum of its best two experts' (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""


class PackedRouter(TopKRouter):
    """Top-k router over packed tokens."""

    def __init__(self, config: Any, pg_collection: Any = None) -> None:
        super().__init__(config=config, pg_collection=pg_collection)
        self.router_replay = _Choice(self)

    def gating(self, input: torch.Tensor) -> torch.Tensor:
        """Scores before their activation, in fp32: (..., experts). Megatron's own needs Transformer Engine."""
        return F.linear(input.float(), self.weight.float())


class _Choice:
    """Stands in the place of Megatron's RouterReplay: it is asked for the experts of every token."""

    def __init__(self, router: PackedRouter) -> None:
        self._router = router

    def get_replay_topk(
        self, scores_TE: torch.Tensor, topk: int, num_groups: int | None, group_topk: int | None, own: Callable[..., Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and indices (T, topk) of the chosen experts."""
        router = self._router
        limited_TE = within_groups(scores_TE, num_groups, group_topk) if num_groups and group_topk else scores_TE
        chosen_TK = limited_TE.topk(topk, dim=1).indices
        group = router.tp_group if router.config.sequence_parallel else None
        chosen_TK = routes.choose(router.layer_number - 1, chosen_TK, group)
        return scores_TE.gather(1, chosen_TK), chosen_TK


def within_groups(scores_TE: torch.Tensor, num_groups: int, group_topk: int) -> torch.Tensor:
    """The scores, minus infinity outside of each token's best `group_topk` groups of experts."""
    grouped_TGE = scores_TE.unflatten(1, (num_groups, -1))
    best_TG = grouped_TGE.topk(min(_BEST_OF_GROUP, grouped_TGE.size(2)), dim=2).values.sum(2).topk(group_topk, dim=1).indices
    allowed_TG = torch.zeros_like(grouped_TGE[:, :, 0], dtype=torch.bool).scatter(1, best_TG, True)
    return grouped_TGE.masked_fill(~allowed_TG.unsqueeze(2), -torch.inf).flatten(1)
