"""Weights through the shared file system: rank 0 writes a checkpoint folder, every engine loads it.

Older versions go when all engines hold the new one. Slower than a group, and independent of any network between trainer and engines. An
engine that cannot load a checkpoint (a wrong shape) dies of it: SGLang 0.5.20 tries to go back to the old weights, and reads the new folder
again; the push then fails, and the engine's log says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from slime_hpc.config.schema import Sync
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import held, stream
from slime_hpc.sync.checkpoint_folder import CheckpointFolder, remove_all_but
from slime_hpc.sync.engine_api import Engines
from slime_hpc.sync.session import Clock, attempt, begin_push, end_push, left
from slime_hpc.sync.transport import PushReport

_MIB = 2**20


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
        for shard in stream(held(clock.waiting(tensors)), int(self._sync.bucket_mib * _MIB)):
            if failure is None:
                with clock.measure("wire"):
                    failure = attempt(lambda shard=shard: folder.write(shard))  # type: ignore[misc]
        if source.is_source() and failure is None:
            failure = attempt(lambda: self._load(folder, version, clock))
        source.agree(failure)
        num_calls = self._connected().num_calls if source.is_source() else 0
        return clock.report(version=version, num_bytes=folder.num_bytes, num_buckets=folder.num_shards, num_calls=num_calls)

    def _load(self, folder: CheckpointFolder, version: int, clock: Clock) -> None:
        deadline = clock.start + self._sync.timeout_s
        with clock.measure("wire"):
            folder.complete(Path(self._context.experiment.model.path))
            folder.publish()
        engines = self._connected()
        engines.count_anew()
        path = str(folder.path.absolute())
        with clock.measure("pause"):
            begin_push(engines, version, deadline, session=False, pause=self._sync.pause)
            with clock.measure("load"):
                engines.all(lambda engine: engine.update_from_disk(path, timeout_s=left(deadline)))
            end_push(engines, version, deadline, session=False, pause=self._sync.pause)
        remove_all_but([folder.path], folder.path.parent)

    def _connected(self) -> Engines:
        if self._engines is None:
            raise WeightPushError("No engines are known.", fix="call connect before push")
        return self._engines

    def close(self) -> None:
        """Forget the engines."""
        self._engines = None
