"""The router of DeepSeek-V3 and GLM-4.5: sigmoid scores, chosen with a correction bias that gradients do not reach, in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_hpc.errors import DataError


def sigmoid_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's options (DeepSeek-V3, arXiv 2412.19437, equations 12 to 16). Raises DataError for scores that are not normalised."""
    if not values.get("norm_topk_prob", True):
        raise DataError(
            "Sigmoid scores that are not normalised to the chosen experts are not supported.",
            where="config.json of model.path: norm_topk_prob",
            fix="use another model",
        )
    groups = int(values.get("n_group") or 1)
    return {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_topk_scaling_factor": float(values.get("routed_scaling_factor", 1.0)),
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": int(values["topk_group"]) if groups > 1 else None,
    }
