import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.config.load import load_experiment, parse_setting, validate
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError

BASE = """
name = "base"
[model]
path = "model"
[data]
prompts = "train.jsonl"
[trainer]
nodes = 1
tensor_parallel = 2
[rollout]
sglang = { mem_fraction_static = 0.8, log_level = "info" }
groups = [{ engines = 1 }, { engines = 2 }]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text)
        return name

    write("base.toml", BASE)
    return write


def test_tables_merge_and_other_values_are_replaced(write):
    site = write("site.toml", "[trainer]\nnodes = 4\n[rollout]\nsglang = { mem_fraction_static = 0.7 }\ngroups = [{ engines = 3 }]\n")
    experiment = load_experiment(["base.toml", site], ["trainer.tensor_parallel=1"])
    assert (experiment.trainer.nodes, experiment.trainer.tensor_parallel) == (4, 1)
    assert experiment.rollout.sglang == {"mem_fraction_static": 0.7, "log_level": "info"}
    assert [group.engines for group in experiment.rollout.groups] == [3]


def test_the_last_layer_wins(write):
    write("a.toml", "steps = 3")
    write("b.toml", "steps = 4")
    assert load_experiment(["base.toml", "a.toml", "b.toml"]).steps == 4
    assert load_experiment(["base.toml", "b.toml", "a.toml"]).steps == 3
    assert load_experiment(["base.toml", "a.toml", "b.toml"], ["steps=5", "steps=6"]).steps == 6


def test_loading_changes_no_layer_of_another_load(write):
    first = load_experiment(["base.toml"], ["rollout.sglang.log_level=debug"])
    assert first.rollout.sglang["log_level"] == "debug"
    assert load_experiment(["base.toml"]).rollout.sglang["log_level"] == "info"


def test_an_empty_setting_removes_a_key(write):
    experiment = load_experiment(["base.toml"], ["data.prompts=", "data.source=my:prompts", "rollout.sglang="])
    assert (experiment.data.prompts, experiment.data.source, experiment.rollout.sglang) == (None, "my:prompts", {})


def test_relative_paths_become_absolute_and_recipe_paths_point_into_the_package(write, tmp_path):
    experiment = load_experiment(["base.toml"])
    assert experiment.model.path == str(tmp_path / "model")
    assert experiment.data.prompts == str(tmp_path / "train.jsonl")
    assert experiment.runs == str(tmp_path / "runs")
    assert load_experiment(["base.toml"], ["model.path=recipe:demo_model"]).model.path.endswith("recipes/demo_model")


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("trainer.nodes=2", ("trainer", "nodes"), 2),
        ("trainer.recompute=true", ("trainer", "recompute"), True),
        ("sync.timeout_s=1e3", ("sync", "timeout_s"), 1e3),
        ('rollout.stop=["a", "b=c"]', ("rollout", "stop"), ["a", "b=c"]),
        ("rollout.sglang.x.y=3", ("rollout", "sglang", "x", "y"), 3),
        # Text that TOML would take for something else, or for nothing at all:
        ("slurm.time=02:00:00", ("slurm", "time"), "02:00:00"),
        ("slurm.time=30", ("slurm", "time"), "30"),
        ("slurm.time=1-00:00:00", ("slurm", "time"), "1-00:00:00"),
        ("slurm.account=2024", ("slurm", "account"), "2024"),
        ("slurm.account=0012", ("slurm", "account"), "0012"),
        ('slurm.account="0012"', ("slurm", "account"), "0012"),
        ("model.path=a=b", ("model", "path"), "a=b"),
        ("name=true", ("name",), "true"),
        ("name=x\nsteps=1", ("name",), "x\nsteps=1"),
        ("name='x'\nsteps=1", ("name",), "'x'\nsteps=1"),
        ("eval=", ("eval",), None),
    ],
)
def test_setting(setting, key, value):
    parsed = parse_setting(setting)
    for part in key:
        assert list(parsed) == [part]
        parsed = parsed[part]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize("setting", ["trainer.nodes", "=1", ".a=1", "a..b=1", ""])
def test_a_setting_that_is_none(setting):
    with pytest.raises(ConfigError, match="key=value"):
        parse_setting(setting)


@given(st.text())
def test_any_text_can_be_set_in_quotes(text):
    import tomli_w

    quoted = tomli_w.dumps({"v": text}).removeprefix("v = ").rstrip("\n")
    assert parse_setting(f"rollout.sglang.x={quoted}") == {"rollout": {"sglang": {"x": text}}}


@pytest.mark.parametrize(
    ("setting", "what", "fix"),
    [
        ("trainer.node=2", "Unknown key 'node'", "did you mean 'nodes'?"),
        ("trainr.nodes=2", "Unknown key 'trainr'", "did you mean 'trainer'?"),
        ("rollout.groups=[{engine=2}]", "Unknown key 'engine'", "did you mean 'engines'?"),
        ("zzzz=1", "Unknown key 'zzzz'", "known here: name, steps"),
        ("trainer.nodes=two", "trainer.nodes = 'two': Input should be a valid integer", "Nodes of the trainer."),
        ("trainer.nodes=0", "greater than or equal to 1", "Nodes of the trainer."),
        ("trainer.nodes=true", "valid integer", "Nodes of the trainer."),
        ("trainer.nodes=2.0", "valid integer", "Nodes of the trainer."),
        ("trainer=3", "valid dictionary", "Training."),
        ("sync.timeout_s=inf", "finite", "A push that takes longer"),
        ("trainer.optimizer.lr=nan", "finite", "Learning rate."),
        ("rollout.groups=[]", "at least 1 item", "Groups of engines."),
        ("rollout.stop=[1]", "rollout.stop.0 = 1 is not text", 'in quotes: "1"'),
        ("slurm.time=tomorrow", "slurm.time = 'tomorrow'", "Time limit"),
        ('container.mounts=["/a:/b,c"]', "container.mounts.0", "host:container"),
        ("data.source=a:b", "exactly one of 'prompts' and 'source'", "Training prompts."),
        ("name=a b", "name = 'a b'", "Name of the run"),
        ("algorithm.loss=ppo", "'ppo' is neither one of 'ppo_clip', 'gspo', 'cispo', 'sft' nor 'module:attribute'", "The policy loss"),
        ("algorithm.advantage=rlo", "Did you mean 'rloo'?", "'rloo': r - mean of the siblings"),
        ("algorithm.dual_clip=0.5", "'dual_clip' must be above 1", ""),
    ],
)
def test_an_error_says_what_where_and_how_to_mend_it(write, setting, what, fix):
    with pytest.raises(ConfigError) as caught:
        load_experiment(["base.toml"], [setting])
    assert what in caught.value.what
    assert f"--set {setting}" in caught.value.where
    assert fix in caught.value.fix
    assert caught.value.exit_code == 2


def test_an_error_names_the_file_and_the_key(write):
    write("site.toml", "[trainer]\nnodes = 0\n[slurm]\ntime = 02:00:00\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(["base.toml", "site.toml"])
    assert caught.value.where == "site.toml: trainer.nodes"
    assert "(1 more)" in caught.value.what
    write("site.toml", "[slurm]\ntime = 02:00:00\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(["base.toml", "site.toml"])
    assert (caught.value.where, caught.value.fix) == ("site.toml: slurm.time", 'write it in quotes: "02:00:00"')


def test_a_missing_key_is_explained():
    with pytest.raises(ConfigError) as caught:
        validate(Experiment, {"name": "x", "data": {"prompts": "p"}}, {}, default_origin="x.toml")
    assert caught.value.what == "model is missing."
    assert caught.value.where == "x.toml: model"


def test_files_that_cannot_be_read(write, tmp_path):
    write("bad.toml", 'name = "x"\nsteps = = 2\n')
    with pytest.raises(ConfigError, match="line 2"):
        load_experiment(["bad.toml"])
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_experiment(["latin.toml"])
    with pytest.raises(ConfigError, match="There is no file"):
        load_experiment(["nothing.toml"])
    with pytest.raises(ConfigError) as caught:
        load_experiment(["dmeo"])
    assert caught.value.what == "There is no recipe 'dmeo'." and "did you mean 'demo'?" in caught.value.fix


VALUES = st.recursive(st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(VALUES)
def test_whatever_a_file_holds_the_error_is_ours(value):
    values = value if isinstance(value, dict) else {"name": "x", "model": value, "data": value, "rollout": {"groups": value}}
    with pytest.raises(ConfigError):
        validate(Experiment, values, {}, default_origin="x.toml")
