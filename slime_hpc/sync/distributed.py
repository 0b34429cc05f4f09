"""Weights through process groups (NCCL, on a CPU cluster gloo): each pipeline stage's head broadcasts flat buckets to all engines.

While a bucket is under way the next one is gathered, converted and laid out: at most two flat buckets exist, and the tensors of a third.
The heads send one after another, so that all engines meet the buckets in one order. Each engine's HTTP reply is awaited beside the
collective, so that an engine that fails ends the push with its own words. From the first byte to the last an engine calls its weights
'incomplete-<version>'; after a failed push it keeps that name and stays paused, and the groups are gone.
Knows Hugging Face names and tensors; knows nothing of Megatron, nor of how an engine was started.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import secrets
import time
from collections.abc import Iterable, Sequence

import torch

from slime_hpc.config.schema import Sync
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, write_atomic
from slime_hpc.errors import EngineError, SlimeError, WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import NamedTensor, TensorSpec, flatten
from slime_hpc.sync.engine_api import EngineApi, Engines, answers, aside
from slime_hpc.sync.group import WeightGroup
from slime_hpc.sync.push_plan import engine_ranks
from slime_hpc.sync.session import Push, attempt, push_buckets
from slime_hpc.sync.transport import PushReport

_EARLY_S = 0.1
"""An engine that refuses the first bucket after connect outright (no group, no session) does so within this time: nothing is broadcast
then. NCCL needs no such wait, since it can be aborted."""
_LAST_WORDS_S = 10.0
_MORE_WORDS_S = 1.0
_LEAVE_S = 10.0


class DistributedTransport:
    """`sync.transport.WeightTransport` through process groups."""

    def __init__(self, context: RoleContext, sync: Sync) -> None:
        self._context = context
        self._sync = sync
        self._sources = source.ranks(context)
        self._name_file = context.run.weight_group(source.rank())
        self._backend = "nccl" if context.topology.accelerator == "cuda" else "gloo"
        self._engines: Engines | None = None
        self._group: WeightGroup | None = None
        self._under_way: concurrent.futures.Future[None] | None = None
        self._proven = False
        """Whether all engines have received a bucket in this group."""
        self._buffers: list[torch.Tensor | None] = [None, None]

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Build each head's group with all engines, under a name that no earlier one had."""
        self.close()
        for head in self._sources:
            # One after another: engines that met two heads in different order would wait for each other.
            source.agree(attempt(lambda: self._connect(engines)) if source.rank() == head else None)

    def _connect(self, endpoints: Sequence[Endpoint]) -> None:
        engines = self._engines = Engines(endpoints, self._context.token)
        if self._name_file.exists():
            # A trainer was killed: its engines wait in that group until one of them leaves it.
            _have_left(engines, self._name_file.read_text(encoding="ascii"), timeout_s=_LEAVE_S)
        name = f"{self._context.experiment.name}-{self._context.attempt}-{source.rank()}-{secrets.token_hex(4)}"
        address, timeout_s = self._context.address, self._sync.timeout_s
        group = self._group = WeightGroup(name, address=address, backend=self._backend, timeout_s=timeout_s)
        write_atomic(self._name_file, name)
        firsts, world_size = engine_ranks([endpoint.gpus for endpoint in endpoints])
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
        """Send all tensors as `version`; see `WeightTransport.push`. After a failure all groups are gone: connect again."""
        try:
            return push_buckets(
                self._connected, version, tensors, sync=self._sync, send=self._send, settle=self._settle, sources=self._sources
            )
        except WeightPushError:
            _have_left(self._engines, self._leave_group(), timeout_s=_MORE_WORDS_S)
            raise
        finally:
            if self._backend == "nccl":
                # The trainer wants its GPU's memory back; a host's pages are only slow to get anew.
                self._buffers = [None, None]

    def _connected(self) -> Engines:
        if self._engines is None or self._group is None:
            raise WeightPushError("There is no group with the engines.", fix="call connect before push, and again after a failed push")
        return self._engines

    def _send(self, bucket: list[NamedTensor], push: Push) -> None:
        """Lay a bucket out while the one before is under way; then let this one follow."""
        self._connected()
        specs = [TensorSpec.of(name, tensor) for name, tensor in bucket]
        with push.clock.measure("convert"):
            data = flatten(bucket, into=self._buffers[0])
        bucket.clear()
        if self._buffers[0] is None or data.numel() > self._buffers[0].numel():
            self._buffers[0] = data
        self._buffers.reverse()
        self._settle()
        self._under_way = aside(functools.partial(self._deliver, specs, data, push))

    def _settle(self) -> None:
        """Wait until the bucket that is under way is loaded by all engines."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _deliver(self, specs: Sequence[TensorSpec], data: torch.Tensor, push: Push) -> None:
        """One bucket: ask all engines to receive it, broadcast it, wait until all have loaded it."""
        engines, group = self._connected(), self._group
        assert group is not None
        if data.is_cuda:
            torch.cuda.set_device(data.device)
        timeout_s = push.deadline - time.monotonic() + _LAST_WORDS_S
        replies = engines.start(lambda engine: engine.update_from_distributed(specs, group.name, timeout_s=timeout_s))
        try:
            if self._backend == "gloo" and not self._proven:
                self._refuse_early_answers(replies)
            with push.clock.measure("wire"):
                group.broadcast(data, deadline=push.deadline, failed=lambda: bool(_failed(replies)))
            with push.clock.measure("load"):
                answers(replies)
            self._proven = True
        except SlimeError as error:
            raise self._failure(error, replies) from error

    def _refuse_early_answers(self, replies: Sequence[concurrent.futures.Future[None]]) -> None:
        """Raise before the collective when an engine has already answered: it will not take part."""
        done, _ = concurrent.futures.wait(replies, timeout=_EARLY_S, return_when=concurrent.futures.FIRST_EXCEPTION)
        answers([reply for reply in replies if reply in done])
        for reply, engine in zip(replies, self._connected().each, strict=True):
            if reply in done:
                raise engine.error("/update_weights_from_distributed", "it answered that it has loaded what it was not yet sent")

    def _failure(self, error: SlimeError, replies: Sequence[concurrent.futures.Future[None]]) -> WeightPushError:
        """Leave the group, which ends what the other engines wait for; the engines' words, and those of the collective after them."""
        already = _failed(replies)
        if isinstance(error, EngineError) and not already:
            already = [error]
        engines, name = self._engines, self._leave_group()
        concurrent.futures.wait(replies, timeout=_MORE_WORDS_S if already else _LAST_WORDS_S)
        words = already or _failed(replies)
        texts = [reason.what for reason in words]
        if not texts or isinstance(error, WeightPushError):
            texts.append(error.what)
            texts += [f"{engine.name} says that it has loaded the bucket." for engine in _pleased(engines, replies)]
        where = ", ".join(reason.where for reason in words) or error.where
        _have_left(engines, name, timeout_s=_MORE_WORDS_S)
        return WeightPushError("\n".join(texts), where=where, fix=error.fix or "see the engine's log")

    def _leave_group(self) -> str:
        """Leave the group on this side; its name, if there is one."""
        group, self._group = self._group, None
        self._proven = False
        if group is None:
            return ""
        group.leave()
        self._name_file.unlink(missing_ok=True)
        return group.name

    def close(self) -> None:
        """Leave the group, and have the engines leave it."""
        _have_left(self._engines, self._leave_group(), timeout_s=_LEAVE_S)
        self._engines = None


def _have_left(engines: Engines | None, name: str, *, timeout_s: float) -> None:
    """Have the engines leave a group, too. One that is gone or stuck is left behind: the name is never used again."""
    if engines is not None and name:
        with contextlib.suppress(EngineError):
            engines.all(lambda engine: engine.destroy_group(name, timeout_s=timeout_s))


def _pleased(engines: Engines | None, replies: Sequence[concurrent.futures.Future[None]]) -> list[EngineApi]:
    """The engines that have answered without an error."""
    each = engines.each if engines else []
    return [engine for engine, reply in zip(each, replies, strict=True) if reply.done() and reply.exception() is None]


def _failed(replies: Sequence[concurrent.futures.Future[None]]) -> list[EngineError]:
    errors = (reply.exception() for reply in replies if reply.done())
    return [error for error in errors if isinstance(error, EngineError)]
