"""A job plan as a batch script that a person can read, edit and submit. Pure, deterministic, byte for byte.

The script's length does not depend on the number of nodes.
"""

from __future__ import annotations

import functools
import shlex

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from slime_hpc import assets
from slime_hpc.config.schema import Experiment
from slime_hpc.plan.job import JobPlan, RolePlan
from slime_hpc.render import quote
from slime_hpc.render.caches import CACHES, cache_folder
from slime_hpc.render.srun import gpu_request, srun_command
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.consistency import name_of
from slime_hpc.topology.hostlist import compress
from slime_hpc.topology.schema import Topology


def render_sbatch(plan: JobPlan, experiment: Experiment, topology: Topology, *, run: RunFolder, python: str) -> str:
    """The script. Raises PlanError for a value that no script can hold."""
    return _template().render(
        run_id=run.path.name,
        summary=f"{experiment.name}, {plan.num_nodes} nodes of {topology.name}",
        script=run.script,
        directives=directives(plan, experiment, topology, run),
        modules=topology.modules,
        environment=topology.environment,
        caches=CACHES if topology.scheduler.kind == "slurm" else {},
        cache_folder=cache_folder(topology),
        steps=[_step_line(role, experiment, topology, run) for role in plan.roles],
        python=python,
        run=run.path,
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(assets.folder("sbatch")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sh=quote.sh, comment=quote.comment, identifier=quote.identifier, directive=quote.directive)
    return environment.get_template("job.sbatch.j2")


def directives(plan: JobPlan, experiment: Experiment, topology: Topology, run: RunFolder) -> list[str]:
    """The options of sbatch, what matters most to a reader first; without those that the site forbids."""
    slurm, scheduler = experiment.slurm, topology.scheduler
    gpus = max(role.gpu_first + role.gpus_per_node for role in plan.roles)
    partition, qos = slurm.partition or scheduler.partition, slurm.qos or scheduler.qos
    options = [
        f"--job-name={experiment.name}",
        *([f"--account={slurm.account}"] if slurm.account else []),
        *([f"--partition={partition}"] if partition else []),
        *([f"--qos={qos}"] if qos else []),
        f"--nodes={plan.num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={topology.node.cpus}",
        f"--mem={topology.node.memory_gib}G",
        *gpu_request(gpus, topology),
        *([f"--segment={min(scheduler.segment, plan.num_nodes)}"] if scheduler.segment else []),
        f"--time={slurm.time or scheduler.default_time}",
        f"--signal=B:USR2@{scheduler.grace_s}",
        "--open-mode=append",
        "--requeue" if slurm.max_requeues and scheduler.may_requeue else "--no-requeue",
        f"--chdir={run.path}",
        f"--output={quote.file_pattern(run.path)}/attempts/%j.log",
        *scheduler.directives,
        *slurm.extra,
    ]
    return [option for option in options if scheduler.allows(name_of(option))]


def _step_line(role: RolePlan, experiment: Experiment, topology: Topology, run: RunFolder) -> str:
    """What the supervisor will run, with the nodes by number since their names are not known yet."""
    folder = run.attempts / "N" / role.name
    return shlex.join(
        srun_command(
            role,
            experiment,
            topology,
            nodelist=_numbered(role.nodes),
            folder=folder,
            run=run.path,
            command=["python", "-m", "submitit.core._submit", str(folder)],
        )
    )


def _numbered(nodes: tuple[int, ...]) -> str:
    """Nodes that follow one another, as all plans have them, are written without a name for each: there may be thousands."""
    first, last = nodes[0], nodes[-1]
    if len(nodes) > 1 and nodes == tuple(range(first, last + 1)):
        return f"node[{first}-{last}]"
    return compress([f"node{index}" for index in nodes])
