"""The families by architecture, and all weights of a model."""

from __future__ import annotations

from collections.abc import Iterator

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.deepseek_v3 import DEEPSEEK_V3
from slime_hpc.trainer.models.family import Family, embedding, head
from slime_hpc.trainer.models.glm4 import GLM4
from slime_hpc.trainer.models.glm4_moe import GLM4_MOE
from slime_hpc.trainer.models.llama import LLAMA
from slime_hpc.trainer.models.qwen3_moe import QWEN3_MOE

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Glm4ForCausalLM": GLM4,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
}


def weights(sizes: ModelConfig) -> Iterator[Weight]:
    """All weights of a model, in the order in which they are exported: those of the model's type first, since a bucket holds one type."""
    every = [embedding(sizes), *(w for layer in range(sizes.num_layers) for w in FAMILIES[sizes.architecture].layer(sizes, layer))]
    yield from (weight for weight in every if weight.dtype is None)
    yield from head(sizes)
    yield from (weight for weight in every if weight.dtype is not None)
