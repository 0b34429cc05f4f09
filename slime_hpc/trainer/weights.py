"""Weights into and out of this rank's model: from a Hugging Face folder or from a seed, and as full tensors for the engines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import DataError
from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.sync.buckets import is_expert
from slime_hpc.trainer import convert
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.model import Blueprint, PolicyModel

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
        if name.endswith(".bias"):
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
    parameters = dict(model.named_parameters())
    rank, tp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    for weight in convert.weights(sizes):
        name = _own_name(weight, sizes)
        if name in parameters:
            tensors = [source.get(hf, shape) for hf, shape in zip(weight.hf, weight.shapes, strict=True)]
            parameters.pop(name).copy_(convert.to_megatron(weight, tensors, sizes, rank=rank, tp=tp))
    if (output := parameters.pop("output_layer.weight", None)) is not None:
        # The last of several stages holds its own copy of tied embeddings.
        shape = (sizes.vocab_size, sizes.hidden_size)
        output.copy_(source.get(_TIED["lm_head.weight"], shape).chunk(tp, 0)[rank])
    assert not parameters, f"no rule for {sorted(parameters)}"


@torch.no_grad()
def export(model: PolicyModel, sizes: ModelConfig, *, holders: Sequence[int] = (0,)) -> Iterator[tuple[str, torch.Tensor | None]]:
    """All weights with Hugging Face names and full shapes, stage by stage, experts after the other weights. Collective.

    Each is held by its stage's head where that is one of `holders`, else by rank 0; all other ranks get None in its place.
    Only the first data-parallel replica gathers; what a head does not keep goes from it straight to rank 0.
    """
    parameters = dict(model.named_parameters())
    replica = parallel_state.get_data_parallel_rank() == 0
    world_per_stage = dist.get_world_size() // parallel_state.get_pipeline_model_parallel_world_size()
    rank = dist.get_rank()
    for weight in sorted(convert.weights(sizes), key=lambda weight: (_stage(weight, sizes), is_expert(weight.hf[0]))):
        owner = _stage(weight, sizes) * world_per_stage
        holder = owner if owner in holders else 0
        tensors: tuple[torch.Tensor, ...] = ()
        if replica and _stage(weight, sizes) == parallel_state.get_pipeline_model_parallel_rank():
            tensors = convert.to_hf(weight, _gather(parameters[_own_name(weight, sizes)].detach(), weight), sizes)
        if owner != holder and rank in (0, owner):
            tensors = _carry(tensors, weight, owner, model.config.params_dtype)
        for i, name in enumerate(weight.hf):
            yield name, tensors[i] if rank == holder else None


def _gather(shard: torch.Tensor, weight: Weight) -> list[torch.Tensor]:
    group = parallel_state.get_tensor_model_parallel_group()
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
    """Name among this rank's parameters, or one that it does not have when another stage holds the weight."""
    if weight.layer is None:
        return weight.megatron
    per_stage = sizes.num_layers // parallel_state.get_pipeline_model_parallel_world_size()
    local = weight.layer - parallel_state.get_pipeline_model_parallel_rank() * per_stage
    return f"decoder.layers.{local}.{weight.megatron}"
