"""From a topology file to a Topology, or to an error that names file and key."""

from __future__ import annotations

from slime_hpc import assets
from slime_hpc.config.load import read_toml, validate
from slime_hpc.topology.schema import Topology


def load_topology(name: str) -> Topology:
    """A topology by the name of a shipped file, or by path. Raises ConfigError."""
    path = assets.find("topologies", name, where="topology")
    return validate(Topology, read_toml(path), {}, default_origin=str(path))
