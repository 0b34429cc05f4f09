import re
import subprocess
import sys

import pytest

from slime_hpc import assets
from slime_hpc.config.explain import all_keys, default_text
from slime_hpc.config.load import model_of, validate
from slime_hpc.errors import ConfigError
from slime_hpc.topology.load import load_topology
from slime_hpc.topology.schema import Topology

README = (assets.folder("topologies") / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
TABLES = {"scheduler", "scheduler.limits", "node", "network", "container"}
SMALLEST = {
    "name": "x",
    "accelerator": "cuda",
    "nodes": 2,
    "scheduler": {"kind": "slurm"},
    "node": {"gpus": 8, "cpus": 64, "memory_gib": 500, "gpu_memory_gib": 80},
}


def load(**changes):
    """A topology with dotted keys (`__` for the dot) changed."""
    values = {**SMALLEST}
    for key, value in changes.items():
        table, _, name = key.rpartition("__")
        values |= {table: {**values.get(table, {}), name: value}} if table else {name: value}
    return validate(Topology, values, {}, default_origin="x.toml")


@pytest.mark.parametrize("name", assets.available("topologies"))
def test_every_file_loads_under_its_own_name(name):
    topology = load_topology(name)
    assert topology.name == name
    assert topology.description
    assert f"| `{name}` |" in README


def test_a_topology_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((assets.folder("topologies") / "local.toml").read_text())
    assert load_topology(str(path)) == load_topology("local")


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        ({"node__gpu": 4}, "node.gpu", "Unknown key 'gpu'"),
        ({"node__gpus": 0}, "node.gpus", "greater than or equal to 1"),
        ({"node__gpus": "8"}, "node.gpus", "valid integer"),
        ({"node__gpu_memory_gib": 0}, "file", "node.gpu_memory_gib is missing"),
        ({"scheduler__kind": "pbs"}, "scheduler.kind", "'slurm' or 'local'"),
        ({"scheduler__kind": "local"}, "file", "nodes = 1, not 2"),
        ({"scheduler__default_time": "1h"}, "scheduler.default_time", "should match"),
        ({"scheduler__default_time": 3}, "scheduler.default_time", "is not text"),
        ({"network__interface": "^lo,docker0"}, "network.interface", "should match"),
        ({"network__interface": "10.0.0.1"}, "network.interface", "should match"),
        ({"network__port_first": 80}, "network.port_first", "1024"),
        ({"container__mounts": ["/a"]}, "container.mounts.0", "should match"),
        ({"container__mounts": ["/a:/b,/c"]}, "container.mounts.0", "should match"),
        ({"nodes": 0}, "nodes", "greater than or equal to 1"),
    ],
)
def test_a_bad_value_names_file_and_key(changes, key, what):
    with pytest.raises(ConfigError) as caught:
        load(**changes)
    assert what in caught.value.what
    assert caught.value.where == f"x.toml: {key}"
    assert caught.value.fix


def test_did_you_mean():
    with pytest.raises(ConfigError) as caught:
        load(node__gpu_memory=80)
    assert "did you mean 'gpu_memory_gib'?" in caught.value.fix
    with pytest.raises(ConfigError) as caught:
        load_topology("locl")
    assert caught.value.what == "There is no topology 'locl'."
    assert "did you mean 'local'?" in caught.value.fix


def test_the_smallest_file():
    topology = load()
    assert (topology.network.port_first, topology.container.runtime, topology.scheduler.forbidden) == (21000, "none", [])


def test_the_readme_lists_every_key():
    listed = re.findall(r"^\| `([a-z_.]+)` \| (?:`(.*?)`|unset)? ?\|", README, flags=re.MULTILINE)
    assert sorted(key for key, _ in listed) == sorted(key for key in all_keys(Topology) if key not in TABLES)


@pytest.mark.parametrize("key", [key for key in all_keys(Topology) if key not in TABLES])
def test_the_readme_shows_the_default(key):
    model, field = Topology, None
    for part in key.split("."):
        field = model.model_fields[part]
        model = model_of(field.annotation)
    default = default_text(field)
    shown = default if default in ("", "unset") else f"`{default}`"
    assert f"\n| `{key}` | {shown} |".replace("|  |", "| |") in README


def test_the_readme_shows_one_file_and_what_to_do_with_it():
    assert [kind for kind, _ in BLOCKS] == ["toml", "sh"]


def test_the_commands_of_the_readme_run(tmp_path):
    """Exactly as they stand there, in a folder that holds nothing but the file that stands there."""
    (tmp_path / "my-cluster.toml").write_text(BLOCKS[0][1], encoding="utf-8")
    assert load_topology(str(tmp_path / "my-cluster.toml")).name == "my-cluster"
    shell = f'set -e\nslime-hpc() {{ {sys.executable} -m slime_hpc.cli.main "$@"; }}\n{BLOCKS[1][1]}'
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert '"num_nodes": 3' in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["my-cluster.toml"]
