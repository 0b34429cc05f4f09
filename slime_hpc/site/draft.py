"""A topology file as far as machines can write one. Pure; what only a person can know stands there as a comment."""

from __future__ import annotations

import json

from slime_hpc.errors import ConfigError
from slime_hpc.site.machine_facts import MachineFacts
from slime_hpc.site.slurm_facts import NodeGroup, SlurmFacts, choose

_UNLIMITED = ("infinite", "n/a", "")


def draft(slurm: SlurmFacts, machine: MachineFacts, *, partition: str | None = None) -> str:
    """TOML text that loads, unless a GPU's memory is unknown. Raises ConfigError when Slurm does not answer, or has no such partition."""
    group = choose(slurm.groups, partition)
    if group is None:
        known = sorted({group.partition for group in slurm.groups})
        raise ConfigError(
            f"There is no partition {partition!r}." if known else "sinfo names no partition with nodes.",
            where="--partition" if known else "sinfo",
            fix=f"there are: {', '.join(known)}" if known else "run this on a login node of the cluster, while its controller answers",
        )
    name = slurm.config.get("ClusterName", "my-cluster")
    lines = [
        f"# A draft, from what Slurm {slurm.version} and this machine said. Lines marked (!) want your attention; then:",
        "#   slime-hpc topologies check FILE",
        f"name = {_text(name)}",
        f"description = {_text(f'{group.nodes} nodes of {group.gpus or group.cpus} {_processors(group, machine)}')}",
        f"accelerator = {_text('cuda' if group.gpus else 'cpu')}",
        f"nodes = {group.nodes}",
        '# shared = ["/scratch"]   # (!) folders that all nodes see; runs must lie there',
        "",
        *_scheduler(slurm, group),
        "",
        *_node(group, machine),
        "",
        *_network(machine),
        "",
        *_container(slurm, machine),
        "",
        *_environment(machine),
    ]
    return "\n".join(lines) + "\n"


def _scheduler(slurm: SlurmFacts, group: NodeGroup) -> list[str]:
    limited = group.max_time not in _UNLIMITED
    accounts = "limits" in slurm.config.get("AccountingStorageEnforce", "") or "associations" in slurm.config.get(
        "AccountingStorageEnforce", ""
    )
    lines = [
        "[scheduler]",
        'kind = "slurm"',
        f"partition = {_text(group.partition)}",
        f"account_required = {'true' if accounts else 'false'}",
        f"default_time = {_text(group.max_time)}   # the longest there is" if limited else 'default_time = "04:00:00"',
        f'gpu_directive = "{"gpus-per-node" if "cons_tres" in slurm.config.get("SelectType", "") else "gres"}"',
    ]
    if group.gpus == 0:
        lines[-1] = 'gpu_directive = "none"'
    elif group.gpu_type:
        lines.append(f"gpu_type = {_text(group.gpu_type)}")
    if group.memory_mib <= 1:
        lines.append('forbidden = ["--mem"]   # nodes have no RealMemory, so any request for memory would be refused')
    if "block" in slurm.config.get("TopologyPlugin", ""):
        lines.append("# segment = 16   # (!) nodes of a job that must share a block; see `scontrol show topology`")
    lines.append('# directives = ["--exclusive"]   # (!) what every job here needs')
    if limited:
        lines += ["", "[[scheduler.limits]]", f"partition = {_text(group.partition)}", f"max_time = {_text(group.max_time)}"]
    return lines


def _node(group: NodeGroup, machine: MachineFacts) -> list[str]:
    lines = [
        "[node]",
        f"gpus = {group.gpus or group.cpus}",
        f"cpus = {group.cpus}",
        f"memory_gib = {max(1, group.memory_mib // 1024)}",
    ]
    if group.memory_mib <= 1:
        lines[-1] = "memory_gib = 1   # (!) Slurm does not know it: `free -g` on a node"
    if group.gpus:
        known = f"gpu_memory_gib = {machine.gpu_memory_gib}"
        lines.append(known if machine.gpu_memory_gib else f"{known}   # (!) unknown here: run this on a node, or see nvidia-smi there")
    return lines


def _network(machine: MachineFacts) -> list[str]:
    others = ", ".join(machine.interfaces) or "none"
    if machine.fabric_interface:
        return ["[network]", f"interface = {_text(machine.fabric_interface)}   # (!) of this machine's: {others}"]
    return ["[network]", f'# interface = "..."   # (!) the fabric\'s, on a compute node; this machine has: {others}']


def _container(slurm: SlurmFacts, machine: MachineFacts) -> list[str]:
    runtime = "pyxis" if slurm.steps_take_images else next(iter(machine.runtimes), "none")
    lines = ["[container]", f"runtime = {_text(runtime)}"]
    return lines if runtime == "none" else [*lines, '# mounts = ["/scratch:/scratch"]   # (!) runs, models and prompts must lie below one']


def _environment(machine: MachineFacts) -> list[str]:
    lines = ["[environment]", 'NCCL_DEBUG = "WARN"']
    if machine.adapters:
        lines.append(f"# NCCL_IB_HCA = {_text(','.join(machine.adapters))}   # (!) without the adapter of the storage network")
    return lines


def _processors(group: NodeGroup, machine: MachineFacts) -> str:
    return (machine.gpu_name or group.gpu_type or "GPUs") if group.gpus else "cores"


def _text(value: str) -> str:
    """As TOML writes text; JSON's escapes are among TOML's."""
    return json.dumps(value, ensure_ascii=False)
