"""SGLang's control endpoints: of one engine, and of all engines at once.

Calls to several engines run side by side on daemon threads, so that a transport can watch their replies beside a collective. Every
failure is an EngineError with the engine's name and its own words. Two protocols: from 0.5.22 on an update stands between
/begin_weight_update and /end_weight_update; before, these do not exist (/openapi.json tells).
Knows no tensors.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import requests

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import EngineError
from slime_hpc.sync.buckets import TensorSpec

T = TypeVar("T")
PauseMode = Literal["abort", "retract", "in_place"]
_CONNECT_TIMEOUT_S = 10.0
_FLUSH_TRIES = 20
_FLUSH_PAUSE_S = 0.25


class EngineApi:
    """One engine. Every call raises EngineError when the engine answers an error, or not within `timeout_s`."""

    def __init__(self, endpoint: Endpoint, token: str) -> None:
        self.endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}"}
        self._sessions: bool | None = None
        self.num_calls = 0
        """Requests that it was sent."""

    @property
    def name(self) -> str:
        """Role and rank."""
        return self.endpoint.role

    def request(self, method: str, route: str, body: dict[str, Any] | None = None, *, timeout_s: float) -> Any:
        """The engine's answer: JSON where it is JSON, else text."""
        self.num_calls += 1
        try:
            reply = requests.request(
                method,
                self.endpoint.url + route,
                json=body,
                headers=self._headers,
                timeout=(min(_CONNECT_TIMEOUT_S, max(timeout_s, 0.001)), max(timeout_s, 0.001)),
            )
        except requests.RequestException as error:
            raise self.error(route, f"no answer ({type(error).__name__}: {error})") from error
        value = _content(reply)
        refused = isinstance(value, dict) and value.get("success") is False
        if not reply.ok or refused:
            words = value.get("message") or value.get("error") or value if isinstance(value, dict) else value
            raise self.error(route, f"{reply.status_code}: {words}")
        return value

    def error(self, route: str, words: str) -> EngineError:
        """An error of this engine."""
        return EngineError(f"{self.name} {route}: {words}", where=f"{self.name} at {self.endpoint.host}:{self.endpoint.port}")

    def has_update_sessions(self, *, timeout_s: float) -> bool:
        """Whether updates must stand between begin_update and end_update."""
        if self._sessions is None:
            self._sessions = "/begin_weight_update" in self.request("GET", "/openapi.json", timeout_s=timeout_s)["paths"]
        return self._sessions

    def pause(self, mode: PauseMode, *, timeout_s: float) -> None:
        """Take no request to the model. Those that run end now ('abort'), are put back and later computed anew from their tokens
        ('retract'), or stay where they are ('in_place')."""
        self.request("POST", "/pause_generation", {"mode": mode}, timeout_s=timeout_s)

    def resume(self, *, timeout_s: float) -> None:
        """The inverse of `pause`."""
        self.request("POST", "/continue_generation", {}, timeout_s=timeout_s)

    def flush_cache(self, *, timeout_s: float, tries: int = _FLUSH_TRIES) -> None:
        """Drop the prefix cache, which belongs to the old weights. A busy engine refuses: it is asked again, a bounded number of times."""
        deadline = time.monotonic() + timeout_s
        for attempt in range(1, tries + 1):
            try:
                self.request("POST", "/flush_cache", timeout_s=deadline - time.monotonic())
                return
            except EngineError:
                if attempt == tries or time.monotonic() + _FLUSH_PAUSE_S > deadline:
                    raise
                time.sleep(_FLUSH_PAUSE_S)

    def set_version(self, version: str, *, timeout_s: float) -> None:
        """What /model_info and every answer report from now on."""
        self.request("POST", "/update_weight_version", {"new_version": version, "abort_all_requests": False}, timeout_s=timeout_s)

    def init_group(self, *, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout_s: float) -> None:
        """Join a group for weight updates as `rank`, `rank` + 1 ... of `world_size`; blocks until all have joined."""
        body = {
            "master_address": address,
            "master_port": port,
            "rank_offset": rank,
            "world_size": world_size,
            "group_name": name,
            "backend": backend,
        }
        self.request("POST", "/init_weights_update_group", body, timeout_s=timeout_s)

    def destroy_group(self, name: str, *, timeout_s: float) -> None:
        """Leave a group."""
        self.request("POST", "/destroy_weights_update_group", {"group_name": name}, timeout_s=timeout_s)

    def begin_update(self, *, timeout_s: float) -> None:
        """Open an update session (0.5.22+); one that a failed push left open is closed first."""
        try:
            self.request("POST", "/begin_weight_update", {"selector": "all"}, timeout_s=timeout_s)
        except EngineError:
            self.end_update(timeout_s=timeout_s)
            self.request("POST", "/begin_weight_update", {"selector": "all"}, timeout_s=timeout_s)

    def end_update(self, *, timeout_s: float) -> None:
        """Close an update session (0.5.22+)."""
        self.request("POST", "/end_weight_update", {}, timeout_s=timeout_s)

    def update_from_distributed(self, specs: Sequence[TensorSpec], group: str, *, timeout_s: float) -> None:
        """Receive one flat bucket in a group, and load it; answers when it is loaded."""
        body = {
            "names": [spec.name for spec in specs],
            "dtypes": [spec.dtype for spec in specs],
            "shapes": [list(spec.shape) for spec in specs],
            "group_name": group,
            "load_format": "flattened_bucket",
            # True would kill a server that has requests in flight; one flush follows the last bucket.
            "flush_cache": False,
        }
        self.request("POST", "/update_weights_from_distributed", body, timeout_s=timeout_s)

    def update_from_tensor(self, serialized: str, *, timeout_s: float) -> None:
        """Load one flat bucket from memory that this process shares, as SGLang's MultiprocessingSerializer describes it."""
        body = {"serialized_named_tensors": [serialized], "load_format": "flattened_bucket", "flush_cache": False}
        self.request("POST", "/update_weights_from_tensor", body, timeout_s=timeout_s)

    def release_memory(self, *, timeout_s: float) -> None:
        """Give up the memory of weights, cache and graphs; no request must be in flight. The weights are lost."""
        self.request("POST", "/release_memory_occupation", {}, timeout_s=timeout_s)

    def resume_memory(self, *, timeout_s: float) -> None:
        """Take the memory back; the weights are not valid before the next push."""
        self.request("POST", "/resume_memory_occupation", {}, timeout_s=timeout_s)

    def update_from_disk(self, folder: str, *, timeout_s: float) -> None:
        """Load a checkpoint folder that the engine's node sees too."""
        body = {"model_path": folder, "load_format": "auto", "flush_cache": False}
        self.request("POST", "/update_weights_from_disk", body, timeout_s=timeout_s)

    def weight_version(self, *, timeout_s: float) -> str:
        """The version that the engine says it holds."""
        return str(self.request("GET", "/model_info", timeout_s=timeout_s)["weight_version"])

    def checksums(self, *, timeout_s: float) -> list[dict[str, str]]:
        """Checksum of every parameter that the engine holds, by SGLang's own names, of each of its ranks in order."""
        ranks = self.request("POST", "/weights_checker", {"action": "checksum"}, timeout_s=timeout_s)["ranks"]
        ordered = sorted(ranks, key=lambda rank: rank["parallelism_info"]["tp_rank"])
        return [rank["checksums"] for rank in ordered]

    def generate(self, input_ids: Sequence[int], sampling: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """One answer, with the log-prob of each of its tokens."""
        body = {"input_ids": list(input_ids), "sampling_params": sampling, "return_logprob": True}
        answer: dict[str, Any] = self.request("POST", "/generate", body, timeout_s=timeout_s)
        return answer


def _content(reply: requests.Response) -> Any:
    try:
        return reply.json()
    except requests.JSONDecodeError:
        return reply.text.strip()


class Engines:
    """All engines of a run, called side by side."""

    def __init__(self, endpoints: Sequence[Endpoint], token: str) -> None:
        self.each = [EngineApi(endpoint, token) for endpoint in endpoints]

    @property
    def num_calls(self) -> int:
        """Requests that the engines were sent since `count_anew`."""
        return sum(engine.num_calls for engine in self.each)

    def count_anew(self) -> None:
        """Set `num_calls` to 0."""
        for engine in self.each:
            engine.num_calls = 0

    def start(self, call: Callable[[EngineApi], T]) -> list[Future[T]]:
        """Begin a call to every engine, each on its own daemon thread: a stuck engine cannot keep this process from ending."""
        return [aside(functools.partial(call, engine)) for engine in self.each]

    def all(self, call: Callable[[EngineApi], T]) -> list[T]:
        """The answers of all engines, in their order. Raises EngineError with the words of every engine that failed."""
        return answers(self.start(call))


def aside(work: Callable[[], T]) -> Future[T]:
    """Do `work` on a daemon thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def answers(futures: Sequence[Future[T]]) -> list[T]:
    """Wait for all calls (each has its own timeout); their answers, or one EngineError for all that failed."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    failed = [error for error in errors if isinstance(error, EngineError)]
    for error in errors:
        if not isinstance(error, EngineError):
            raise error
    if failed:
        raise EngineError(
            "\n".join(error.what for error in failed), where=", ".join(error.where for error in failed), fix="see the engine's log"
        )
    return [future.result() for future in futures]
