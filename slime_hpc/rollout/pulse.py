"""Whether an engine that is up still generates: it is asked for a token now and then, and silence counts from the last one.

SGLang's /health_generate answers as soon as any token comes, also another request's, so that a busy engine is never called dead; and only
a silence of minutes counts, never one failed question. An engine that takes new weights generates nothing and is not asked: a push
has a timeout of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time

import requests

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import EngineError

PERIOD_S = 10.0
"""At most this much, and a tenth of the silence, between two questions."""
_ANSWER_S = 30.0
"""SGLang gives the question up after 20 s."""


class Pulse:
    """Asks in a thread of its own from the start on; a context manager."""

    def __init__(self, endpoint: Endpoint, token: str, *, silence_s: float) -> None:
        self._endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}"}
        self._silence_s = silence_s
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name=f"pulse of {endpoint.role}", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()

    def check(self) -> None:
        """Raise EngineError when the engine has been silent for too long."""
        silent_s = time.monotonic() - self._last
        if silent_s > self._silence_s:
            raise EngineError(
                f"{self._endpoint.role} was asked for a token and gave none for {silent_s:.0f} s.",
                where=self._endpoint.role,
                fix="it is started again; failure.engine_silence_s sets how long a silence may be",
            )

    def _ask(self) -> None:
        while not self._stop.wait(min(PERIOD_S, self._silence_s / 10)):
            with contextlib.suppress(requests.RequestException):
                if self._takes_weights() or self._get("/health_generate").ok:
                    self._last = time.monotonic()

    def _takes_weights(self) -> bool:
        reply = self._get("/model_info")
        return reply.ok and str(reply.json().get("weight_version", "")).startswith("incomplete")

    def _get(self, route: str) -> requests.Response:
        return requests.get(self._endpoint.url + route, headers=self._headers, timeout=min(_ANSWER_S, self._silence_s))
