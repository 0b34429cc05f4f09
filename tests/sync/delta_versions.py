"""Versions of a few tensors of several dtypes, written by the trainer's side, without engines."""

from __future__ import annotations

import secrets
from pathlib import Path

import torch
from safetensors.torch import load_file

from slime_hpc.sync.buckets import stream
from slime_hpc.sync.delta.chain import Link
from slime_hpc.sync.delta.chunks import Crew
from slime_hpc.sync.delta.local_copy import LocalCopy
from slime_hpc.sync.delta.writer import DeltaVersion, FullVersion

BUCKET_BYTES = 2**18


def first_tensors() -> dict[str, torch.Tensor]:
    """Some tensors: odd sizes, a scalar, an empty one."""
    torch.manual_seed(0)
    return {
        "embed.weight": torch.randn(300, 1001).bfloat16(),
        "layer.weight": torch.randn(300, 333).half(),
        "layer.fp8": torch.randn(257, 129).to(torch.float8_e4m3fn),
        "layer.scale": torch.randn(3, 5),
        "norm.weight": torch.ones(65).bfloat16(),
        "counts": torch.arange(1000),
        "codes": torch.arange(100, dtype=torch.int8),
        "temperature": torch.tensor(1.5),
        "nothing": torch.empty(0, 4),
    }


def change(tensors: dict[str, torch.Tensor], generator: torch.Generator, density: float) -> dict[str, torch.Tensor]:
    """The same tensors, in which a share of the elements has other bits; some tensors stay as they are."""
    changed = {}
    for name, tensor in tensors.items():
        bits = tensor.clone().reshape(-1).view(torch.uint8)
        if torch.rand((), generator=generator) < 0.8:
            hit = torch.rand(bits.numel(), generator=generator) < density
            bits[hit] ^= torch.randint(1, 256, (int(hit.sum()),), generator=generator, dtype=torch.uint8)
        changed[name] = bits.view(tensor.dtype).reshape(tensor.shape)
    return changed


class Publisher:
    """The trainer's side: versions 0, 1, 2 ... in `weights`, full where it is said."""

    def __init__(self, weights: Path, model: Path, *, encoding: str = "gaps") -> None:
        self.weights = weights
        self.links: list[Link] = []
        self._model = model
        self._encoding = encoding
        self._base: dict = {}
        self._crew = Crew(2)

    def publish(self, tensors: dict[str, torch.Tensor], *, full: bool = False) -> Link:
        """Write the next version."""
        link = Link(version=len(self.links), id=secrets.token_hex(4))
        path = self.weights / f"v{link.version}"
        if full or not self.links:
            version = FullVersion(path, link, self._base, self._crew)
        else:
            version = DeltaVersion(path, link, self._base, self._crew, follows=self.links[-1], encoding_name=self._encoding)
        version.open()
        for shard in stream(tensors.items(), BUCKET_BYTES):
            version.write(shard)
        version.publish(self._model)
        self.links.append(link)
        return link


def loaded(copy: LocalCopy) -> dict[str, torch.Tensor]:
    """What an engine would load from a copy."""
    return {name: tensor for file in sorted(copy.model.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def same(found: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> bool:
    """Equal names, types, shapes and bits."""
    return found.keys() == tensors.keys() and all(
        found[name].dtype == tensor.dtype
        and found[name].shape == tensor.shape
        and torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
        for name, tensor in tensors.items()
    )
