"""The server of the control API (`control.api`): authenticates, checks, and turns requests into changes of the run's state.

Long calls are polls: 204 says "not yet, ask again". 409 says that the run cannot go on, and why; 412 that no trainer is known yet.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import RunError
from slime_hpc.observe import events
from slime_hpc.rollout.run_state import RunState

MAX_BODY = 1 << 20
MAX_WAIT_S = 30.0
_KINDS = ("warm_start", "train", "push", "checkpoint")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlServer:
    """Routes of one run."""

    def __init__(self, state: RunState, *, token: str, attempt: int) -> None:
        self._state = state
        self._token = token
        self._attempt = attempt

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._authenticate, self._errors], client_max_size=MAX_BODY)
        app.add_routes(
            [
                web.post("/v1/trainer", self._trainer),
                web.post("/v1/weights/begin", self._begin),
                web.post("/v1/weights/commit", self._commit),
                web.get(r"/v1/batches/{step:\d+}", self._batch),
                web.post("/v1/events", self._event),
                web.post("/v1/finish", self._finish),
                web.get("/v1/status", self._status),
            ]
        )
        return app

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._token.encode()):
            return web.json_response({"error": "missing or wrong bearer token"}, status=401)
        return await handler(request)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RunError as error:
            return web.json_response({"error": error.what, "where": error.where, "fix": error.fix}, status=409)
        except (KeyError, TypeError, ValueError) as error:
            return web.json_response({"error": f"bad request: {type(error).__name__}: {error}"}, status=400)

    async def _trainer(self, request: web.Request) -> web.Response:
        body = await _body(request)
        attempt, step = int(body["attempt"]), int(body["step"])
        state = self._state
        if attempt != self._attempt:
            raise RunError(f"The trainer is of attempt {attempt}; this is attempt {self._attempt}.", where="control API")
        if not await state.wait(lambda: state.engines is not None, timeout_s=_wait_s(request)):
            return web.Response(status=204)
        known = state.trainer
        # The same registration may come again when its answer was lost; only another step, or one after a commit, is a restart.
        if known is None or known.step != step or state.version is not None:
            state.register(attempt, step)
            events.append(state.run.metrics, self._stamp({"kind": "attempt", "step": step}))
        assert state.engines is not None
        return web.json_response({"engines": [asdict(engine) for engine in state.engines]})

    async def _begin(self, request: web.Request) -> web.Response:
        body = await _body(request)
        version, behind, state = int(body["version"]), bool(body.get("behind", False)), self._state
        self._require_trainer()
        if behind and version == state.version:
            return web.json_response({"engines": [asdict(engine) for engine in state.behind()]})
        if not await state.wait(lambda: state.in_flight() == 0 and bool(state.engines), timeout_s=_wait_s(request)):
            return web.Response(status=204)
        state.version = None
        return web.json_response({"engines": [asdict(engine) for engine in state.engines or []]})

    async def _commit(self, request: web.Request) -> web.Response:
        body = await _body(request)
        version, engines, metrics = int(body["version"]), [Endpoint(**engine) for engine in body["engines"]], body["metrics"]
        self._require_trainer()
        if metrics is not None:
            kind = "catch_up" if version == self._state.version else "push"
            events.append(self._state.run.metrics, self._stamp({"kind": kind, "step": version, **metrics}))
        self._state.hold(version, engines)
        return web.json_response({})

    async def _batch(self, request: web.Request) -> web.Response:
        state, step = self._state, int(request.match_info["step"])
        self._require_trainer()
        if not await state.wait(lambda: step in state.batches or bool(state.behind()), timeout_s=_wait_s(request)):
            return web.Response(status=204)
        return web.json_response({"path": str(state.batches[step])} if step in state.batches else {"behind": True})

    async def _event(self, request: web.Request) -> web.Response:
        event = await _body(request)
        if event.get("kind") not in _KINDS or not isinstance(event.get("step"), int):
            raise ValueError(f"an event has a kind ({', '.join(_KINDS)}) and a step")
        events.append(self._state.run.metrics, self._stamp(event))
        return web.json_response({})

    async def _finish(self, request: web.Request) -> web.Response:
        int((await _body(request))["step"])
        self._require_trainer()
        self._state.finished = True
        self._state.change()
        return web.json_response({})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._state.status())

    def _require_trainer(self) -> None:
        if self._state.trainer is None:
            raise web.HTTPPreconditionFailed(text='{"error": "no trainer has registered"}', content_type="application/json")

    def _stamp(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "attempt": self._attempt, "time": time.time()}


async def _body(request: web.Request) -> dict[str, Any]:
    value = await request.json()
    if not isinstance(value, dict):
        raise ValueError("the body is not a JSON object")
    return value


def _wait_s(request: web.Request) -> float:
    return min(MAX_WAIT_S, float(request.query.get("wait_s", 0.0)))
