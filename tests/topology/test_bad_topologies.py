"""Topology files that are wrong or contradict themselves: the message names the file, the key, and what is the matter."""

import json

import pytest
from click.testing import CliRunner

from slime_hpc.cli.main import main
from slime_hpc.topology.advice import advise
from slime_hpc.topology.load import load_topology
from slime_hpc.topology.time_limit import seconds

GOOD = """\
name = "site"
description = "x"
accelerator = "cuda"
nodes = 8
shared = ["/scratch"]
modules = ["cuda"]

[scheduler]
kind = "slurm"
partition = "gpu"
default_time = "04:00:00"
directives = ["--exclusive"]
srun_options = ["--gpu-bind=none"]
forbidden = ["--requeue"]
segment = 4

[[scheduler.limits]]
partition = "gpu"
max_time = "1-00:00:00"
min_nodes = 2
max_nodes = 8

[node]
gpus = 4
cpus = 32
memory_gib = 500
gpu_memory_gib = 80

[network]
interface = "ib0"

[container]
runtime = "apptainer"
mounts = ["/scratch:/scratch"]

[environment]
NCCL_DEBUG = "WARN"
"""
CASES = {
    "no TOML": ("[node]", "[node", "is not TOML"),
    "unknown key": ("cpus = 32", "cpu = 32", "site.toml: node.cpu"),
    "unknown table": ("[network]", "[netwrk]", "did you mean 'network'?"),
    "missing key": ("cpus = 32\n", "", "node.cpus is missing"),
    "missing table": ('kind = "slurm"\n', "", "scheduler.kind is missing"),
    "text for a number": ("nodes = 8\nshared", 'nodes = "8"\nshared', "site.toml: nodes"),
    "number for text": ('partition = "gpu"\ndefault', "partition = 3\ndefault", "scheduler.partition = 3 is not text"),
    "no nodes": ("nodes = 8\nshared", "nodes = 0\nshared", "greater than or equal to 1"),
    "no GPUs": ("gpus = 4", "gpus = 0", "site.toml: node.gpus"),
    "unknown accelerator": ('"cuda"\nnodes', '"rocm"\nnodes', "'cpu' or 'cuda'"),
    "unknown scheduler": ('"slurm"', '"pbs"', "'slurm' or 'local'"),
    "unknown runtime": ('"apptainer"', '"docker"', "site.toml: container.runtime"),
    "GPU memory missing": ("gpu_memory_gib = 80\n", "", "node.gpu_memory_gib is missing"),
    "fewer cores than GPUs": ("cpus = 32", "cpus = 2", "node.cpus = 2 is less than node.gpus = 4"),
    "time in words": ('"04:00:00"', '"4h"', "site.toml: scheduler.default_time"),
    "grace as long as the job": (
        '"04:00:00"', '"00:02:00"',
        "scheduler.grace_s = 120 is not less than scheduler.default_time = '00:02:00'",
    ),
    "default beyond the limit": ('"04:00:00"', '"2-00:00:00"', "exceeds scheduler.limits.0.max_time = '1-00:00:00'"),
    "limits turned round": ("min_nodes = 2", "min_nodes = 9", "scheduler.limits.0.min_nodes = 9 exceeds scheduler.limits.0.max_nodes = 8"),
    "a limit of nothing": ('max_time = "1-00:00:00"\nmin_nodes = 2\nmax_nodes = 8\n', "", "scheduler.limits.0 limits nothing"),
    "unknown key of a limit": ("max_nodes = 8", "most_nodes = 8", "site.toml: scheduler.limits.0.most_nodes"),
    "short option": ('"--exclusive"', '"-N4"', "site.toml: scheduler.directives.0"),
    "two options in one": ('"--exclusive"', '"--exclusive --mem=0"', "site.toml: scheduler.directives.0"),
    "a line break": ('"--exclusive"', '"--comment=a\\nb"', "site.toml: scheduler.directives.0"),
    "an option twice": ('["--exclusive"]', '["--exclusive", "--exclusive"]', "scheduler.directives holds --exclusive twice"),
    "a value with a forbidden name": ('["--requeue"]', '["--mem=0"]', "site.toml: scheduler.forbidden.0"),
    "wanted and forbidden": (
        '["--requeue"]', '["--exclusive"]',
        "scheduler.directives holds --exclusive, which scheduler.forbidden forbids",
    ),
    "the way GPUs are asked for forbidden": ('["--requeue"]', '["--gpus-per-node"]', "scheduler.gpu_directive = 'gpus-per-node', which"),
    "forbidden but needed": ('["--requeue"]', '["--time"]', "scheduler.forbidden holds --time, without which no job can be run"),
    "the plan's own": ('"--exclusive"', '"--nodes=4"', "--nodes, which comes from the plan"),
    "memory by hand": ('"--exclusive"', '"--mem=0"', "--mem, which comes from node.memory_gib"),
    "time by hand": ('"--exclusive"', '"--time=1"', "--time, which comes from scheduler.default_time and slurm.time"),
    "a container around the script": ('"--exclusive"', '"--container-image=x"', "the supervisor must run outside any container"),
    "a GPU for each task": ('"--gpu-bind=none"', '"--gpus-per-task=1"', "breaks CUDA IPC"),
    "exclusive steps": ('"--gpu-bind=none"', '"--exclusive"', "srun refuses both together"),
    "the step's own": ('"--gpu-bind=none"', '"--ntasks=8"', "scheduler.srun_options holds --ntasks"),
    "type of no GPUs": ("segment = 4", 'gpu_type = "h100"\ngpu_directive = "none"', "no GPUs are asked for"),
    "a segment of more than all": ("segment = 4", "segment = 16", "scheduler.segment = 16 exceeds nodes = 8"),
    "a forbidden segment": ('["--requeue"]', '["--segment"]', "forbids --segment"),
    "two interfaces": ('"ib0"', '"ib0,ib1"', "site.toml: network.interface"),
    "an address for an interface": ('"ib0"', '"10.0.0.1"', "site.toml: network.interface"),
    "a privileged port": ('interface = "ib0"', "port_first = 80", "site.toml: network.port_first"),
    "a mount without a target": ('["/scratch:/scratch"]', '["/scratch"]', "site.toml: container.mounts.0"),
    "a mount with a comma": ('["/scratch:/scratch"]', '["/a,b:/c"]', "site.toml: container.mounts.0"),
    "a mount to nowhere": ('["/scratch:/scratch"]', '["/scratch:data"]', "'data' is no absolute path"),
    "two mounts on one": ('["/scratch:/scratch"]', '["/a:/data", "/b:/data"]', "mounts two folders on '/data'"),
    "a relative shared folder": ('["/scratch"]\nmodules', '["scratch"]\nmodules', "site.toml: shared.0"),
    "a relative local folder": ("gpu_memory_gib = 80", 'gpu_memory_gib = 80\nlocal_folder = "tmp"', "site.toml: node.local_folder"),
    "a module without a name": ('["cuda"]', '["cuda", " "]', "modules holds an empty name"),
    "gloo on a list": ('NCCL_DEBUG = "WARN"', 'GLOO_SOCKET_IFNAME = "^lo"', "gloo takes one interface by its name"),
    "Slurm's variable": ('NCCL_DEBUG = "WARN"', 'CUDA_VISIBLE_DEVICES = "0"', "environment.CUDA_VISIBLE_DEVICES is set for each task"),
    "the launcher's variable": ('NCCL_DEBUG = "WARN"', 'MASTER_PORT = "29500"', "environment.MASTER_PORT is set for each task"),
    "a number in the environment": ('NCCL_DEBUG = "WARN"', "NCCL_IB_TIMEOUT = 22", "environment.NCCL_IB_TIMEOUT = 22 is not text"),
    "local on many nodes": ('"slurm"', '"local"', "A local topology is this machine alone"),
    "local with a partition": ('"slurm"\npartition', '"local"\npartition', "nodes = 1, not 8"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_refused_with_its_key(case, tmp_path):
    old, new, message = CASES[case]
    assert GOOD.count(old) == 1, old
    path = tmp_path / "site.toml"
    path.write_text(GOOD.replace(old, new))
    result = CliRunner().invoke(main, ["topologies", "check", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert str(path) in result.stderr and "fix: " in result.stderr


@pytest.mark.parametrize("key", ["partition", "qos", "account_required", "limits", "directives", "srun_options", "forbidden", "segment"])
def test_a_local_topology_has_nothing_for_slurm(key, tmp_path):
    values = {"account_required": "true", "limits": "[{max_nodes=1}]", "segment": "1", "partition": '"p"', "qos": '"q"'}
    path = tmp_path / "l.toml"
    path.write_text(
        f'name = "l"\naccelerator = "cpu"\nnodes = 1\n[scheduler]\nkind = "local"\n{key} = {values.get(key, json.dumps(["--mem"]))}\n'
        "[node]\ngpus = 1\ncpus = 1\nmemory_gib = 1\n"
    )
    result = CliRunner().invoke(main, ["topologies", "check", str(path)])
    assert result.exit_code == 2
    assert f"scheduler.{key} is for Slurm" in result.stderr


def test_a_good_file_is_sound(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(GOOD)
    result = CliRunner().invoke(main, ["topologies", "check", str(path)])
    assert (result.exit_code, result.stdout) == (0, "site is sound\n")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('srun_options = ["--gpu-bind=none"]\n', "", "scheduler.srun_options"),
        ('interface = "ib0"', "", "network.interface"),
        ('interface = "ib0"', 'interface = "ib0"\nport_first = 32700', "network.port_first"),
        ('mounts = ["/scratch:/scratch"]\n', "", "container.mounts"),
        ('shared = ["/scratch"]\n', "", "shared"),
        ('partition = "gpu"\ndefault_time = "04:00:00"\ndirectives = ["--exclusive"]\n', "", "scheduler.partition"),
    ],
)
def test_what_a_file_leaves_open_is_named(old, new, key, tmp_path):
    assert GOOD.count(old) == 1
    path = tmp_path / "site.toml"
    path.write_text(GOOD.replace(old, new))
    assert [entry.key for entry in advise(load_topology(str(path)))] == [key]
    result = CliRunner().invoke(main, ["topologies", "check", str(path), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["advice"][0]["key"]) == (0, key)


@pytest.mark.parametrize(
    ("text", "value"),
    [("30", 1800), ("1:30", 90), ("01:00:00", 3600), ("2-3", 183600), ("2-03:04", 183840), ("1-02:03:04", 93784), ("100:00:00", 360000)],
)
def test_time_limits_are_read_as_slurm_reads_them(text, value):
    assert seconds(text) == value
