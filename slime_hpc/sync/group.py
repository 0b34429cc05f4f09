"""The process group between the trainer's rank 0 and the ranks of all engines, built as SGLang builds its side.

SGLang joins with `init_custom_process_group`: a TCPStore wrapped in a PrefixStore of the group's name. Any other way to build it leaves
both sides waiting for keys that never come. The store listens on the trainer's address only, and exists as long as the group.
Knows neither HTTP nor what is sent.
"""

from __future__ import annotations

import datetime
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from slime_hpc.control.interface import collective_environment
from slime_hpc.errors import WeightPushError

_POLL_S = 0.0005
_GLOO_SLACK_S = 10.0
"""gloo ends an operation at its own timeout, some time late; destroying the group before that would end the process."""


class WeightGroup:
    """Rank 0 of a group whose other ranks are engines."""

    def __init__(self, name: str, *, address: str, backend: str, timeout_s: float) -> None:
        """Open the store that the engines join through; `port` is where."""
        self.name = name
        self.backend = backend
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = None
        listener = socket.create_server((address, 0), backlog=1024)
        self.port: int = listener.getsockname()[1]
        self._store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            address, self.port, None, True, self._timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        for variable, value in collective_environment(address).items():
            os.environ.setdefault(variable, value)

    def join(self, world_size: int) -> None:
        """Join as rank 0; returns when all have joined. Raises WeightPushError when they have not in time."""
        if dist.is_initialized() and c10d._get_default_group().bound_device_id is not None and self.backend == "nccl":
            # NCCL would split the new group off the default one, which only rank 0 takes part in: a hang.
            raise WeightPushError(
                "The trainer's default process group is bound to a device; a group with engines cannot be split off it.",
                fix="call init_process_group without device_id",
            )
        try:
            group, _ = c10d._new_process_group_helper(
                world_size,
                0,
                [],
                dist.Backend(self.backend),
                c10d.PrefixStore(self.name, self._store),
                group_name=self.name,  # type: ignore[arg-type]
                timeout=self._timeout,
            )
        except (RuntimeError, ValueError) as error:
            raise WeightPushError(f"Not all engines joined the group for weights: {error}", where=self.name) from error
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
        self._group = group

    def broadcast(self, data: torch.Tensor, *, deadline: float, failed: Callable[[], bool]) -> None:
        """Send `data` to all engines; returns when it is sent. `deadline` is a time of time.monotonic().

        Raises WeightPushError when it is not sent by then. `failed` says that an engine will not receive: NCCL is then aborted at once;
        gloo cannot be, and ends at the deadline (or at once, when the engine's connection is gone).
        """
        assert self._group is not None, "join first"
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = datetime.timedelta(seconds=max(deadline - time.monotonic(), 0.001))
        last = deadline if self.backend == "nccl" else deadline + _GLOO_SLACK_S
        try:
            work = self._group.broadcast([data], options)
            while not work.is_completed():
                if time.monotonic() > last or (self.backend == "nccl" and failed()):
                    self._abort()
                    raise WeightPushError("The broadcast of weights did not end: an engine does not take part in it.", where=self.name)
                time.sleep(_POLL_S)
            work.wait()
        except RuntimeError as error:
            raise WeightPushError(f"The broadcast of weights failed: {error}", where=self.name) from error

    def _abort(self) -> None:
        if self._group is not None and self.backend == "nccl":
            self._group.abort()

    def leave(self) -> None:
        """Close this side's connections, which ends what engines still wait for; safe to call twice."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None
        self._store = None
