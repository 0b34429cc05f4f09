"""The preflight: each line's verdict, on a real cluster, on this machine, and on what other clusters say."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slime_hpc.cli.main import main
from slime_hpc.site import machine_checks
from slime_hpc.site.slurm_checks import slurm_checks
from slime_hpc.site.slurm_facts import SlurmFacts, parse_groups
from slime_hpc.topology.load import load_topology

CONFIG = {"ClusterName": "c", "KillWait": "30 sec", "PreemptMode": "OFF", "JobRequeue": "1"}
GROUPS = "gpu*|4|64|65536|gpu:8|1-00:00:00|up\n"


def verdicts(checks):
    return {check.name: check.status for check in checks}


def judge(topology="test-cluster", groups=GROUPS, missing=(), environment=(), version="22.05.8", **config):
    facts = SlurmFacts(version=version, config={**CONFIG, **config}, groups=parse_groups(groups), steps_take_images=False)
    return list(slurm_checks(facts, load_topology(topology), dict.fromkeys(environment, "1"), missing=missing))


def test_all_is_well():
    checks = judge()
    assert set(verdicts(checks).values()) == {"ok"}
    assert not any(check.fix for check in checks)


@pytest.mark.parametrize(
    ("changes", "name", "status", "what"),
    [
        ({"missing": ("sbatch", "srun")}, "slurm commands", "fail", "sbatch, srun"),
        ({"missing": ("sacct",)}, "slurm commands", "warn", "sacct is missing"),
        ({"version": "20.11.9"}, "slurm version", "fail", "cannot share"),
        ({"version": "devel"}, "slurm version", "warn", "'devel'"),
        ({"KillWait": "5 sec"}, "KillWait", "warn", "5 sec"),
        ({"PreemptMode": "REQUEUE"}, "PreemptMode", "warn", "may be preempted"),
        ({"PreemptMode": "GANG,SUSPEND"}, "PreemptMode", "warn", "suspended"),
        ({"JobRequeue": "0"}, "JobRequeue", "warn", "not requeued"),
        ({"groups": GROUPS.replace("gpu*", "boost*")}, "partition", "fail", "no partition 'gpu'"),
        ({"groups": ""}, "partition", "fail", "no partition 'gpu'"),
        ({"groups": GROUPS.replace("|up", "|down")}, "partition", "fail", "gpu is down"),
        ({"groups": GROUPS.replace("|4|", "|3|")}, "partition", "fail", "3 nodes; the topology says 4"),
        ({"groups": GROUPS.replace("|64|", "|32|")}, "node.cpus", "fail", "nodes have 32"),
        ({"groups": GROUPS.replace("65536", "60000")}, "node.memory_gib", "fail", "58.6 GiB; the topology asks for 60"),
        ({"groups": GROUPS.replace("65536", "1")}, "node.memory_gib", "fail", "the topology asks for 60"),
        ({"groups": GROUPS.replace("gpu:8", "gpu:4")}, "node.gpus", "fail", "nodes have 4 GPUs"),
        ({"groups": GROUPS.replace("1-00:00:00", "10:00")}, "scheduler.default_time", "fail", "the partition allows 10:00"),
        ({"environment": ("SBATCH_PARTITION", "SLURM_CPU_BIND", "SLURM_CONF")}, "environment", "warn", "SBATCH_PARTITION, SLURM_CPU_BIND"),
    ],
)
def test_what_is_not_well_has_a_reason_and_a_remedy(changes, name, status, what):
    found = {check.name: check for check in judge(**changes)}[name]
    assert found.status == status
    assert what in found.what
    assert found.fix


def test_a_controller_that_does_not_answer():
    facts = SlurmFacts(version="22.05.8", config={}, groups=(), steps_take_images=False)
    assert verdicts(slurm_checks(facts, load_topology("test-cluster"), {}, missing=())) == {
        "slurm commands": "ok",
        "slurm controller": "fail",
    }


def test_nodes_of_two_kinds_count_together():
    groups = "gpu*|3|64|65536|gpu:8|infinite|up\ngpu*|1|64|60000|gpu:8|infinite|up\nother|1|1|1|(null)|infinite|up\n"
    assert set(verdicts(judge(groups=groups)).values()) == {"ok"}


def test_a_folder_is_tried_and_left_clean(tmp_path):
    checks = list(machine_checks.folder_checks(tmp_path / "not" / "yet" / "there", shared=False))
    assert verdicts(checks)["runs"] == "ok" and str(tmp_path) in checks[0].what
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_rename(tmp_path, monkeypatch):
    def replace(self, target):
        raise OSError(5, "Input/output error", str(self))

    monkeypatch.setattr(Path, "replace", replace)
    (check,) = machine_checks.folder_checks(tmp_path, shared=True)
    assert (check.status, "Input/output error" in check.what) == ("fail", True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_forgets_a_rename(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda self, target: None)
    (check,) = machine_checks.folder_checks(tmp_path, shared=True)
    assert (check.status, "reads as the old one" in check.what) == ("fail", True)


def test_a_folder_that_only_this_machine_sees():
    found = {check.name: check for check in machine_checks.folder_checks(Path("/dev/shm"), shared=True)}
    assert (found["shared file system"].status, "tmpfs" in found["shared file system"].what) == ("warn", True)
    assert verdicts(machine_checks.folder_checks(Path("/dev/shm"), shared=False))["shared file system"] == "ok"


@pytest.mark.parametrize(
    ("topology", "said", "status"),
    [
        ("local", None, "ok"),
        ("h100-pyxis", "--container-image=IMAGE", "ok"),
        ("h100-pyxis", "--nodes", "fail"),
        ("leonardo", "apptainer version 1.4.5", "ok"),
        ("leonardo", None, "warn"),
    ],
)
def test_container_runtimes(topology, said, status):
    assert machine_checks.container_check(load_topology(topology), lambda *command: said).status == status


@pytest.mark.parametrize(
    ("ports", "status"), [("32768 60999", "ok"), ("21000 60999", "warn"), ("1024 65535", "warn"), ("1024 20999", "ok")]
)
def test_ports_against_ephemeral_ones(ports, status):
    check = machine_checks.ports_check(load_topology("test-cluster"), ports)
    assert (check.status, bool(check.fix)) == (status, status != "ok")


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setattr(machine_checks, "PACKAGES", ("click", "no-such-package"))
    needed, spared = (machine_checks.packages_check(needed=needed) for needed in (True, False))
    assert (needed.status, "no-such-package" in needed.what) == ("fail", True)
    assert (spared.status, "the image must have them" in spared.what) == ("ok", True)


@pytest.mark.slurm
def test_the_real_cluster(cluster, tmp_path):
    """Its short KillWait and its files on this machine's own disk are what there is to warn of."""
    result = CliRunner().invoke(main, ["doctor", "--topology", "test-cluster", "--runs", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    found = verdicts(type("Line", (), line) for line in json.loads(result.stdout))
    well = ("slurm commands", "slurm version", "slurm controller", "partition", "runs", "JobRequeue")
    assert {name: found[name] for name in well} == dict.fromkeys(well, "ok")
    assert found["KillWait"] == "warn"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slurm
def test_a_topology_that_the_real_cluster_is_not(cluster, tmp_path):
    result = CliRunner().invoke(main, ["doctor", "--topology", "leonardo", "--runs", str(tmp_path)])
    assert result.exit_code == 3
    assert "fail  partition " in result.stdout
    assert "-> scheduler.partition of the topology; there are: gpu" in result.stdout


def test_no_slurm_fails_and_local_needs_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["doctor", "--topology", "test-cluster", "--runs", str(tmp_path)])
    assert result.exit_code == 3 and "not on PATH: sbatch, srun" in result.stdout
    assert CliRunner().invoke(main, ["doctor", "--runs", str(tmp_path)]).exit_code == 0
