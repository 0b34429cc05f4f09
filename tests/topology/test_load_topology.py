import pytest

from slime_hpc import assets
from slime_hpc.config.dump import to_toml
from slime_hpc.config.load import read_toml, validate
from slime_hpc.errors import ConfigError
from slime_hpc.topology.load import load_topology
from slime_hpc.topology.schema import Topology

GOOD = 'name = "x"\naccelerator = "cpu"\nnodes = 2\n[scheduler]\nkind = "slurm"\n[node]\ngpus = 1\ncpus = 4\nmemory_gib = 8\n'


def test_the_shipped_topologies_are_there():
    assert {"local", "test-cluster"} <= set(assets.available("topologies"))


@pytest.mark.parametrize("name", assets.available("topologies"))
def test_every_shipped_topology_loads_and_is_named_as_its_file(name):
    topology = load_topology(name)
    assert topology.name == name
    assert topology.description


@pytest.mark.parametrize("name", assets.available("topologies"))
def test_a_topology_written_back_is_the_same(name, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(to_toml(load_topology(name)))
    assert validate(Topology, read_toml(path), {}, default_origin="t") == load_topology(str(path)) == load_topology(name)


@pytest.mark.parametrize(
    ("old", "new", "what", "where", "fix"),
    [
        ("cpus = 4", "cpu = 4", "Unknown key 'cpu'", "node.cpu", "did you mean 'cpus'"),
        ("nodes = 2", "nodes = 0", "greater than or equal to 1", "nodes", "Nodes a job may ask for"),
        ("nodes = 2", 'nodes = "two"', "nodes = 'two'", "nodes", "Nodes a job may ask for"),
        ('kind = "slurm"', 'kind = "pbs"', "'slurm' or 'local'", "scheduler.kind", "processes on this machine"),
        ("memory_gib = 8\n", "", "node.memory_gib is missing", "node.memory_gib", "set it"),
        ("nodes = 2", "nodes = ", "is not TOML", "line 3", "correct that line"),
    ],
)
def test_a_wrong_topology_says_what_where_and_what_to_change(tmp_path, old, new, what, where, fix):
    path = tmp_path / "site.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_topology(str(path))
    assert what in caught.value.what
    assert str(path) in caught.value.where
    assert where in caught.value.where + caught.value.what
    assert fix in caught.value.fix


def test_a_name_that_does_not_exist_lists_those_that_do():
    with pytest.raises(ConfigError) as caught:
        load_topology("test-clutser")
    assert f"did you mean 'test-cluster'? there are: {', '.join(assets.available('topologies'))}" in caught.value.fix


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"no file sites/none\.toml"):
        load_topology("sites/none.toml")
