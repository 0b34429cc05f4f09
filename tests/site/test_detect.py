"""A draft of a topology: of the real test cluster, and of what commands of other machines print."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from slime_hpc.cli.main import main
from slime_hpc.errors import ConfigError
from slime_hpc.site.draft import draft
from slime_hpc.site.machine_facts import machine_facts, parse_adapters, parse_gpus, parse_interfaces
from slime_hpc.site.slurm_facts import choose, parse_groups, slurm_facts
from slime_hpc.topology.load import load_topology

SINFO = """\
cpu*|900|128|256000|(null)|1-00:00:00|up
boost|3400|32|494000|gpu:a100:4(S:0)|1-00:00:00|up
boost|56|32|250000|gpu:a100:4(S:0)|1-00:00:00|up
debug|4|32|494000|gpu:a100:4|00:30:00|up
fat|2|96+|1000000+|gpu:h100:2,gpu:a100:2|infinite|down
"""
CONFIG = "ClusterName             = leo\nSelectType              = select/cons_tres\nAccountingStorageEnforce = associations,limits\n"
DEVICES = """\
hca_id:\tmlx5_0
\tport:\t1
\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\tlink_layer:\t\tInfiniBand
hca_id:\tmlx5_1
\t\tstate:\t\t\tPORT_DOWN (1)
\t\tlink_layer:\t\tInfiniBand
hca_id:\tmlx5_2
\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\tlink_layer:\t\tEthernet
"""
ADDRESSES = """\
lo               UNKNOWN        127.0.0.1/8
eth0@if7         UP             10.0.0.5/24
ib0              UP             10.1.0.5/16
ib1              DOWN
"""
SMI = "NVIDIA A100-SXM-64GB, 65536\nNVIDIA A100-SXM-64GB, 65530\n"


def answers(said):
    """An `ask` whose commands say what stands in a table by their first word, or their first two."""
    return lambda *command: said.get(" ".join(command[:2]), said.get(command[0]))


@pytest.fixture
def leo():
    return {
        "sinfo --version": "slurm 24.11.3\n", "sinfo": SINFO, "scontrol show": CONFIG, "srun --help": "", "nvidia-smi": SMI,
        "ip": ADDRESSES, "ibv_devinfo": DEVICES, "apptainer": "apptainer version 1.4.5\n",
    }  # fmt: skip


def write(tmp_path, said, **options):
    ask = answers(said)
    path = tmp_path / "draft.toml"
    path.write_text(draft(slurm_facts(ask), machine_facts(ask), **options))
    return path


def test_a_gpu_cluster(leo, tmp_path):
    path = write(tmp_path, leo)
    topology = load_topology(str(path))
    assert (topology.name, topology.accelerator, topology.nodes) == ("leo", "cuda", 3400)
    assert topology.node.model_dump(include={"gpus", "cpus", "memory_gib", "gpu_memory_gib"}) == {
        "gpus": 4, "cpus": 32, "memory_gib": 482, "gpu_memory_gib": 63,
    }  # fmt: skip
    scheduler = topology.scheduler
    assert (scheduler.partition, scheduler.gpu_type, scheduler.gpu_directive) == ("boost", "a100", "gpus-per-node")
    assert (scheduler.account_required, scheduler.default_time, scheduler.limits[0].max_time) == (True, "1-00:00:00", "1-00:00:00")
    assert (topology.network.interface, topology.container.runtime) == ("ib0", "apptainer")
    assert '# NCCL_IB_HCA = "mlx5_0"' in path.read_text()


def test_another_partition(leo, tmp_path):
    topology = load_topology(str(write(tmp_path, leo, partition="debug")))
    assert (topology.nodes, topology.scheduler.default_time) == (4, "00:30:00")
    cpu = load_topology(str(write(tmp_path, leo, partition="cpu")))
    assert (cpu.accelerator, cpu.node.gpus, cpu.scheduler.gpu_directive) == ("cpu", 128, "none")
    mixed = load_topology(str(write(tmp_path, leo, partition="fat")))
    assert (mixed.node.gpus, mixed.scheduler.gpu_type, mixed.scheduler.limits) == (4, "", [])


def test_a_partition_that_is_not_there(leo, tmp_path):
    with pytest.raises(ConfigError, match="no partition 'bost'") as caught:
        write(tmp_path, leo, partition="bost")
    assert caught.value.fix == "there are: boost, cpu, debug, fat"


def test_a_cluster_that_does_not_answer(tmp_path):
    with pytest.raises(ConfigError, match="names no partition"):
        write(tmp_path, {})


def test_what_a_login_node_cannot_know_is_marked(leo, tmp_path):
    for command in ("nvidia-smi", "ip", "ibv_devinfo", "apptainer"):
        del leo[command]
    path = write(tmp_path, leo)
    with pytest.raises(ConfigError, match=r"node\.gpu_memory_gib is missing"):
        load_topology(str(path))
    path.write_text(path.read_text().replace("gpu_memory_gib = 0", "gpu_memory_gib = 64"))
    topology = load_topology(str(path))
    assert (topology.network.interface, topology.container.runtime) == (None, "none")
    assert path.read_text().count("(!)") >= 4


def test_cloud_nodes_without_memory(leo, tmp_path):
    leo["sinfo"] = "gpu*|16|96|1|gpu:8|infinite|up\n"
    leo["srun --help"] = "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
    topology = load_topology(str(write(tmp_path, leo)))
    assert (topology.scheduler.forbidden, topology.container.runtime, topology.node.gpus) == (["--mem"], "pyxis", 8)


def test_names_that_toml_must_escape(leo, tmp_path):
    leo["scontrol show"] = 'ClusterName = l"e\\o é\n'
    assert load_topology(str(write(tmp_path, leo))).name == 'l"e\\o é'


def test_lines_that_are_no_answer_are_left_out():
    assert parse_groups("sinfo: warning\n|||\ncpu|x|1|1|(null)|1|up\n") == ()
    assert parse_gpus("No devices were found\n") == ("", 0)
    assert parse_interfaces("") == () and parse_adapters("No IB devices found\n") == ()
    assert choose((), None) is None


@pytest.mark.slurm
def test_the_real_cluster(cluster, tmp_path):
    """What it says of itself agrees with the file that ships; a GPU's memory, which its pretended ones lack, is given by hand."""
    result = CliRunner().invoke(main, ["topologies", "detect"])
    assert result.exit_code == 0, result.output
    path = tmp_path / "draft.toml"
    path.write_text(result.stdout.replace("gpu_memory_gib = 0", "gpu_memory_gib = 80"))
    found, shipped = load_topology(str(path)), load_topology("test-cluster")
    assert found.name.startswith("slimehpc")
    assert (found.nodes, found.node.gpus, found.node.cpus) == (shipped.nodes, shipped.node.gpus, shipped.node.cpus)
    assert found.node.memory_gib == 64
    assert (found.scheduler.partition, found.scheduler.default_time) == ("gpu", "1-00:00:00")
    assert CliRunner().invoke(main, ["topologies", "check", str(path)]).exit_code == 0
    wanted = CliRunner().invoke(main, ["topologies", "detect", "--partition", "none"])
    assert wanted.exit_code == 2 and "there are: gpu" in wanted.stderr


@pytest.mark.slurm
def test_a_script_of_the_draft_is_one_that_the_cluster_takes(cluster, tmp_path):
    """`sbatch --test-only` of a rendered script, on the cluster whose draft it was rendered for."""
    draft_path = tmp_path / "draft.toml"
    text = CliRunner().invoke(main, ["topologies", "detect"]).stdout
    draft_path.write_text(text.replace("gpu_memory_gib = 0", "gpu_memory_gib = 80"))
    command = [sys.executable, "-m", "slime_hpc.cli.main", "render", "demo", "--topology", str(draft_path), "--run-id", "a", "--json"]
    rendered = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ)
    assert rendered.returncode == 0, rendered.stderr
    tested = subprocess.run(["sbatch", "--test-only", json.loads(rendered.stdout)["script"]], capture_output=True, text=True, timeout=60)
    assert tested.returncode == 0, tested.stderr
    assert "to start at" in tested.stderr
