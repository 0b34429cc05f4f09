import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc import assets
from slime_hpc.config.dump import to_toml
from slime_hpc.config.load import load_experiment, validate
from slime_hpc.config.schema import Experiment
from slime_hpc.topology.load import load_topology
from slime_hpc.topology.schema import Topology

SMALLEST = {"name": "x", "model": {"path": "m"}, "data": {"prompts": "p"}}

# What a TOML file can hold.
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def load_again(model):
    return validate(type(model), tomllib.loads(to_toml(model)), {}, default_origin="dump")


@pytest.mark.parametrize("recipe", assets.available("recipes"))
def test_every_recipe_comes_back(recipe, tmp_path):
    experiment = load_experiment([recipe])
    assert load_again(experiment) == experiment
    (tmp_path / "experiment.toml").write_text(to_toml(experiment), encoding="utf-8")
    assert load_experiment([str(tmp_path / "experiment.toml")]) == experiment


@pytest.mark.parametrize("topology", assets.available("topologies"))
def test_every_topology_comes_back(topology):
    assert load_again(load_topology(topology)) == load_topology(topology)


def test_defaults_come_back():
    experiment = Experiment.model_validate(SMALLEST)
    assert load_again(experiment) == experiment
    assert isinstance(load_again(load_topology("local")), Topology)


@given(st.dictionaries(st.text(), VALUES, max_size=3))
def test_tables_that_are_passed_through_come_back(options):
    values = {**SMALLEST, "rollout": {"sglang": options}, "reward": {"options": options}}
    experiment = Experiment.model_validate(values)
    assert load_again(experiment) == experiment
    assert load_again(experiment).rollout.sglang == options


@given(st.text(), st.lists(st.text()))
def test_text_comes_back(path, stop):
    experiment = Experiment.model_validate({**SMALLEST, "model": {"path": path}, "rollout": {"stop": stop}})
    assert load_again(experiment) == experiment
