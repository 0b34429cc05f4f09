"""Options of `[trainer.megatron]`: each goes to that one of Megatron's configurations which has it; one that none has is an error."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import MLATransformerConfig, TransformerConfig

from slime_hpc.errors import ConfigError

_OWN_KEYS = {
    "tensor_model_parallel_size": "trainer.tensor_parallel",
    "pipeline_model_parallel_size": "trainer.pipeline_parallel",
    "context_parallel_size": "trainer.context_parallel",
    "expert_model_parallel_size": "trainer.expert_parallel",
    "expert_tensor_parallel_size": "trainer.expert_tensor_parallel",
    "sequence_parallel": "trainer.sequence_parallel",
    "lr": "trainer.optimizer.lr",
    "weight_decay": "trainer.optimizer.weight_decay",
    "adam_beta1": "trainer.optimizer.beta1",
    "adam_beta2": "trainer.optimizer.beta2",
    "adam_eps": "trainer.optimizer.eps",
    "clip_grad": "trainer.optimizer.clip_grad",
}
"""Options that have a key of the experiment."""

Configuration = TypeVar("Configuration")


def of_model(options: Mapping[str, Any], kind: type[TransformerConfig] = MLATransformerConfig) -> dict[str, Any]:
    """Those of the model. Raises ConfigError for one that neither model nor optimizer has, or that has a key of the experiment."""
    model, optimizer = _fields(kind), _fields(OptimizerConfig)
    for key in options:
        where = f"trainer.megatron.{key}"
        if key in _OWN_KEYS:
            raise ConfigError(f"{key!r} is what {_OWN_KEYS[key]} says.", where=where, fix=f"set {_OWN_KEYS[key]} instead")
        if key not in model | optimizer:
            near = difflib.get_close_matches(key, sorted(model | optimizer), n=1)
            raise ConfigError(
                f"Megatron's {kind.__name__} and OptimizerConfig have no {key!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
                where=where,
                fix="correct or remove it",
            )
    return {key: value for key, value in options.items() if key in model}


def of_optimizer(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the optimizer; one that both have (a dtype) is the model's, and the optimizer follows it."""
    return {key: value for key, value in options.items() if key in _fields(OptimizerConfig) - _fields(MLATransformerConfig)}


def configure(kind: type[Configuration], values: Mapping[str, Any], own: Mapping[str, Any]) -> Configuration:
    """Megatron's configuration of `values`, changed by `own`. Raises ConfigError where Megatron refuses it."""
    try:
        return kind(**{**values, **own})
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"Megatron refuses its configuration: {error}", where="trainer.megatron, trainer") from error


def _fields(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
