"""What every push does around the bytes: time it, open it on all engines, close it, and turn an error into a value.

Between `begin_push` and `end_push` the engines take no request, and call their weights 'incomplete-<version>'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from slime_hpc.errors import SlimeError, WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.buckets import NamedTensor, held, stream
from slime_hpc.sync.engine_api import EngineApi, Engines
from slime_hpc.sync.transport import PushReport

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


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
    """The times of one push."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self._gather_s = 0.0

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each comes is the gather time."""
        iterator = iter(items)
        while True:
            asked = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._gather_s += time.monotonic() - asked
            yield item

    def report(self, *, version: int, num_bytes: int, num_buckets: int) -> PushReport:
        """The report of a push that ends now."""
        total_s = time.monotonic() - self.start
        return PushReport(
            version=version,
            num_bytes=num_bytes,
            num_buckets=num_buckets,
            gather_s=self._gather_s,
            wire_s=total_s - self._gather_s,
            total_s=total_s,
        )


def begin_push(engines: Engines, version: int, deadline: float, *, session: bool = True) -> None:
    """Pause all engines and mark their weights as incomplete; open an update session where the engine has such and `session` is set."""

    def begin(engine: EngineApi) -> None:
        engine.pause(timeout_s=_left(deadline))
        engine.set_version(f"incomplete-{version}", timeout_s=_left(deadline))
        if session and engine.has_update_sessions(timeout_s=_left(deadline)):
            engine.begin_update(timeout_s=_left(deadline))

    engines.all(begin)


def end_push(engines: Engines, version: int, deadline: float, *, session: bool = True) -> None:
    """Close what `begin_push` opened: drop caches of the old weights, name the new ones, let requests in."""

    def end(engine: EngineApi) -> None:
        if session and engine.has_update_sessions(timeout_s=_left(deadline)):
            engine.end_update(timeout_s=_left(deadline))
        engine.flush_cache(timeout_s=_left(deadline))
        engine.set_version(str(version), timeout_s=_left(deadline))
        engine.resume(timeout_s=_left(deadline))

    engines.all(end)


def push_buckets(
    engines: Callable[[], Engines],
    version: int,
    tensors: Iterable[tuple[str, torch.Tensor | None]],
    *,
    bucket_bytes: int,
    timeout_s: float,
    send: Callable[[list[NamedTensor], float], None],
) -> PushReport:
    """A whole push, `WeightTransport.push`, of a transport that has `send(bucket, deadline)`: rank 0 sends, all ranks hear what came of it.

    After a failure the tensors are still run through, since the other ranks gather them too, and nothing more is sent.
    """
    clock = Clock()
    deadline = clock.start + timeout_s
    failure = attempt(lambda: begin_push(engines(), version, deadline)) if source.is_source() else None
    num_bytes = num_buckets = 0
    for bucket in stream(held(clock.waiting(tensors)), bucket_bytes):
        if failure is None:
            num_bytes += sum(tensor.nbytes for _, tensor in bucket)
            num_buckets += 1
            failure = attempt(lambda bucket=bucket: send(bucket, deadline))  # type: ignore[misc]
    if source.is_source() and failure is None:
        failure = attempt(lambda: end_push(engines(), version, deadline))
    source.agree(failure)
    return clock.report(version=version, num_bytes=num_bytes, num_buckets=num_buckets)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
