"""A Hugging Face checkpoint of one weight version on the shared file system, written shard by shard by one process.

`weights/v<version>/` appears by rename, after all its bytes are on disk. Knows nothing of engines, nor of who reads it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from slime_hpc.errors import WeightPushError
from slime_hpc.sync.buckets import NamedTensor

_INDEX = "model.safetensors.index.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


class PartialFolder:
    """A folder that lies under another name until `publish`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}.partial")

    def open(self) -> None:
        """An empty folder beside the final one; what an earlier attempt left is removed."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True, mode=0o700)

    def write_text(self, name: str, text: str) -> None:
        """A small file."""
        (self.partial / name).write_text(text, encoding="utf-8")
        flush(self.partial / name)

    def publish(self) -> None:
        """Put the folder in its place; its files must be on disk."""
        flush(self.partial)
        shutil.rmtree(self.path, ignore_errors=True)
        self.partial.rename(self.path)
        flush(self.path.parent)


class CheckpointFolder(PartialFolder):
    """One version's checkpoint while it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.num_bytes = 0
        self.num_shards = 0
        self._files: dict[str, str] = {}

    def write(self, shard: Sequence[NamedTensor]) -> None:
        """One file of tensors. Raises WeightPushError when it cannot be written."""
        self.num_shards += 1
        file = self.partial / f"model-{self.num_shards:05d}.safetensors"
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in shard}
        try:
            save_file(tensors, file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise WeightPushError(
                f"The weights cannot be written: {error}.", where=str(file), fix="make room on the run's file system"
            ) from error
        flush(file)
        self.num_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._files |= dict.fromkeys(tensors, file.name)

    def complete(self, model: Path) -> None:
        """Add the index, and the model's own configuration and tokenizer."""
        for file in model.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHT_SUFFIXES):
                shutil.copyfile(file, self.partial / file.name)
                flush(self.partial / file.name)
        index = {"metadata": {"total_size": self.num_bytes}, "weight_map": self._files}
        self.write_text(_INDEX, json.dumps(index, indent=1))


def remove_all_but(keep: Iterable[Path], folder: Path) -> None:
    """Remove every version in `folder` but some."""
    for other in set(folder.iterdir()) - set(keep):
        shutil.rmtree(other)


def flush(path: Path) -> None:
    """Have the system write a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
