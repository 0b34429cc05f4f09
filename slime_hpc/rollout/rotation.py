"""Which engines get requests: they and the router are found through their endpoint files, also when they come up again.

An engine that is gone leaves the rotation at once; one that has come up again enters it when it holds the weights that the others
generate with, which the trainer brings it (control API). Knows nothing of prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp

from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, read
from slime_hpc.errors import EngineError, RunError
from slime_hpc.observe import events
from slime_hpc.rollout.router_client import RouterClient
from slime_hpc.rollout.run_state import RunState

START_TIMEOUT_S = 1800.0
"""Time that router and engines have to come up: a large model from a cold file system takes many minutes."""
POLL_S = 0.5
_REGISTER_TIMEOUT_S = 120.0
_FIRST_TOKEN_TIMEOUT_S = 300.0


class Rotation:
    """The engines of one attempt, behind its router."""

    def __init__(self, context: RoleContext, state: RunState, session: aiohttp.ClientSession) -> None:
        self._context = context
        self._state = state
        self._session = session
        self._names = [f"{role.name}-{rank}" for role in context.plan.of_kind("engines") for rank in range(role.num_tasks)]
        self._router: Endpoint | None = None
        self._serving: dict[str, Endpoint] = {}
        self._lost: dict[str, float] = {}
        """When each engine that is down went, by name (monotonic)."""

    async def bring_up(self) -> None:
        """Wait for router and engines, join them, and make them generate a token.

        In an attempt that has had another controller, engines may be down or in the middle of a push: then those that are up will do.
        """
        self._router = await self._appear("router")
        if not self._had_another():
            engines = {name: await self._appear(name) for name in self._names}
            await self._client().register(list(engines.values()), timeout_s=_REGISTER_TIMEOUT_S)
            await self._client().generate_one(1, timeout_s=_FIRST_TOKEN_TIMEOUT_S)
            self._serving = engines
        self._state.engines = list(self._up().values())
        self._count()

    async def route(self) -> str:
        """The router's address, once an engine serves behind it."""
        while self._router is None or not self._serving:
            await asyncio.sleep(POLL_S / 5)
        return self._router.url

    async def watch(self) -> None:
        """Follow who comes and goes, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            # A router that dies in the middle of a call is found gone, and then come up again, by a later round.
            with contextlib.suppress(EngineError, aiohttp.ClientError, TimeoutError):
                await self._follow_router()
                await self._follow_engines()

    async def _follow_router(self) -> None:
        router = read(self._context.run.endpoint(self._context.attempt, "router"))
        if router == self._router:
            return
        self._router = None
        if router is not None:
            self._tell("router", "up")
            await RouterClient(router.url, self._context.token, self._session).register(
                list(self._serving.values()), timeout_s=_REGISTER_TIMEOUT_S
            )
            self._router = router

    async def _follow_engines(self) -> None:
        up = self._up()
        for name, engine in list(self._serving.items()):
            if up.get(name) != engine:
                del self._serving[name]
                self._lost.setdefault(name, time.monotonic())
                self._tell(name, "lost")
                self._count()
                await self._remove(engine)
        if list(up.values()) != self._state.engines:
            self._state.engines = list(up.values())
            self._state.change()
        for name, engine in up.items():
            if name not in self._serving and self._state.version is not None and engine in self._state.holding:
                await self._client().register([engine], timeout_s=_REGISTER_TIMEOUT_S)
                self._serving[name] = engine
                self._count()
                since = {"seconds": time.monotonic() - self._lost.pop(name)} if name in self._lost else {}
                self._tell(name, "serves", **since)

    def _up(self) -> dict[str, Endpoint]:
        """The engines that have an address now, by name."""
        found = {name: read(self._context.run.endpoint(self._context.attempt, name)) for name in self._names}
        return {name: endpoint for name, endpoint in found.items() if endpoint is not None}

    def _had_another(self) -> bool:
        return any(
            event["kind"] == "push" and event["attempt"] == self._context.attempt for event in events.read(self._context.run.metrics)
        )

    async def _remove(self, engine: Endpoint) -> None:
        # A router that is gone takes nothing, and its successor is told of those that serve alone.
        with contextlib.suppress(EngineError, aiohttp.ClientError, TimeoutError):
            await self._client().remove(engine)

    def _count(self) -> None:
        self._state.serving = bool(self._serving)
        self._state.change()

    def _client(self) -> RouterClient:
        if self._router is None:
            raise EngineError("There is no router.", where="router")
        return RouterClient(self._router.url, self._context.token, self._session)

    def _tell(self, name: str, what: str, **values: float) -> None:
        event = {"kind": "engine", "step": self._state.step, "attempt": self._context.attempt, "time": time.time()}
        events.append(self._context.run.metrics, {**event, "name": name, "what": what, **values})

    async def _appear(self, name: str) -> Endpoint:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if (endpoint := read(self._context.run.endpoint(self._context.attempt, name))) is not None:
                return endpoint
            await asyncio.sleep(0.1)
        raise RunError(f"{name} did not come up within {START_TIMEOUT_S:.0f} s.", where=name, fix="see its log with `slime-hpc logs`")
