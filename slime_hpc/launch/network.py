"""The address at which other nodes reach this one."""

from __future__ import annotations

import os
import socket

import psutil

from slime_hpc.errors import RunError
from slime_hpc.topology.schema import Topology


def own_address(topology: Topology) -> str:
    """IPv4 address of the topology's interface, else of this node's name; loopback on a local topology. Raises RunError."""
    if topology.scheduler.kind == "local":
        return "127.0.0.1"
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if topology.network.interface is not None:
        return _of_interface(topology.network.interface, node)
    try:
        address = socket.gethostbyname(node)
    except OSError as error:
        raise RunError(
            f"The name of node {node} does not resolve: {error}.",
            where="network.interface",
            fix="name the fabric's interface in the topology",
        ) from error
    if address.startswith("127."):
        raise RunError(
            f"Node {node} resolves to {address}, where no other node reaches it.",
            where="network.interface",
            fix="name the fabric's interface",
        )
    return address


def _of_interface(name: str, node: str) -> str:
    interfaces = psutil.net_if_addrs()
    for address in interfaces.get(name, []):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise RunError(
        f"Node {node} has no IPv4 address on interface {name!r}; it has {', '.join(sorted(interfaces))}.",
        where="network.interface",
        fix="name one of these",
    )
