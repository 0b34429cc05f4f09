"""Whether this machine can prepare a run as the topology says: files, memory, containers, packages, ports."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from slime_hpc.plan.job import PORTS_PER_TASK
from slime_hpc.site.ask import Ask
from slime_hpc.site.check import Check, fail, ok, warn
from slime_hpc.topology.schema import Topology

PACKAGES = ("torch", "megatron-core", "sglang", "sglang-router", "submitit", "transformers", "safetensors", "numpy", "h5py", "aiohttp")
"""Distributions that the roles import."""
_OWN_MACHINE = frozenset({"tmpfs", "ramfs", "overlay", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs"})
_SHM_GIB = 1.0
_FREE_GIB = 10.0
_OPEN_FILES = 4096
_GIB = 2.0**30
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def machine_checks(topology: Topology, runs: Path, ask: Ask) -> Iterator[Check]:
    """All of them. Writes and removes one file in the nearest folder above `runs` that exists."""
    yield ok("python", f"{sys.version.split()[0]}, {sys.executable}")
    yield from folder_checks(runs, shared=topology.scheduler.kind == "slurm")
    yield _shm(Path("/dev/shm"))
    yield container_check(topology, ask)
    yield packages_check(needed=topology.container.runtime == "none")
    yield ports_check(topology, _PORT_RANGE.read_text(encoding="ascii"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield (
        ok("open files", f"{soft}")
        if soft >= _OPEN_FILES
        else warn(
            "open files",
            f"at most {soft} (hard limit {hard}): a router with many requests in flight needs more",
            f"ulimit -n {_OPEN_FILES}",
        )
    )


def folder_checks(runs: Path, *, shared: bool) -> Iterator[Check]:
    """What run folders need of a file system: atomic rename, fsync of files and folders, room, and eyes on other nodes."""
    folder = next(path for path in (runs, *runs.parents) if path.is_dir())
    try:
        _canary(folder)
    except OSError as error:
        yield fail("runs", f"{folder}: {error.strerror} ({error.filename})", "choose another folder with the key `runs`")
        return
    yield ok("runs", f"{folder}: files are written, synced, renamed and read back")
    kind = _file_system(folder.resolve())
    if shared and kind in _OWN_MACHINE:
        yield warn(
            "shared file system", f"{folder} is on {kind}, which other nodes rarely see", "set `runs` to a folder that all nodes see"
        )
    else:
        yield ok("shared file system", kind)
    free = shutil.disk_usage(folder).free / _GIB
    yield (
        ok("free space", f"{free:.0f} GiB")
        if free >= _FREE_GIB
        else warn("free space", f"{free:.1f} GiB: checkpoints need about 16 bytes a parameter each", "make room, or lower checkpoint.keep")
    )


def _canary(folder: Path) -> None:
    """As batches and endpoint files are published. Raises OSError for what goes wrong, also when other text is read back."""
    text = secrets.token_hex(16)
    draft, final = (folder / f".slime-hpc-canary-{text}{suffix}" for suffix in (".tmp", ""))
    try:
        with draft.open("x", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        final.write_text("old", encoding="ascii")
        draft.replace(final)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if final.read_text(encoding="ascii") != text:
            raise OSError(0, "a file that was renamed reads as the old one", str(final))
    finally:
        draft.unlink(missing_ok=True)
        final.unlink(missing_ok=True)


def _file_system(folder: Path) -> str:
    """Type of the file system that a folder lies on: of the mount with the longest path, the last one mounted there."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    found = [(len(place), index, kind) for index, (place, kind) in enumerate(mounts) if folder.is_relative_to(place)]
    return max(found, default=(0, 0, "unknown"))[2]


def _shm(folder: Path) -> Check:
    if not folder.is_dir():
        return fail("/dev/shm", "there is none", "mount one: NCCL and the data loaders need it")
    total = shutil.disk_usage(folder).total / _GIB
    if total < _SHM_GIB:
        return warn("/dev/shm", f"{total:.2f} GiB: NCCL fails where it is full", "make it larger; look at the compute nodes' too")
    return ok("/dev/shm", f"{total:.1f} GiB here; the compute nodes may differ")


def container_check(topology: Topology, ask: Ask) -> Check:
    """Whether the topology's runtime is there."""
    runtime = topology.container.runtime
    if runtime == "none":
        return ok("container", "none is used")
    if runtime == "pyxis":
        if "--container-image" in (ask("srun", "--help") or ""):
            return ok("container", "srun has Pyxis's options")
        return fail("container", "srun has no --container-image: Pyxis is not loaded here", "ask the site, or set container.runtime")
    version = ask(runtime, "--version" if runtime == "apptainer" else "version")
    if version is not None:
        return ok("container", f"{runtime} {version.split()[-1] if version.split() else ''}")
    return warn(
        "container",
        f"{runtime} does not run here; compute nodes may have it",
        f"load its module, name it in `modules`, or see `which {runtime}`",
    )


def packages_check(*, needed: bool) -> Check:
    """Which of the roles' packages this Python has."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing and needed:
        return fail("packages", f"missing: {', '.join(missing)}", "install slime-hpc[gpu] (on a CPU cluster [cpu]), or run in a container")
    if missing:
        return ok("packages", f"not here: {', '.join(missing)}; the image must have them")
    return ok("packages", ", ".join(found))


def ports_check(topology: Topology, port_range: str) -> Check:
    """Whether the roles' ports are out of the range that the kernel hands out to outgoing connections; `port_range`: its two numbers."""
    first, last = map(int, port_range.split())
    # Two sidecars, and at most one task of trainer and engines for each GPU of a node.
    wanted = topology.network.port_first, topology.network.port_first + (2 + topology.node.gpus) * PORTS_PER_TASK - 1
    text = f"{wanted[0]}-{wanted[1]}, ephemeral ones {first}-{last}"
    if wanted[0] <= last and first <= wanted[1]:
        return warn(
            "ports", f"{text}: any connection may take one of them first", f"set network.port_first below {first - (wanted[1] - wanted[0])}"
        )
    return ok("ports", text)
