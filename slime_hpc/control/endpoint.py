"""Addresses of a run's ports: one small file each, published by rename, one folder an attempt.

A file of an earlier attempt lies in another folder, so nobody can connect to a dead process by mistake.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slime_hpc.errors import RunError
from slime_hpc.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a role listens."""

    role: str
    rank: int
    host: str
    """IP address."""
    port: int
    node: str
    """Name of the node, for people."""
    pid: int
    gpus: int = 0
    """Engines: tensor-parallel size."""
    started: float = 0.0
    """Unix seconds: a server that is started again may get the port and the pid of the one before."""

    @property
    def url(self) -> str:
        """As an HTTP address."""
        return f"http://{self.host}:{self.port}"


def write_atomic(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Publish a small file by rename: a reader sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def publish(path: Path, endpoint: Endpoint) -> None:
    """Make an address known."""
    write_atomic(path, json.dumps(asdict(endpoint)))


def unpublish(run: RunFolder, attempt: int, role: str) -> None:
    """Forget the addresses of all tasks of a role, which are gone: those that are called like it, with "-" and more."""
    path = run.endpoint(attempt, role)
    for each in (path, *path.parent.glob(f"{glob.escape(role)}-*.json")):
        each.unlink(missing_ok=True)


def read(path: Path) -> Endpoint | None:
    """The address, or None while it is not there."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Endpoint(**value)


def wait_for(path: Path, *, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> Endpoint:
    """Wait until an address is published. Raises RunError when it is not, in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not stopped():
        if (endpoint := read(path)) is not None:
            return endpoint
        time.sleep(0.1)
    raise RunError(
        f"{path.stem} did not publish its address within {timeout_s:.0f} s.",
        where=str(path),
        fix=f"see the log of {path.stem} with `slime-hpc logs`",
    )


def free_port(host: str, first: int, *, tries: int = 200) -> int:
    """The first port from `first` on that can be bound on `host`. Raises RunError when there is none."""
    for port in range(first, first + tries):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise RunError(
        f"No free port in {first}-{first + tries - 1} on {host}.", fix="set network.port_first in the topology file to a free range"
    )
