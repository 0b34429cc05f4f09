"""What every push does around the bytes: time it, open it on all engines, close it, and turn an error into a value.

Between `begin_push` and `end_push` the engines take no request, and call their weights 'incomplete-<version>'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from slime_hpc.errors import SlimeError, WeightPushError
from slime_hpc.sync.engine_api import EngineApi, Engines
from slime_hpc.sync.transport import PushReport

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


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
