"""Whether a site would take the job: account, partition, QoS, time, number of nodes, options, folders. Pure."""

from __future__ import annotations

from pathlib import PurePath

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import PlanError
from slime_hpc.topology.consistency import NEEDED, OWN_DIRECTIVES, name_of
from slime_hpc.topology.schema import Limit, Topology
from slime_hpc.topology.time_limit import seconds


def check_site(experiment: Experiment, topology: Topology, num_nodes: int) -> None:
    """Raises PlanError for what Slurm would refuse, or leave waiting for ever."""
    _check_image(experiment, topology)
    if topology.scheduler.kind == "local":
        return
    _check_account(experiment, topology)
    _check_options(experiment, topology)
    _check_limits(experiment, topology, num_nodes)
    _check_shared(experiment, topology)


def _check_image(experiment: Experiment, topology: Topology) -> None:
    runtime = experiment.container.runtime or topology.container.runtime
    if runtime != "none" and not experiment.container.image:
        raise PlanError(f"Container runtime {runtime!r} needs an image.", where="container.image", fix="--set container.image=PATH")


def _check_account(experiment: Experiment, topology: Topology) -> None:
    account, scheduler = experiment.slurm.account, topology.scheduler
    if scheduler.account_required and not account:
        raise PlanError(f"{topology.name} charges an account; none is given.", where="slurm.account", fix="--set slurm.account=NAME")
    if account and not account.endswith(scheduler.account_suffix):
        raise PlanError(
            f"slurm.account = {account!r}; accounts for these GPUs of {topology.name!r} end in {scheduler.account_suffix!r}.",
            where="slurm.account; topology: scheduler.account_suffix",
            fix=f"--set slurm.account={account}{scheduler.account_suffix}",
        )


def _check_options(experiment: Experiment, topology: Topology) -> None:
    for name in map(name_of, experiment.slurm.extra):
        if not topology.scheduler.allows(name):
            raise PlanError(
                f"{topology.name!r} refuses jobs with {name}.", where="slurm.extra; topology: scheduler.forbidden", fix=f"remove {name}"
            )
        if name in NEEDED:
            raise PlanError(
                f"slurm.extra holds {name}, which comes from {OWN_DIRECTIVES[name]}.", where="slurm.extra", fix=f"remove {name}"
            )


def _check_limits(experiment: Experiment, topology: Topology, num_nodes: int) -> None:
    slurm, scheduler = experiment.slurm, topology.scheduler
    partition, qos, time = slurm.partition or scheduler.partition, slurm.qos or scheduler.qos, slurm.time or scheduler.default_time
    if scheduler.grace_s >= seconds(time):
        raise PlanError(
            f"A time limit of {time} is over before the job is told to stop, {scheduler.grace_s} s earlier.",
            where="slurm.time; topology: scheduler.grace_s",
            fix="a longer time",
        )
    for index, limit in enumerate(scheduler.limits):
        if limit.partition not in (None, partition) or limit.qos not in (None, qos):
            continue
        where = f"topology: scheduler.limits.{index}"
        if limit.max_time is not None and seconds(time) > seconds(limit.max_time):
            raise PlanError(
                f"A time limit of {time}; {_name(limit)} allows {limit.max_time}.",
                where=f"slurm.time; {where}.max_time",
                fix=f"at most {limit.max_time}",
            )
        if num_nodes < limit.min_nodes:
            raise PlanError(
                f"A job of {num_nodes} nodes; {_name(limit)} takes jobs from {limit.min_nodes} nodes on.",
                where=f"slurm.partition, slurm.qos; {where}.min_nodes",
                fix="choose another partition or QoS",
            )
        if limit.max_nodes is not None and num_nodes > limit.max_nodes:
            raise PlanError(
                f"A job of {num_nodes} nodes; {_name(limit)} takes jobs of at most {limit.max_nodes} nodes.",
                where=f"slurm.partition, slurm.qos; {where}.max_nodes",
                fix="use fewer nodes, or another partition or QoS",
            )
    segment = scheduler.segment
    if segment and num_nodes > segment and num_nodes % segment:
        raise PlanError(
            f"{num_nodes} nodes do not divide into segments of {segment}: {num_nodes} / {segment} = {num_nodes / segment:g}.",
            where="trainer.nodes, rollout.groups; topology: scheduler.segment",
            fix=f"use a multiple of {segment} nodes, or at most {segment}",
        )


def _name(limit: Limit) -> str:
    parts = [f"partition {limit.partition!r}"] * bool(limit.partition) + [f"QoS {limit.qos!r}"] * bool(limit.qos)
    return " with ".join(parts) or "the site"


def _check_shared(experiment: Experiment, topology: Topology) -> None:
    runs = PurePath(experiment.runs)
    if topology.shared and not any(runs.is_relative_to(folder) for folder in topology.shared):
        raise PlanError(
            f"Run folders would lie in {runs}, and the nodes of {topology.name!r} are known to share {', '.join(topology.shared)} only.",
            where="runs; topology: shared",
            fix=f"--set runs={topology.shared[0]}/..., or add the folder to the topology if all nodes see it",
        )
