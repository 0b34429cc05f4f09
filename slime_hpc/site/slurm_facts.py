"""What Slurm says of a cluster: version, configuration, partitions and their nodes. Text only; `--json` differs in every release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slime_hpc.site.ask import Ask

_SINFO = ("sinfo", "--exact", "--noheader", "--format=%P|%D|%c|%m|%G|%l|%a")
_GPU = re.compile(r"\bgpu(?::([A-Za-z][\w.-]*))?:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of one partition that are alike."""

    partition: str
    is_default: bool
    nodes: int
    cpus: int
    memory_mib: int
    gpus: int
    gpu_type: str
    max_time: str
    """As Slurm writes it, or "infinite"."""
    is_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """A cluster; empty where nothing answered."""

    version: str
    config: Mapping[str, str]
    """`scontrol show config`."""
    groups: tuple[NodeGroup, ...]
    steps_take_images: bool
    """Whether srun has Pyxis's options."""

    @property
    def answers(self) -> bool:
        """Whether the controller does."""
        return bool(self.config)


def slurm_facts(ask: Ask) -> SlurmFacts:
    """Four questions."""
    return SlurmFacts(
        version=parse_version(ask("sinfo", "--version") or ""),
        config=parse_config(ask("scontrol", "show", "config") or ""),
        groups=parse_groups(ask(*_SINFO) or ""),
        steps_take_images="--container-image" in (ask("srun", "--help") or ""),
    )


def parse_version(text: str) -> str:
    """Of "slurm 24.11.3", or a distribution's "slurm-wlm 22.05.8"; else the text itself."""
    numbers = re.search(r"\d+\.\d+\S*", text)
    return numbers[0] if numbers else text.strip()


def parse_config(text: str) -> dict[str, str]:
    """Lines `Name   = value`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_groups(text: str) -> tuple[NodeGroup, ...]:
    """Lines of sinfo in the format asked for above; others are left out."""
    groups = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) != 7 or not all(number.rstrip("+").isdigit() for number in words[1:4]):
            continue
        nodes, cpus, memory = (int(number.rstrip("+")) for number in words[1:4])
        found = _GPU.findall(words[4])
        groups.append(
            NodeGroup(
                partition=words[0].rstrip("*"), is_default=words[0].endswith("*"), nodes=nodes, cpus=cpus, memory_mib=memory,
                gpus=sum(int(count) for _, count in found), gpu_type=found[0][0] if len(found) == 1 else "",
                max_time=words[5], is_up=words[6] == "up",
            )
        )  # fmt: skip
    return tuple(groups)


def choose(groups: tuple[NodeGroup, ...], partition: str | None) -> NodeGroup | None:
    """The group to describe: of the named partition, else one with GPUs, else the default; the largest of those."""
    candidates = [group for group in groups if partition in (None, group.partition)]
    return max(candidates, key=lambda group: (group.gpus > 0, group.is_default, group.nodes), default=None)
