"""The cluster of the tests itself: it is what topologies/test-cluster.toml says, and it ends with its owner."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slime_hpc.topology.load import load_topology

pytestmark = pytest.mark.slurm
SCRIPT = Path(__file__).with_name("cluster.sh")


def test_the_topology_says_what_the_cluster_has(cluster):
    topology = load_topology("test-cluster")
    lines = cluster.run("sinfo", "--noheader", "--Node", f"--partition={topology.scheduler.partition}", "--format=%N %c %m %G").splitlines()
    nodes = {name: (int(cpus), int(mib), gres) for name, cpus, mib, gres in map(str.split, lines)}
    assert sorted(nodes) == ["n1", "n2", "n3", "n4"]
    assert len(nodes) == topology.nodes
    for cpus, mib, gres in nodes.values():
        assert cpus == topology.node.cpus
        assert mib >= topology.node.memory_gib * 1024
        assert gres == f"gpu:{topology.node.gpus}"


def test_every_node_is_a_machine_of_its_own(cluster):
    address = "$(ip -4 -o addr show eth0 | awk '{print $4}')"
    show = f"echo $(hostname) $(cat /proc/sys/kernel/hostname) {address} $(ls /proc | grep -c '^[0-9]*$')"
    lines = cluster.run("srun", "--nodes=4", "--ntasks=4", "--mem=1G", "bash", "-c", show).splitlines()
    names, kernel_names, addresses, processes = zip(*map(str.split, lines), strict=True)
    assert sorted(names) == sorted(kernel_names) == ["n1", "n2", "n3", "n4"]
    assert len(set(addresses)) == 4
    # Only the node's own: this machine has more.
    assert max(map(int, processes)) < 30
    assert cluster.run("srun", "--nodelist=n1", "--mem=1G", "getent", "hosts", "n4").split()[1] == "n4"


@pytest.mark.parametrize("guarded", [True, False])
def test_a_cluster_of_a_killed_owner_goes_away(tmp_path, guarded):
    """By its guard; by the next session's `reap`, where the guard was killed too."""
    root = Path(f"/tmp/slime-hpc-cluster.test-{tmp_path.name}")
    with subprocess.Popen(["sleep", "300"]) as owner:
        environment = {"ROOT": str(root), "OWNER": str(owner.pid), "NODES": "1", "PATH": "/usr/bin:/bin"}
        subprocess.run([SCRIPT, "up"], env=environment, check=True, timeout=60, capture_output=True)
        daemons = _daemons(root)
        assert {"slurmctld", "slurmd", "munged"} <= set(daemons.values())
        if not guarded:
            guards = _guards(root)
            assert guards
            for pid in guards:
                os.killpg(pid, signal.SIGKILL)
        owner.kill()
    if not guarded:
        subprocess.run([SCRIPT, "reap"], check=True, timeout=60, capture_output=True)
    deadline = time.monotonic() + 60
    while root.exists() or _daemons(root):
        assert time.monotonic() < deadline, f"{root}: {_daemons(root)}"
        time.sleep(0.2)


def _processes(root):
    """(pid, name, command line) of the processes that work for a cluster."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, command, environment = ((process / part).read_bytes() for part in ("comm", "cmdline", "environ"))
        except OSError:
            continue
        if str(root).encode() in command + environment:
            yield int(process.name), name.decode().strip(), command


def _daemons(root):
    return {pid: name for pid, name, _ in _processes(root) if name in {"slurmctld", "slurmd", "munged", "slurmstepd"}}


def _guards(root):
    """Guards lead sessions of their own."""
    return [pid for pid, _, command in _processes(root) if b"guard" in command.split(b"\0")]
