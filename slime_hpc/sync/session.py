"""What every push does around the bytes: time it, open it on all engines, close it, and turn an error into a value.

Between `begin_push` and `end_push` the engines take no request, and call their weights 'incomplete-<version>'.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from slime_hpc.config.schema import Sync
from slime_hpc.errors import EngineError, SlimeError, WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import NamedTensor, held, stream
from slime_hpc.sync.engine_api import EngineApi, Engines, PauseMode
from slime_hpc.sync.quantize import QUANTIZERS
from slime_hpc.sync.transport import PushReport

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_MIB = 2**20
_BUSY_FLUSH_S = 1.0


def attempt(work: Callable[[], None]) -> WeightPushError | None:
    """Run `work`; its failure as a value, so that the other ranks can be told before it is raised."""
    try:
        work()
    except WeightPushError as error:
        return error
    except SlimeError as error:
        return WeightPushError(error.what, where=error.where, fix=error.fix)
    return None


class Clock:
    """The times of one push, by phase; phases on different threads overlap."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self._seconds: dict[str, float] = {}

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each comes is the gather time."""
        iterator = iter(items)
        while True:
            try:
                with self.measure("gather"):
                    item = next(iterator)
            except StopIteration:
                return
            yield item

    @contextlib.contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time inside to a phase: gather, convert, wire, load or pause."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.add(phase, time.monotonic() - begun)

    def add(self, phase: str, seconds: float) -> None:
        """Add a time to a phase."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Time of each phase so far."""
        return dict(self._seconds)

    def report(self, *, version: int, num_bytes: int, num_buckets: int, num_calls: int = 0) -> PushReport:
        """The report of a push that ends now. A transport that measures no wire time spends there what is not gather time."""
        total_s = time.monotonic() - self.start
        gather_s = self._seconds.get("gather", 0.0)
        return PushReport(
            version=version,
            num_bytes=num_bytes,
            num_buckets=num_buckets,
            gather_s=gather_s,
            wire_s=self._seconds.get("wire", total_s - gather_s),
            total_s=total_s,
            convert_s=self._seconds.get("convert", 0.0),
            load_s=self._seconds.get("load", 0.0),
            pause_s=self._seconds.get("pause", 0.0),
            num_calls=num_calls,
        )


def begin_push(engines: Engines, version: int, deadline: float, *, session: bool = True, pause: PauseMode = "abort") -> None:
    """Pause all engines and mark their weights as incomplete; open an update session where the engine has such and `session` is set."""

    def begin(engine: EngineApi) -> None:
        engine.pause(pause, timeout_s=left(deadline))
        engine.set_version(f"incomplete-{version}", timeout_s=left(deadline))
        if session and engine.has_update_sessions(timeout_s=left(deadline)):
            engine.begin_update(timeout_s=left(deadline))

    engines.all(begin)


def end_push(engines: Engines, version: int, deadline: float, *, session: bool = True, pause: PauseMode = "abort") -> None:
    """Close what `begin_push` opened: drop caches of the old weights, name the new ones, let requests in."""

    def end(engine: EngineApi) -> None:
        if session and engine.has_update_sessions(timeout_s=left(deadline)):
            engine.end_update(timeout_s=left(deadline))
        if pause == "abort":
            engine.flush_cache(timeout_s=left(deadline))
        else:
            # Parked requests need their cache, and an engine that has such refuses to drop it.
            with contextlib.suppress(EngineError):
                engine.flush_cache(timeout_s=min(_BUSY_FLUSH_S, left(deadline)), tries=1)
        engine.set_version(str(version), timeout_s=left(deadline))
        engine.resume(timeout_s=left(deadline))

    engines.all(end)


@dataclass(frozen=True, slots=True)
class Push:
    """One push under way, as a transport's `send` sees it."""

    deadline: float
    """Time of time.monotonic() by which it must be done."""
    clock: Clock


