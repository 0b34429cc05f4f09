from pathlib import Path

import pytest

from slime_hpc.config.load import load_experiment
from slime_hpc.plan.plan_job import plan_job
from slime_hpc.render.sbatch import render_sbatch
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.load import load_topology

GPU_CLUSTER = """
name = "gpu-cluster"
accelerator = "cuda"
nodes = 64
modules = ["cuda/12.6", "apptainer"]

[scheduler]
kind = "slurm"
partition = "boost"
account_required = true
default_time = "24:00:00"
directives = ["--exclusive"]
srun_options = ["--cpu-bind=cores"]

[node]
gpus = 4
cpus = 32
memory_gib = 480
gpu_memory_gib = 64

[network]
interface = "ib0"

[container]
runtime = "apptainer"
mounts = ["/scratch:/scratch"]

[environment]
NCCL_SOCKET_IFNAME = "ib0"
"""


@pytest.fixture
def gpu_cluster(tmp_path):
    path = tmp_path / "gpu-cluster.toml"
    path.write_text(GPU_CLUSTER)
    return str(path)


@pytest.fixture
def render():
    def call(topology="test-cluster", settings=(), run=Path("/scratch/runs/demo/20300101-000000-abcd"), python="/opt/venv/bin/python"):
        experiment, cluster = load_experiment(["demo"], settings), load_topology(topology)
        return render_sbatch(plan_job(experiment, cluster), experiment, cluster, run=RunFolder(run), python=python)

    return call
