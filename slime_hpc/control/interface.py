"""Which network interface bears an address: what gloo and NCCL must be told, or they take the one of the host's name."""

from __future__ import annotations

from typing import Any

import psutil

_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interface_of(address: str) -> str | None:
    """Name of the interface of this machine that has the IP address, or None."""
    interfaces: dict[str, list[Any]] = psutil.net_if_addrs()
    for name, addresses in interfaces.items():
        if any(entry.address == address for entry in addresses):
            return name
    return None


def collective_environment(address: str) -> dict[str, str]:
    """Environment variables that keep collectives on the interface of `address`; empty when no interface has it."""
    name = interface_of(address)
    return dict.fromkeys(_VARIABLES, name) if name else {}
