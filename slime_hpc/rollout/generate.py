"""Answers to prompts: one request a sample to the router, in any order; samples come back in group order.

Every sample has a seed of its own, made from the run's seed, its group and its index, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from slime_hpc.config.schema import Rollout
from slime_hpc.data.sample import Finish
from slime_hpc.errors import EngineError

_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_REFUSALS = (400, 413, 422)
"""What is answered so is answered so again, however often it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One answer to generate."""

    group: int
    index: int
    prompt_tokens: Sequence[int]
    temperature: float
    max_tokens: int
    seed: int
    experts: tuple[int, int] | None = None
    """(layers, experts a token) of the model, to ask for the routes of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the engine generated."""

    tokens: list[int]
    logprobs: list[float]
    finish: Finish
    weight_version: int
    weight_version_last: int
    text: str
    routes_TLK: npt.NDArray[np.int16] | None = None
    """Where the request asked for them: (prompt + answer - 1, layers, experts a token)."""


@dataclass(slots=True)
class Counts:
    """What the client saw since it was made."""

    in_flight: int = 0
    """Requests asked for and not answered yet, those that wait for a slot or for their next try among them."""
    retries: int = 0
    last_error: str = field(default="")


class _Refused(Exception):
    """The request itself is at fault."""


def sample_seed(seed: int, group: int, index: int) -> int:
    """A seed for the engine, 31 bits, stable over platforms and versions."""
    digest = hashlib.sha256(f"{seed}/{group}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Generator:
    """Sends requests to the router, at most `rollout.concurrency` at a time; calls `on_idle` whenever none is in flight any more."""

    def __init__(
        self,
        route: Callable[[], Awaitable[str]],
        token: str,
        rollout: Rollout,
        *,
        session: aiohttp.ClientSession,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """`route`: waits until an engine serves; the router's address then."""
        self._route = route
        self._headers = {"Authorization": f"Bearer {token}"}
        self._rollout = rollout
        self._session = session
        self._on_idle = on_idle
        self._slots = asyncio.Semaphore(rollout.concurrency)
        self.counts = Counts()

    async def generate(self, requests: Sequence[Request]) -> list[Answer]:
        """One answer a request, in order. Raises EngineError with the engine's own text when one fails for good; the others are dropped."""
        tasks = [asyncio.create_task(self._one(request)) for request in requests]
        self.counts.in_flight += len(tasks)
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.counts.in_flight -= len(tasks)
            if self.counts.in_flight == 0:
                self._on_idle()

    async def _one(self, request: Request) -> Answer:
        async with self._slots:
            return await self._retried(request)

    async def _retried(self, request: Request) -> Answer:
        tries = self._rollout.request_retries + 1
        for attempt in range(1, tries + 1):
            try:
                return parse_answer(await self._post(request), request)
            except _Refused as refusal:
                size = f"{len(request.prompt_tokens)} prompt tokens and at most {request.max_tokens} new ones"
                raise EngineError(
                    f"An engine refuses a request of {size}: {refusal}",
                    where="router",
                    fix="see rollout.max_tokens, rollout.context_length and the length of the prompts",
                ) from refusal
            except (aiohttp.ClientError, TimeoutError, EngineError) as error:
                self.counts.last_error = f"{type(error).__name__}: {error}"
                if attempt < tries:
                    self.counts.retries += 1
                    await asyncio.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** (attempt - 1)))
        raise EngineError(
            f"No engine answered a request in {tries} tries; the last error: {self.counts.last_error}",
            where="router",
            fix="see the engines' logs; rollout.request_timeout_s and rollout.request_retries bound a request",
        )

    async def _post(self, request: Request) -> Any:
        timeout = aiohttp.ClientTimeout(total=self._rollout.request_timeout_s)
        url = f"{await self._route()}/generate"
        async with self._session.post(url, json=self._body(request), headers=self._headers, timeout=timeout) as response:
            text = await response.text()
            if response.status == 200:
                return _json(text)
            words = f"HTTP {response.status}: {text[:500]}"
            if response.status in _REFUSALS:
                raise _Refused(words)
            raise EngineError(words, where="router")

    def _body(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "temperature": request.temperature,
            "max_new_tokens": request.max_tokens,
            "sampling_seed": request.seed,
            "no_stop_trim": True,
            "skip_special_tokens": True,
        }
        if self._rollout.top_p < 1.0:
            parameters["top_p"] = self._rollout.top_p
        if self._rollout.stop:
            parameters["stop"] = self._rollout.stop
        routed = {"return_routed_experts": True} if request.experts else {}
        asked = {"sampling_params": parameters, "return_logprob": True, "stream": False, **routed}
        return {"input_ids": list(request.prompt_tokens), **asked}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise EngineError(f"The engine's reply is not JSON: {text[:300]}", where="router") from error


def parse_answer(reply: Any, request: Request) -> Answer:
    """An engine's reply as an answer. Raises EngineError when it is not one, although its status was 200."""
    try:
        meta = reply["meta_info"]
        entries = meta["output_token_logprobs"]
        tokens, logprobs = [int(entry[1]) for entry in entries], [float(entry[0]) for entry in entries]
        reason = meta["finish_reason"]["type"]
        spans = meta.get("weight_versions") or []
        first, last = (spans[0]["version"], spans[-1]["version"]) if spans else (meta["weight_version"],) * 2
        versions = int(first), int(last)
        text = str(reply["text"])
        routes = _routes(meta["routed_experts"], len(request.prompt_tokens) + len(tokens) - 1, request.experts) if request.experts else None
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EngineError(
            f"The engine's reply is no generation ({type(error).__name__}: {error}): {str(reply)[:300]}", where="router"
        ) from error
    if not tokens or len(tokens) > request.max_tokens or not np.isfinite(logprobs).all():
        raise EngineError(
            f"The engine returned {len(tokens)} tokens of at most {request.max_tokens}, or a log-prob that is no number.", where="router"
        )
    if reason not in ("stop", "length"):
        raise EngineError(f"The engine ended a request with {meta['finish_reason']}.", where="router")
    finish = Finish.STOP if reason == "stop" else Finish.LENGTH
    return Answer(
        tokens=tokens, logprobs=logprobs, finish=finish, weight_version=versions[0], weight_version_last=versions[1], text=text,
        routes_TLK=routes,
    )  # fmt: skip


def _routes(encoded: str, tokens: int, experts: tuple[int, int]) -> npt.NDArray[np.int16]:
    """(tokens, layers, experts a token) from base64 of int32; ValueError for another number of them."""
    flat = np.frombuffer(base64.b64decode(encoded), np.int32)
    return flat.reshape(tokens, *experts).astype(np.int16)
