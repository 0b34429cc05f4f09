"""The trainer's side of the control API: HTTP to the controller, with waits that end and errors that say why.

Waiting calls are long polls: the controller answers 204 while there is nothing yet, so a silent controller and a slow one are told apart.
Connection errors are tried again a bounded number of times (a controller may be restarted); an answer is never asked for twice,
except where asking twice is harmless. Knows no torch.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import requests

from slime_hpc.control.api import BatchReady, EnginesBehind, never
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, wait_for
from slime_hpc.errors import RunError

_ROLE = "controller"
_FIND_TIMEOUT_S = 600.0
_POLL_S = 25
_BATCH_POLL_S = 5
"""Shorter: a trainer that is to be parked has little time."""
_CONNECT_TIMEOUT_S = 10.0
_REPLY_TIMEOUT_S = 60.0
_ATTEMPTS = 5
_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


class ControllerClient:
    """`control.api.Controller` over HTTP. Finds the controller through its endpoint file, and waits for that."""

    def __init__(self, context: RoleContext) -> None:
        self._path = context.run.endpoint(context.attempt, _ROLE)
        self._session = requests.Session()
        self._session.headers.update({"Authorization": f"Bearer {context.token}", "Content-Type": "application/json"})
        self._registered: dict[str, Any] = {}
        self._committed: dict[str, Any] = {}
        wait_for(self._path, timeout_s=_FIND_TIMEOUT_S)

    def register(self, *, attempt: int, step: int) -> list[Endpoint]:
        """Say that the trainer holds the weights of `step`; wait for and return the engines."""
        self._registered = {"attempt": attempt, "step": step}
        answer = self._wait("POST", "/v1/trainer", self._registered)
        return [Endpoint(**engine) for engine in answer["engines"]]

    def begin_weights(self, version: int, *, behind: bool = False) -> list[Endpoint]:
        """The engines to write to, once they are idle; `behind`: those alone that lack `version`."""
        answer = self._wait("POST", "/v1/weights/begin", {"version": version, "behind": behind})
        return [Endpoint(**engine) for engine in answer["engines"]]

    def commit_weights(self, version: int, engines: Sequence[Endpoint], metrics: dict[str, float]) -> None:
        """Say that `engines` hold `version`."""
        told = [asdict(engine) for engine in engines]
        self._ask("POST", "/v1/weights/commit", {"version": version, "engines": told, "metrics": metrics})
        before = self._committed["engines"] if self._committed.get("version") == version else []
        self._committed = {"version": version, "engines": [*before, *told], "metrics": None}

    def next_batch(self, step: int, *, stopped: Callable[[], bool] = never) -> BatchReady | EnginesBehind | None:
        """Wait for the batch of `step`, or for engines that lack weights; None once `stopped`, which is asked before each poll."""
        while not stopped():
            if (answer := self._ask("GET", f"/v1/batches/{step}", None, wait_s=_BATCH_POLL_S)) is not None:
                return EnginesBehind() if answer.get("behind") else BatchReady(step=step, path=Path(answer["path"]))
        return None

    def report(self, kind: str, **values: Any) -> None:
        """Append one event to the run's metrics."""
        self._ask("POST", "/v1/events", {"kind": kind, **values})

    def finish(self, step: int) -> None:
        """Say that the last step is trained, pushed and saved."""
        self._ask("POST", "/v1/finish", {"step": step})

    def _wait(self, method: str, route: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Ask until there is an answer. Ends with RunError when the controller gives the run up or is gone."""
        while True:
            answer = self._ask(method, route, body, wait_s=_POLL_S)
            if answer is not None:
                return answer

    def _introduce(self) -> None:
        """Tell a controller that was started again what its predecessor knew: who the trainer is, and which engines hold what."""
        version = self._committed.get("version", self._registered["step"])
        while self._ask("POST", "/v1/trainer", {**self._registered, "step": version}, wait_s=_POLL_S) is None:
            pass
        if self._committed:
            self._ask("POST", "/v1/weights/commit", self._committed)

    def _ask(self, method: str, route: str, body: dict[str, Any] | None, *, wait_s: int = 0) -> dict[str, Any] | None:
        """One request, sent again on connection errors and to a new controller; None when the controller says 'not yet' (204)."""
        query = {"wait_s": wait_s} if wait_s else None
        # Not `json=`, which refuses a loss that is no number; the run's metrics must be able to say so.
        data = None if body is None else json.dumps(body)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                reply = self._session.request(
                    method, self._url(route), data=data, params=query, timeout=(_CONNECT_TIMEOUT_S, wait_s + _REPLY_TIMEOUT_S)
                )
                if reply.status_code == requests.codes.precondition_failed and self._registered:
                    self._introduce()
                    continue
                return _answer(reply, route)
            except (requests.ConnectionError, requests.Timeout) as error:
                if attempt == _ATTEMPTS:
                    raise RunError(
                        f"The controller does not answer {method} {route}: {error}", where=self._where(), fix="see the controller's log"
                    ) from error
                _log.warning("The controller does not answer %s %s (attempt %d of %d): %s", method, route, attempt, _ATTEMPTS, error)
                time.sleep(_PAUSE_S * attempt)
        raise RunError(f"The controller was started again {_ATTEMPTS} times during {method} {route}.", where=self._where())

    def _url(self, route: str) -> str:
        # Read anew each time: a controller that is started again listens elsewhere, and its address is gone until it does.
        return wait_for(self._path, timeout_s=_FIND_TIMEOUT_S).url + route

    def _where(self) -> str:
        return f"{_ROLE} ({self._path})"


def _answer(reply: requests.Response, route: str) -> dict[str, Any] | None:
    """The JSON of a good answer, None for 204. Raises RunError with the controller's own words for any other."""
    if reply.status_code == requests.codes.no_content:
        return None
    try:
        value: Any = reply.json() if reply.content else {}
    except requests.JSONDecodeError:
        value = {"error": reply.text}
    if reply.ok and isinstance(value, dict):
        return value
    words = value if isinstance(value, dict) else {"error": str(value)}
    what = words.get("error") or f"The controller answered {reply.status_code} to {route}."
    raise RunError(str(what), where=str(words.get("where") or f"{_ROLE}, {route}"), fix=str(words.get("fix") or ""))
