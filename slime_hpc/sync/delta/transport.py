"""Weights as what changed since the last version, through the shared file system.

Rank 0 writes a version, full at first and then every so often; the agent beside each engine brings its node's copy there; then the
engines, paused, load that copy. `weights/` keeps the newest full version and the deltas after it: all that a late node needs. After a
failed push the next version is full. SGLang takes whole tensors only, from a group or from memory: no delta can be handed to it.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from slime_hpc.config.schema import Sync
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import held, stream
from slime_hpc.sync.checkpoint_folder import remove_all_but
from slime_hpc.sync.delta.agent import Report, publish_head, read_report, threads_of
from slime_hpc.sync.delta.chain import Link
from slime_hpc.sync.delta.chunks import Crew
from slime_hpc.sync.delta.writer import Base, DeltaVersion, FullVersion
from slime_hpc.sync.engine_api import Engines
from slime_hpc.sync.session import Clock, attempt, begin_push, end_push, left
from slime_hpc.sync.transport import PushReport

_MIB = 2**20
_POLL_S = 0.05
Version = FullVersion | DeltaVersion


class DeltaTransport:
    """`sync.transport.WeightTransport` through deltas."""

    def __init__(self, context: RoleContext, sync: Sync) -> None:
        self._context = context
        self._sync = sync
        self._crew = Crew(threads_of(context))
        self._engines: Engines | None = None
        self._base: Base = {}
        self._chain: list[Link] = []
        """The newest full version, and the deltas after it; empty when the next version must be full."""
        self._phases: dict[str, float] = {}

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Remember the engines, once each and its agent have answered."""
        self._engines = Engines(engines, self._context.token)
        source.agree(attempt(self._ask_all) if source.is_source() else None)

    def _ask_all(self) -> None:
        deadline = time.monotonic() + self._sync.timeout_s
        self._connected().all(lambda engine: engine.weight_version(timeout_s=self._sync.timeout_s))
        self._wait(None, deadline)

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> PushReport:
        """Write what changed as `version` and have every engine load it; see `WeightTransport.push`."""
        clock = Clock()
        self._phases = {}
        written = self._next(version)
        num_bytes = num_buckets = 0
        failure = _attempt(lambda: self._open(written)) if source.is_source() else None
        write_s = 0.0
        for shard in stream(held(clock.waiting(tensors)), int(self._sync.bucket_mib * _MIB)):
            start = time.monotonic()
            if failure is None:
                num_buckets += 1
                num_bytes += sum(tensor.nbytes for _, tensor in shard)
                failure = _attempt(lambda shard=shard: written.write(shard))  # type: ignore[misc]
            write_s += time.monotonic() - start
        if source.is_source() and failure is None:
            start = time.monotonic()
            failure = _attempt(lambda: written.publish(Path(self._context.experiment.model.path)))
            write_s += time.monotonic() - start
        self._phases |= {"seconds_encode": written.encode_s, "seconds_write": write_s - written.encode_s, "bytes_wire": written.num_bytes}
        if source.is_source() and failure is None:
            failure = _attempt(lambda: self._deliver(written, clock))
        if failure is not None:
            self._chain = []
        source.agree(failure)
        num_calls = self._connected().num_calls if source.is_source() else 0
        report = clock.report(version=version, num_bytes=num_bytes, num_buckets=num_buckets, num_calls=num_calls)
        return dataclasses.replace(report, phases=self._phases)

    def _next(self, version: int) -> Version:
        path = self._context.run.weights / f"v{version}"
        link = Link(version=version, id=secrets.token_hex(8))
        delta = self._sync.delta
        if not self._chain or len(self._chain) >= delta.full_interval or any(link.version == version for link in self._chain):
            return FullVersion(path, link, self._base, self._crew)
        return DeltaVersion(path, link, self._base, self._crew, follows=self._chain[-1], encoding_name=delta.encoding)

    def _open(self, written: Version) -> None:
        self._connected()
        written.open()

    def _deliver(self, written: Version, clock: Clock) -> None:
        link, deadline = written.link, clock.start + self._sync.timeout_s
        chain = [link] if isinstance(written, FullVersion) else [*self._chain, link]
        engines = self._connected()
        engines.count_anew()
        start = time.monotonic()
        publish_head(self._context.run, self._context.attempt, link)
        reports = self._wait(link, deadline)
        self._phases |= {"seconds_apply": time.monotonic() - start}
        with clock.measure("pause"):
            begin_push(engines, link.version, deadline, session=False, pause=self._sync.pause)
            with clock.measure("load"):
                engines.all(lambda engine: engine.update_from_disk(reports[engine.name].model, timeout_s=left(deadline)))
            end_push(engines, link.version, deadline, session=False, pause=self._sync.pause)
        self._chain = chain
        weights = self._context.run.weights
        remove_all_but((weights / f"v{link.version}" for link in chain), weights)

    def _wait(self, link: Link | None, deadline: float) -> dict[str, Report]:
        """The reports of all engines' agents, once they hold `link` (None: once they are there).

        Raises WeightPushError as soon as one cannot hold it, and when one has not said anything in time.
        """
        reports: dict[str, Report] = {}
        names = [engine.name for engine in self._connected().each]
        while True:
            for name in names:
                if name not in reports:
                    report = read_report(self._context.run, self._context.attempt, name)
                    if report is not None and link in (None, report.link):
                        reports[name] = report
            if link is not None:
                self._refuse_errors(reports)
            waiting = [name for name in names if name not in reports]
            if not waiting:
                return reports
            if time.monotonic() > deadline:
                raise WeightPushError(
                    f"The agent beside {', '.join(waiting)} has not said in time that its node holds the weights.",
                    where=", ".join(waiting),
                    fix="see the engine's log; raise sync.timeout_s if the file system is slow",
                )
            time.sleep(_POLL_S)

    def _refuse_errors(self, reports: dict[str, Report]) -> None:
        failed = {name: report for name, report in reports.items() if report.error}
        if failed:
            raise WeightPushError(
                "\n".join(f"{name} cannot apply the weights: {report.error}" for name, report in failed.items()),
                where=", ".join(sorted({report.where or name for name, report in failed.items()})),
                fix="see the file systems of the run folder and of sync.delta.local; the next push writes a full version",
            )

    def _connected(self) -> Engines:
        if self._engines is None:
            raise WeightPushError("No engines are known.", fix="call connect before push")
        return self._engines

    def close(self) -> None:
        """Forget the engines."""
        self._engines = None


def _attempt(work: Callable[[], None]) -> WeightPushError | None:
    """`session.attempt`, also of what a file system says."""

    def told() -> None:
        try:
            work()
        except OSError as error:
            words = error.strerror or str(error)
            raise WeightPushError(words, where=str(error.filename or ""), fix="see the file system of the run folder") from error

    return attempt(told)
