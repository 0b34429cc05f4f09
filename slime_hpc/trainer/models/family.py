"""What sets one family of models apart: Megatron options, a layer's weights by name, and changes to a layer's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight


def _nothing(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _as_it_is(spec: ModuleSpec, config: TransformerConfig) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of `plan.model_config`."""

    layer: Callable[[ModelConfig, int], Iterator[Weight]]
    """(sizes, index) -> the layer's weights, in the order in which they are exported."""
    options: Callable[[ModelConfig, Mapping[str, Any]], dict[str, Any]] = _nothing
    """(sizes, config.json) -> options of Megatron's TransformerConfig beside those of all families. Raises DataError."""
    adapt: Callable[[ModuleSpec, TransformerConfig], None] = _as_it_is
    """Changes a layer's spec in place."""


def embedding(sizes: ModelConfig) -> Weight:
    """The token embedding."""
    shape = (sizes.vocab_size, sizes.hidden_size)
    return Weight(None, "embedding.word_embeddings.weight", ("model.embed_tokens.weight",), (shape,), "rows", "first")


def head(sizes: ModelConfig) -> Iterator[Weight]:
    """What follows the layers."""
    hidden, vocab = sizes.hidden_size, sizes.vocab_size
    yield Weight(None, "decoder.final_layernorm.weight", ("model.norm.weight",), ((hidden,),), "whole", "last")
    if not sizes.tied:
        yield Weight(None, "output_layer.weight", ("lm_head.weight",), ((vocab, hidden),), "rows", "last")
