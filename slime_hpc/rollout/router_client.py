"""Registers engines at the router, and makes sure that a token really comes back through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import EngineError


class RouterClient:
    """The router's own API."""

    def __init__(self, url: str, token: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._token = token
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}

    async def register(self, engines: Sequence[Endpoint], *, timeout_s: float) -> None:
        """Add all engines and wait until the router lists them. Raises EngineError naming the missing ones."""
        for engine in engines:
            await self._post("/workers", {"url": engine.url, "api_key": self._token})
        deadline = time.monotonic() + timeout_s
        missing = {engine.url for engine in engines}
        while missing and time.monotonic() < deadline:
            listed = {worker["url"].rstrip("/") for worker in (await self._get("/workers"))["workers"] if worker.get("is_healthy", True)}
            missing = {engine.url for engine in engines} - listed
            await asyncio.sleep(0.1)
        if missing:
            raise EngineError(f"The router did not take {', '.join(sorted(missing))} within {timeout_s:.0f} s.", where="router")

    async def remove(self, engine: Endpoint) -> None:
        """Send nothing to an engine any more."""
        for worker in (await self._get("/workers"))["workers"]:
            if worker["url"].rstrip("/") == engine.url:
                await self._request("DELETE", f"/workers/{worker['id']}")

    async def generate_one(self, token_id: int, *, timeout_s: float) -> None:
        """Ask for one token until one comes. Raises EngineError with the last answer."""
        deadline = time.monotonic() + timeout_s
        body = {"input_ids": [token_id], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
        while True:
            try:
                await self._post("/generate", body)
                return
            except (EngineError, aiohttp.ClientError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise EngineError(f"No token came through the router within {timeout_s:.0f} s: {error}", where="router") from error
                await asyncio.sleep(0.5)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._request("POST", path, body)

    async def _get(self, path: str) -> Any:
        return await self._request("GET", path)

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        timeout = aiohttp.ClientTimeout(total=60)
        async with self._session.request(method, self._url + path, json=body, headers=self._headers, timeout=timeout) as response:
            if response.status >= 300:
                raise EngineError(f"{path} answered HTTP {response.status}: {(await response.text())[:300]}", where="router")
            return await response.json(content_type=None)
