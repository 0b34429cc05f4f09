"""What rank 0 learns from the controller, told to the other ranks through the trainers' store.

The others wait there and not in a collective: a rollout may take longer than any collective's timeout, and the store ends with rank 0.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from slime_hpc.errors import RunError, SlimeError

_POLL_S = 1.0
"""A wait inside the store hears no signal: it must be short."""


class Relay:
    """Rank 0 asks, all ranks get the answer or the error."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = PrefixStore("relay", store)
        self._rank = rank
        self._count = 0

    def ask(self, call: Callable[[], Any]) -> Any:
        """The JSON value of `call`, made on rank 0 alone. Raises RunError on all ranks when it raised. All ranks ask in the same order."""
        self._count += 1
        key = str(self._count)
        if self._rank != 0:
            return _value(self._wait(key))
        try:
            value = call()
        except SlimeError as error:
            self._store.set(key, json.dumps({"what": error.what, "where": error.where, "fix": error.fix}))
            raise
        self._store.set(key, json.dumps({"value": value}))
        return value

    def _wait(self, key: str) -> bytes:
        while True:
            try:
                self._store.wait([key], datetime.timedelta(seconds=_POLL_S))
                return bytes(self._store.get(key))
            except dist.DistStoreError:
                continue
            except RuntimeError as error:
                raise RunError("Rank 0 of the trainer is gone.", where="trainer rank 0", fix="see its log") from error


def _value(text: bytes) -> Any:
    told = json.loads(text)
    if "what" in told:
        raise RunError(told["what"], where=told["where"], fix=told["fix"])
    return told["value"]