def push_buckets(
    engines: Callable[[], Engines],
    version: int,
    tensors: Iterable[tuple[str, torch.Tensor | None]],
    *,
    sync: Sync,
    send: Callable[[list[NamedTensor], Push], None],
    settle: Callable[[], None] = lambda: None,
    sources: tuple[int, ...] = (0,),
) -> PushReport:
    """A whole push, `WeightTransport.push`, of a transport that has `send(bucket, push)`: the sources send one after another, all ranks
    hear what came of it. `send` may return before the bucket has arrived, and take the tensors out of the list; `settle` waits for all.

    After a failure the tensors are still run through, since other ranks gather them too, and nothing more is sent.
    """
    push = Push(time.monotonic() + sync.timeout_s, Clock())
    place = sources.index(source.rank()) if source.rank() in sources else None
    # The first bucket is made before the engines pause, and while another source has its turn.
    buckets = _begun(made(tensors, sync, push.clock))
    paused = time.monotonic()
    failure = attempt(lambda: engines().count_anew()) if place is not None else None
    if source.is_source() and failure is None:
        failure = attempt(lambda: begin_push(engines(), version, push.deadline, pause=sync.pause))
    well = source.await_turn(sources[place - 1]) if place else True
    num_bytes = num_buckets = 0
    for bucket in buckets:
        if well and failure is None:
            num_bytes += sum(tensor.nbytes for _, tensor in bucket)
            num_buckets += 1
            failure = attempt(lambda bucket=bucket: send(bucket, push))  # type: ignore[misc]
    if place is not None and failure is None:
        failure = attempt(settle)
    if place is not None and len(sources) > 1:
        source.pass_turn(sources[(place + 1) % len(sources)], well=well and failure is None)
        well = source.await_turn(sources[-1]) if place == 0 else well
    if source.is_source() and well and failure is None:
        failure = attempt(lambda: end_push(engines(), version, push.deadline, pause=sync.pause))
        push.clock.add("pause", time.monotonic() - paused)
    num_calls = engines().num_calls if place is not None and failure is None else 0
    figures = {"num_bytes": num_bytes, "num_buckets": num_buckets, "num_calls": num_calls, "seconds": push.clock.seconds}
    return _sum(push.clock, version, source.agree(failure, figures))


def made(tensors: Iterable[tuple[str, torch.Tensor | None]], sync: Sync, clock: Clock) -> Iterator[list[NamedTensor]]:
    """The buckets of what this rank holds, quantized as `sync` says."""

    def converted() -> Iterator[NamedTensor]:
        for name, tensor in held(clock.waiting(tensors)):
            with clock.measure("convert"):
                parts = QUANTIZERS[sync.quantization](name, tensor)
            yield from parts

    return stream(converted(), int(sync.bucket_mib * _MIB))


def _begun(items: Iterator[T]) -> Iterator[T]:
    """The same items, the first of which is made now; keeps none that it has handed out."""
    first = deque(itertools.islice(items, 1))

    def rest() -> Iterator[T]:
        while first:
            yield first.popleft()
        yield from items

    return rest()


def _sum(clock: Clock, version: int, figures: list[dict[str, Any]]) -> PushReport:
    """The report of all ranks' figures; the ranks that hold nothing only wait."""
    sent = [each for each in figures if each["num_buckets"]]
    totals = {key: sum(each[key] for each in sent) for key in ("num_bytes", "num_buckets", "num_calls")}
    phases = ("gather", "convert", "wire", "load", "pause")
    seconds = {f"{phase}_s": sum(each["seconds"].get(phase, 0.0) for each in sent) for phase in phases}
    return PushReport(version=version, total_s=time.monotonic() - clock.start, **totals, **seconds)


def left(deadline: float) -> float:
    """Seconds until `deadline`, and never none: a timeout of 0 would mean no timeout."""
    return max(deadline - time.monotonic(), 0.001)
