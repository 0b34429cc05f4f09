"""Weights through a process group: the trainer's rank 0 broadcasts flat buckets, all engines receive them (NCCL, on a CPU cluster gloo).

Each engine's HTTP reply is awaited beside the collective, so that an engine that fails ends the push with its own words. From the first
byte to the last an engine calls its weights 'incomplete-<version>'; after a failed push it keeps that name, and the group is gone.
Knows Hugging Face names and tensors; knows nothing of Megatron, nor of how an engine was started.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from slime_hpc.config.schema import Sync
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import EngineError, SlimeError, WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import NamedTensor, TensorSpec, flatten
from slime_hpc.sync.engine_api import EngineApi, Engines, answers, aside
from slime_hpc.sync.group import WeightGroup
from slime_hpc.sync.session import attempt, push_buckets
from slime_hpc.sync.transport import PushReport

_MIB = 2**20
_EARLY_S = 0.1
"""An engine that refuses a bucket outright (no group, no session) does so within this time: nothing is broadcast then."""
_LAST_WORDS_S = 10.0
_MORE_WORDS_S = 1.0
_LEAVE_S = 10.0


class DistributedTransport:
    """`sync.transport.WeightTransport` through a process group."""

    def __init__(self, context: RoleContext, sync: Sync) -> None:
        self._context = context
        self._sync = sync
        self._backend = "nccl" if context.topology.accelerator == "cuda" else "gloo"
        self._engines: Engines | None = None
        self._group: WeightGroup | None = None

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Build the group with all engines, under a name that no earlier one had."""
        self.close()
        source.agree(attempt(lambda: self._connect(engines)) if source.is_source() else None)

    def _connect(self, endpoints: Sequence[Endpoint]) -> None:
        engines = self._engines = Engines(endpoints, self._context.token)
        name = f"{self._context.experiment.name}-{self._context.attempt}-{secrets.token_hex(4)}"
        address, timeout_s = self._context.address, self._sync.timeout_s
        group = self._group = WeightGroup(name, address=address, backend=self._backend, timeout_s=timeout_s)
        *firsts, world_size = accumulate((endpoint.gpus for endpoint in endpoints), initial=1)
        rank_of = {endpoint.role: first for endpoint, first in zip(endpoints, firsts, strict=True)}

        def join(engine: EngineApi) -> None:
            engine.init_group(
                address=address,
                port=group.port,
                rank=rank_of[engine.name],
                world_size=world_size,
                name=name,
                backend=self._backend,
                timeout_s=timeout_s,
            )

        replies = engines.start(join)
        joined = aside(lambda: group.join(world_size))
        try:
            concurrent.futures.wait([joined, *replies], return_when=concurrent.futures.FIRST_EXCEPTION)
            answers([reply for reply in replies if reply.done()])
            joined.result()
            answers(replies)
        except SlimeError as error:
            raise self._failure(error, replies) from error

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> PushReport:
        """Send all tensors as `version`; see `WeightTransport.push`."""
        return push_buckets(
            self._connected,
            version,
            tensors,
            bucket_bytes=self._sync.bucket_mib * _MIB,
            timeout_s=self._sync.timeout_s,
            send=self._send,
        )

    def _connected(self) -> Engines:
        if self._engines is None or self._group is None:
            raise WeightPushError("There is no group with the engines.", fix="call connect before push, and again after a failed push")
        return self._engines

    def _send(self, bucket: list[NamedTensor], deadline: float) -> None:
        """One bucket: ask all engines to receive it, broadcast it, wait until all have loaded it."""
        engines, group = self._connected(), self._group
        assert group is not None
        specs = [TensorSpec.of(name, tensor) for name, tensor in bucket]
        data = flatten(bucket)
        replies = engines.start(
            lambda engine: engine.update_from_distributed(specs, group.name, timeout_s=deadline - time.monotonic() + _LAST_WORDS_S)
        )
        try:
            self._refuse_early_errors(replies)
            group.broadcast(data, deadline=deadline, failed=lambda: bool(_failed(replies)))
            answers(replies)
        except SlimeError as error:
            raise self._failure(error, replies) from error

    def _refuse_early_errors(self, replies: Sequence[concurrent.futures.Future[None]]) -> None:
        """Raise before the collective when an engine has already answered: it will not take part."""
        done, _ = concurrent.futures.wait(replies, timeout=_EARLY_S, return_when=concurrent.futures.FIRST_EXCEPTION)
        answers([reply for reply in replies if reply in done])
        if done:
            raise EngineError("An engine answered before it was sent anything.", fix="see the engines' logs")

    def _failure(self, error: SlimeError, replies: Sequence[concurrent.futures.Future[None]]) -> WeightPushError:
        """Leave the group, which ends what the other engines wait for; the engines' words, and those of the collective after them."""
        already = _failed(replies)
        self._leave()
        concurrent.futures.wait(replies, timeout=_MORE_WORDS_S if already else _LAST_WORDS_S)
        words = already or _failed(replies)
        texts = [reason.what for reason in words]
        if not texts or isinstance(error, WeightPushError):
            texts.append(error.what)
        where = ", ".join(reason.where for reason in words) or error.where
        return WeightPushError("\n".join(texts), where=where, fix=error.fix or "see the engine's log")

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    def close(self) -> None:
        """Leave the group, and have the engines leave it."""
        name = self._group.name if self._group else None
        self._leave()
        if name and self._engines is not None:
            # An engine that is gone, or whose group a failure has ended, is left already.
            with contextlib.suppress(EngineError):
                self._engines.all(lambda engine: engine.destroy_group(name, timeout_s=_LEAVE_S))
        self._engines = None


def _failed(replies: Sequence[concurrent.futures.Future[None]]) -> list[EngineError]:
    errors = (reply.exception() for reply in replies if reply.done())
    return [error for error in errors if isinstance(error, EngineError)]
