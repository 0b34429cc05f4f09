"""Weights through the shared file system: rank 0 writes a checkpoint folder, every engine loads it.

`weights/v<version>/` appears by rename, after all its bytes are on disk; older versions go when all engines hold the new one. Slower than a
group, and independent of any network between trainer and engines. An engine that cannot load a checkpoint (a wrong
shape) dies of it: SGLang 0.5.20 tries to go back to the old weights, and reads the new folder again; the push then fails, and the engine's
log says why.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from slime_hpc.config.schema import Sync
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import NamedTensor, held, stream
from slime_hpc.sync.engine_api import Engines
from slime_hpc.sync.session import Clock, attempt, begin_push, end_push
from slime_hpc.sync.transport import PushReport

_MIB = 2**20
_INDEX = "model.safetensors.index.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


class DiskTransport:
    """`sync.transport.WeightTransport` through a folder that trainer and engines see."""

    def __init__(self, context: RoleContext, sync: Sync) -> None:
        self._context = context
        self._sync = sync
        self._engines: Engines | None = None

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Remember the engines, once each has answered."""
        self._engines = Engines(engines, self._context.token)
        source.agree(attempt(self._ask_all) if source.is_source() else None)

    def _ask_all(self) -> None:
        self._connected().all(lambda engine: engine.weight_version(timeout_s=self._sync.timeout_s))

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> PushReport:
        """Write all tensors as `version` and have every engine load them; see `WeightTransport.push`."""
        clock = Clock()
        folder = CheckpointFolder(self._context.run.weights / f"v{version}")
        failure = attempt(folder.open) if source.is_source() else None
        for shard in stream(held(clock.waiting(tensors)), self._sync.bucket_mib * _MIB):
            if failure is None:
                failure = attempt(lambda shard=shard: folder.write(shard))  # type: ignore[misc]
        if source.is_source() and failure is None:
            failure = attempt(lambda: self._load(folder, version, clock.start + self._sync.timeout_s))
        source.agree(failure)
        return clock.report(version=version, num_bytes=folder.num_bytes, num_buckets=folder.num_shards)

    def _load(self, folder: CheckpointFolder, version: int, deadline: float) -> None:
        folder.publish(Path(self._context.experiment.model.path))
        engines = self._connected()
        begin_push(engines, version, deadline, session=False)
        path = str(folder.path.absolute())
        engines.all(lambda engine: engine.update_from_disk(path, timeout_s=max(deadline - time.monotonic(), 0.001)))
        end_push(engines, version, deadline, session=False)
        folder.remove_others()

    def _connected(self) -> Engines:
        if self._engines is None:
            raise WeightPushError("No engines are known.", fix="call connect before push")
        return self._engines

    def close(self) -> None:
        """Forget the engines."""
        self._engines = None


class CheckpointFolder:
    """A Hugging Face folder while it is written: it appears by rename, once it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self.num_shards = 0
        self._partial = path.with_name(f".{path.name}.partial")
        self._files: dict[str, str] = {}

    def open(self) -> None:
        """An empty folder beside the final one; what an earlier attempt left is removed."""
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True, mode=0o700)

    def write(self, shard: Sequence[NamedTensor]) -> None:
        """One file of tensors."""
        self.num_shards += 1
        name = f"model-{self.num_shards:05d}.safetensors"
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in shard}
        save_file(tensors, self._partial / name, metadata={"format": "pt"})
        _sync(self._partial / name)
        self.num_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._files |= dict.fromkeys(tensors, name)

    def publish(self, model: Path) -> None:
        """Add the index and the model's own configuration and tokenizer, and put the folder in its place."""
        for file in model.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHT_SUFFIXES):
                shutil.copyfile(file, self._partial / file.name)
                _sync(self._partial / file.name)
        index = {"metadata": {"total_size": self.num_bytes}, "weight_map": self._files}
        (self._partial / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        _sync(self._partial / _INDEX)
        _sync(self._partial)
        shutil.rmtree(self.path, ignore_errors=True)
        self._partial.rename(self.path)
        _sync(self.path.parent)

    def remove_others(self) -> None:
        """Remove all versions but this one."""
        for other in self.path.parent.iterdir():
            if other != self.path:
                shutil.rmtree(other)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
