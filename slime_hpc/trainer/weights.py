"""Weights into and out of this rank's model: from a Hugging Face folder or from a seed, and as full tensors for the engines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError, DataError
from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer import convert
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.model import Blueprint, PolicyModel
from slime_hpc.trainer.models import registry

_TIED = {"lm_head.weight": "model.embed_tokens.weight"}


class WeightSource(Protocol):
    """Full Hugging Face tensors by name."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of that name and shape. Raises DataError."""
        ...


class SafetensorsFolder:
    """The safetensors files of a Hugging Face folder; a tensor is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._folder = folder
        self._files = [safe_open(str(path), framework="pt") for path in sorted(folder.glob("*.safetensors"))]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of that name and shape. Raises DataError."""
        file = self._file_of.get(name)
        if file is None:
            raise DataError(f"{self._folder} has no weight {name!r}.", where="model.path", fix="give a whole Hugging Face folder")
        tensor: torch.Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise DataError(
                f"{name} has shape {tuple(tensor.shape)}; config.json says {shape}.", where="model.path", fix="fetch the model again"
            )
        return tensor


class RandomWeights:
    """Weights drawn by name from a seed: the same whatever the parallel sizes are."""

    def __init__(self, seed: int, std: float) -> None:
        self._seed = seed
        self._std = std

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Norms 1, biases 0, everything else normal with the config's initializer_range."""
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        if name.endswith("bias"):
            return torch.zeros(shape)
        digest = hashlib.sha256(f"{self._seed}-{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return torch.empty(shape).normal_(0.0, self._std, generator=generator)


def source_of(experiment: Experiment, blueprint: Blueprint) -> WeightSource:
    """Where the experiment's first weights come from."""
    if experiment.model.init == "random":
        return RandomWeights(experiment.seed, float(blueprint.values.get("initializer_range", 0.02)))
    return SafetensorsFolder(Path(experiment.model.path))


@torch.no_grad()
def load(model: PolicyModel, sizes: ModelConfig, source: WeightSource) -> None:
    """Fill this rank's parameters. Raises DataError when a tensor is missing or has another shape."""
    own = _own_tensors(model)
    rank, tp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    for weight in registry.weights(sizes):
        name = _own_name(weight, sizes)
        if name in own:
            tensors = [source.get(hf, shape) for hf, shape in zip(weight.hf, weight.shapes, strict=True)]
            group = _shard_group(weight)
            own.pop(name).copy_(convert.to_megatron(weight, tensors, sizes, rank=group.rank(), tp=group.size()))
    if (output := own.pop("output_layer.weight", None)) is not None:
        # The last of several stages holds its own copy of tied embeddings.
        shape = (sizes.vocab_size, sizes.hidden_size)
        output.copy_(source.get(_TIED["lm_head.weight"], shape).chunk(tp, 0)[rank])
    assert not own, f"no rule for {sorted(own)}"


@torch.no_grad()
def export(model: PolicyModel, sizes: ModelConfig) -> Iterator[tuple[str, torch.Tensor | None]]:
    """All weights with Hugging Face names and full shapes; on ranks other than 0 None in their place. Collective.

    Only the first replica gathers; a tensor of another owner than rank 0 goes from there straight to rank 0.
    """
    own = _own_tensors(model)
    rank = dist.get_rank()
    for weight in registry.weights(sizes):
        owner = _owner(weight, sizes)
        name = _own_name(weight, sizes)
        tensors: tuple[torch.Tensor, ...] = ()
        if name in own and _first_replica(weight):
            tensors = convert.to_hf(weight, _gather(own[name].detach(), weight), sizes)
        if owner and rank in (0, owner):
            tensors = _carry(tensors, weight, owner, weight.dtype or model.config.params_dtype)
        for i, hf in enumerate(weight.hf):
            yield hf, tensors[i] if rank == 0 else None


def freeze(model: PolicyModel, sizes: ModelConfig, patterns: Sequence[str]) -> None:
    """Take those weights out of training in whose Hugging Face name a pattern is found. Raises ConfigError for a pattern without any."""
    unused = set(patterns)
    parameters = dict(model.named_parameters())
    for weight in registry.weights(sizes):
        found = {pattern for pattern in patterns if any(re.search(pattern, name) for name in weight.hf)}
        unused -= found
        name = _own_name(weight, sizes)
        if found and name in parameters:
            parameters[name].requires_grad_(False)
        if found and weight.place == "first" and sizes.tied and "output_layer.weight" in parameters:
            parameters["output_layer.weight"].requires_grad_(False)
    if unused:
        raise ConfigError(
            f"No weight's name has {', '.join(map(repr, sorted(unused)))} in it.",
            where="trainer.freeze",
            fix="patterns are found in Hugging Face names, e.g. 'model.layers.0.mlp.down_proj.weight'",
        )


def _own_tensors(model: PolicyModel) -> dict[str, torch.Tensor]:
    """Parameters, and the buffers that are weights in Hugging Face's eyes."""
    biases = {name: buffer for name, buffer in model.named_buffers() if name.endswith("router.expert_bias")}
    return {**dict(model.named_parameters()), **biases}


def _shard_group(weight: Weight) -> Any:
    """Ranks that split the weight between them."""
    if weight.expert is None:
        return parallel_state.get_tensor_model_parallel_group()
    return parallel_state.get_expert_tensor_parallel_group()


def _first_replica(weight: Weight) -> bool:
    if weight.expert is None:
        return parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    return parallel_state.get_expert_data_parallel_rank() == 0


def _owner(weight: Weight, sizes: ModelConfig) -> int:
    """Global rank that holds the first shard in the first replica."""
    stage = _stage(weight, sizes) * (dist.get_world_size() // parallel_state.get_pipeline_model_parallel_world_size())
    if weight.expert is None:
        return stage
    return stage + _expert_rank(weight.expert, sizes) * parallel_state.get_expert_tensor_parallel_world_size()


def _expert_rank(expert: int, sizes: ModelConfig) -> int:
    """Expert-parallel rank that holds the expert."""
    assert sizes.experts is not None
    return expert // (sizes.experts.count // parallel_state.get_expert_model_parallel_world_size())


def _gather(shard: torch.Tensor, weight: Weight) -> list[torch.Tensor]:
    group = _shard_group(weight)
    if weight.kind == "whole" or group.size() == 1:
        return [shard]
    shards = [torch.empty_like(shard) for _ in range(group.size())]
    dist.all_gather(shards, shard.contiguous(), group=group)
    return shards


def _carry(tensors: tuple[torch.Tensor, ...], weight: Weight, owner: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    if dist.get_rank() == owner:
        for tensor in tensors:
            dist.send(tensor.contiguous(), dst=0)
        return tensors
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    received = tuple(torch.empty(shape, dtype=dtype, device=device) for shape in weight.shapes)
    for tensor in received:
        dist.recv(tensor, src=owner)
    return received


def _stage(weight: Weight, sizes: ModelConfig) -> int:
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if weight.layer is not None:
        return weight.layer // (sizes.num_layers // stages)
    return 0 if weight.place == "first" else stages - 1


def _own_name(weight: Weight, sizes: ModelConfig) -> str:
    """Name among this rank's parameters, or one that it does not have when another rank holds the weight."""
    if weight.layer is None:
        return weight.megatron
    per_stage = sizes.num_layers // parallel_state.get_pipeline_model_parallel_world_size()
    local = f"decoder.layers.{weight.layer - parallel_state.get_pipeline_model_parallel_rank() * per_stage}."
    if weight.expert is None:
        return f"{local}{weight.megatron}"
    assert sizes.experts is not None
    per_rank = sizes.experts.count // parallel_state.get_expert_model_parallel_world_size()
    index = weight.expert - parallel_state.get_expert_model_parallel_rank() * per_rank
    return f"{local}mlp.experts.local_experts.{index}.{weight.megatron}"
