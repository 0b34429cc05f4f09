import tomllib

import pytest

from slime_hpc.config.explain import all_keys, explain
from slime_hpc.config.load import model_of, parse_setting
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError


@pytest.mark.parametrize("key", all_keys())
def test_every_key_is_explained(key):
    explanation = explain(key)
    assert explanation.key == key
    assert explanation.description.endswith(".")
    assert "Annotated" not in explanation.type and "Optional" not in explanation.type
    if explanation.keys:
        assert all(below.startswith(f"{key}.") for below in explanation.keys)
    elif explanation.default not in ("", "unset"):
        assert list(tomllib.loads(f"x = {explanation.default}")) == ["x"]


@pytest.mark.parametrize("key", [key for key in all_keys() if explain(key).default not in ("", "unset")])
def test_the_default_shown_is_the_default(key):
    """Set to what `explain` shows, a key has the value that it has when nobody sets it."""
    value = parse_setting(f"{key}={explain(key).default}")
    model, field = Experiment, None
    for part in key.split("."):
        value, field = value[part], model.model_fields[part]
        model = model_of(field.annotation)
    assert value == field.get_default(call_default_factory=True)


def test_the_whole_file():
    assert explain("").keys == tuple(Experiment.model_fields)


def test_a_place_in_a_list_of_tables():
    assert explain("rollout.groups.0.engines") == explain("rollout.groups.engines")
    assert explain("rollout.groups").type == "list of tables"


def test_a_key_that_is_passed_through():
    assert explain("rollout.sglang.mem_fraction_static") == explain("rollout.sglang")


def test_types_are_words():
    assert explain("slurm.time").type == "str or unset"
    assert explain("container.mounts").type == "list of str"
    assert explain("trainer.nodes").type == "int, >= 1"
    assert explain("rollout.top_p").type == "float, > 0.0 and <= 1.0"
    assert explain("sync.transport").type == "one of 'distributed', 'disk', 'ipc', 'delta'"


@pytest.mark.parametrize(("key", "close"), [("trainer.node", "trainer.nodes"), ("rolout", "rollout"), ("slurm.0.time", "slurm.time")])
def test_an_unknown_key_brings_the_closest(key, close):
    with pytest.raises(ConfigError) as caught:
        explain(key)
    assert caught.value.fix == f"did you mean {close!r}?"


@pytest.mark.parametrize("key", ["name.x", "a..b", ".", "trainer.", "qqqqqqqqqqqqqqqqqqq"])
def test_a_key_that_is_none(key):
    with pytest.raises(ConfigError, match="There is no key"):
        explain(key)
