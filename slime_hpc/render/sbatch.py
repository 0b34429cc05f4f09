"""A job plan as a batch script that a person can read, edit and submit. Pure, deterministic, byte for byte.

The script's length does not depend on the number of nodes.
"""

from __future__ import annotations

import shlex

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slime_hpc import assets
from slime_hpc.config.schema import Experiment
from slime_hpc.plan.job import JobPlan, RolePlan
from slime_hpc.render import quote
from slime_hpc.render.srun import srun_command
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.schema import Topology


def render_sbatch(plan: JobPlan, experiment: Experiment, topology: Topology, *, run: RunFolder, python: str) -> str:
    """The script. Raises PlanError for a value that no script can hold."""
    environment = Environment(
        loader=FileSystemLoader(assets.folder("sbatch")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sh=quote.sh, comment=quote.comment, identifier=quote.identifier, directive=quote.directive)
    return environment.get_template("job.sbatch.j2").render(
        run_id=run.path.name,
        summary=f"{experiment.name}, {plan.num_nodes} nodes of {topology.name}",
        script=run.script,
        directives=directives(plan, experiment, topology, run),
        modules=topology.modules,
        environment=topology.environment,
        steps=[_step_line(role, plan, experiment, topology, run) for role in plan.roles],
        python=python,
        run=run.path,
    )


def directives(plan: JobPlan, experiment: Experiment, topology: Topology, run: RunFolder) -> list[str]:
    """The options of sbatch, in the order of sbatch(1)'s importance to a reader."""
    slurm, scheduler = experiment.slurm, topology.scheduler
    gpus = max(role.gpu_first + role.gpus_per_node for role in plan.roles)
    partition = slurm.partition or scheduler.partition
    return [
        f"--job-name={experiment.name}",
        *([f"--account={slurm.account}"] if slurm.account else []),
        *([f"--partition={partition}"] if partition else []),
        *([f"--qos={slurm.qos}"] if slurm.qos else []),
        f"--nodes={plan.num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={topology.node.cpus}",
        *([f"--mem={topology.node.memory_gib}G"] if scheduler.emit_memory else []),
        *({"gres": [f"--gres=gpu:{gpus}"], "gpus-per-node": [f"--gpus-per-node={gpus}"], "none": []}[scheduler.gpu_directive]),
        f"--time={slurm.time or scheduler.default_time}",
        f"--signal=B:USR2@{scheduler.grace_s}",
        "--open-mode=append",
        "--no-requeue",
        f"--chdir={run.path}",
        f"--output={quote.file_pattern(run.path)}/attempts/%j.log",
        *scheduler.directives,
        *slurm.extra,
    ]


def _step_line(role: RolePlan, plan: JobPlan, experiment: Experiment, topology: Topology, run: RunFolder) -> str:
    """What the supervisor will run, with the nodes by number since their names are not known yet."""
    names = [f"node{index}" for index in range(plan.num_nodes)]
    folder = run.attempts / "N" / role.name
    return shlex.join(
        srun_command(
            role,
            experiment,
            topology,
            hostnames=names,
            folder=folder,
            run=run.path,
            command=["python", "-m", "submitit.core._submit", str(folder)],
        )
    )
