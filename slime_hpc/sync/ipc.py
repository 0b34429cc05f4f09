"""Weights through CUDA IPC, for a trainer and an engine on the same GPU: one trainer rank, one engine of one GPU.

A bucket is copied once into flat memory; what goes over HTTP is a handle of it, as SGLang's /update_weights_from_tensor takes it.
SGLang is imported when the transport is made: the handle's form is SGLang's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from slime_hpc.config.schema import Sync
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import NamedTensor
from slime_hpc.sync.engine_api import Engines
from slime_hpc.sync.session import Push, attempt, left, push_buckets
from slime_hpc.sync.transport import PushReport


class IpcTransport:
    """`sync.transport.WeightTransport` through shared memory."""

    def __init__(self, context: RoleContext, sync: Sync) -> None:
        from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

        # SGLang names a GPU by its UUID in a handle: trainer and engine may count their devices differently.
        monkey_patch_torch_reductions()
        self._context = context
        self._sync = sync
        self._engines: Engines | None = None

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Remember the engine, once it has answered. Raises WeightPushError when there is not exactly one, of one GPU, on this node."""
        sizes = [endpoint.gpus for endpoint in engines]
        failure = None
        if sizes != [1]:
            failure = WeightPushError(
                f"Shared memory joins the trainer to one engine of one GPU; there are engines of {sizes} GPUs.",
                where="sync.transport",
                fix='set sync.transport = "distributed"',
            )
        source.agree(failure)
        found = self._engines = Engines(engines, self._context.token)
        source.agree(attempt(lambda: self._answering(found)) if source.is_source() else None)

    def _answering(self, engines: Engines) -> None:
        engines.all(lambda engine: engine.weight_version(timeout_s=self._sync.timeout_s))

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> PushReport:
        """Send all tensors as `version`; see `WeightTransport.push`."""
        return push_buckets(
            self._connected,
            version,
            tensors,
            sync=self._sync,
            send=self._send,
        )

    def _connected(self) -> Engines:
        if self._engines is None:
            raise WeightPushError("There is no engine.", fix="call connect before push")
        return self._engines

    def _send(self, bucket: list[NamedTensor], push: Push) -> None:
        from sglang.srt.utils import MultiprocessingSerializer
        from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

        with push.clock.measure("convert"):
            flat = FlattenedTensorBucket(named_tensors=bucket)
            # The engine reads as soon as it has the handle.
            torch.cuda.synchronize()
        described = {"flattened_tensor": flat.get_flattened_tensor(), "metadata": flat.get_metadata()}
        serialized = MultiprocessingSerializer.serialize(described, output_str=True)
        with push.clock.measure("load"):
            self._connected().all(lambda engine: engine.update_from_tensor(serialized, timeout_s=left(push.deadline)))

    def close(self) -> None:
        """Forget the engine."""
        self._engines = None
