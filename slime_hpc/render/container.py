"""Container flags of one srun step. Pure: (options of srun, words before the command).

The image runs the roles only; supervisor, srun and scontrol stay on the host.
"""

from __future__ import annotations

from pathlib import Path

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import PlanError
from slime_hpc.render.caches import CACHES
from slime_hpc.topology.schema import Topology


def container_flags(experiment: Experiment, topology: Topology, run: Path) -> tuple[list[str], list[str]]:
    """Flags for the site's runtime; ([], []) without one. Raises PlanError."""
    runtime = experiment.container.runtime or topology.container.runtime
    image = experiment.container.image or ""
    if runtime != "none" and set(str(run)) & set(",:"):
        raise PlanError(f"{run} cannot be mounted: , and : separate mounts.", where="runs", fix="choose a folder without them")
    local = topology.node.local_folder
    mounts = [f"{run}:{run}", f"{local}:{local}", *topology.container.mounts, *experiment.container.mounts]
    if runtime == "pyxis":
        # Where the image has a value of its own, Pyxis prefers it unless told otherwise.
        names = [*topology.environment, *CACHES]
        return [
            f"--container-image={image}",
            f"--container-mounts={','.join(mounts)}",
            "--no-container-mount-home",
            f"--container-env={','.join(names)}",
        ], []
    if runtime == "apptainer":
        binds = [word for mount in mounts for word in ("--bind", mount)]
        driver = {"nvidia": "--nv", "amd": "--rocm"}[topology.node.gpu_vendor]
        gpu = [driver] if topology.accelerator == "cuda" else []
        return [], ["apptainer", "exec", *gpu, *binds, image]
    if runtime == "enroot":
        binds = [word for mount in mounts for word in ("--mount", mount)]
        return [], ["enroot", "start", "--rw", *binds, image]
    return [], []
