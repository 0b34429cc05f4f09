"""What this machine says of its GPUs, its network and its container runtimes. On a login node some of it is missing or differs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slime_hpc.site.ask import Ask

_FABRIC = re.compile(r"^(ib|hsn)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """One machine."""

    gpu_name: str
    gpu_memory_gib: int
    """0 where nvidia-smi does not answer."""
    interfaces: tuple[str, ...]
    """Those with an IPv4 address, without the loopback."""
    adapters: tuple[str, ...]
    """Names of InfiniBand adapters whose link is InfiniBand and active."""
    runtimes: tuple[str, ...]

    @property
    def fabric_interface(self) -> str | None:
        """The interface that bears a fabric's usual name."""
        return next((name for name in self.interfaces if _FABRIC.match(name)), None)


def machine_facts(ask: Ask) -> MachineFacts:
    """Questions to nvidia-smi, ip, ibv_devinfo and the container runtimes."""
    name, memory_mib = parse_gpus(ask("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits") or "")
    return MachineFacts(
        gpu_name=name,
        gpu_memory_gib=memory_mib // 1024,
        interfaces=parse_interfaces(ask("ip", "-brief", "-4", "address") or ""),
        adapters=parse_adapters(ask("ibv_devinfo") or ""),
        runtimes=tuple(
            name for name, command in (("apptainer", ("apptainer", "--version")), ("enroot", ("enroot", "version"))) if ask(*command)
        ),
    )


def parse_gpus(text: str) -> tuple[str, int]:
    """Name and MiB of the smallest GPU; ("", 0) without one."""
    found = []
    for line in text.splitlines():
        name, _, memory = line.rpartition(",")
        if memory.strip().isdigit():
            found.append((int(memory), name.strip()))
    memory_mib, name = min(found, default=(0, ""))
    return name, memory_mib


def parse_interfaces(text: str) -> tuple[str, ...]:
    """Lines `eth0@if7  UP  10.0.0.5/24`."""
    rows = (line.split() for line in text.splitlines())
    return tuple(row[0].partition("@")[0] for row in rows if len(row) > 2 and row[1] in ("UP", "UNKNOWN") and row[0] != "lo")


def parse_adapters(text: str) -> tuple[str, ...]:
    """Blocks that begin with `hca_id:`."""
    adapters = []
    for block in re.split(r"^hca_id:", text, flags=re.MULTILINE)[1:]:
        if re.search(r"link_layer:\s*InfiniBand", block) and "PORT_ACTIVE" in block:
            adapters.append(block.split()[0])
    return tuple(adapters)
