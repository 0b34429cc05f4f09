"""What a critic and a teacher take of memory, and a teacher that cannot judge the policy's tokens."""

import json

import pytest

from slime_hpc.errors import ConfigError, DataError, PlanError
from slime_hpc.plan.plan_job import plan_job
from tests.plan.conftest import CONFIG


@pytest.fixture
def teacher(tmp_path):
    def make(tokens=None, **sizes):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | sizes))
        (tmp_path / "model.safetensors").touch()
        if tokens:
            (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
        return str(tmp_path)

    return make


def test_a_critic_is_a_second_trained_model_and_a_teacher_more_weights(make_experiment, make_topology, teacher):
    base = plan_job(make_experiment(), make_topology()).memory[0]
    ppo = plan_job(make_experiment(algorithm__advantage="gae", critic={}), make_topology()).memory[0]
    for name in ("weights_gib", "gradients_gib", "optimizer_gib"):
        assert getattr(ppo, name) == pytest.approx(2 * getattr(base, name))
    path = teacher(num_hidden_layers=56)
    taught = plan_job(make_experiment(teacher__path=path), make_topology()).memory[0]
    assert taught.weights_gib == pytest.approx(base.weights_gib * 3 - 151936 * 1024 * 2 / 2**30)
    assert taught.optimizer_gib == base.optimizer_gib


@pytest.mark.parametrize(
    ("sizes", "what", "where"),
    [
        ({"vocab_size": 32000}, "vocabulary of 32000, the policy one of 151936", "vocab_size"),
        ({"num_attention_heads": 9}, "num_heads = 9 does not divide by trainer.tensor_parallel = 2", "trainer.tensor_parallel"),
    ],
)
def test_a_teacher_of_another_shape_is_refused(make_experiment, make_topology, teacher, sizes, what, where):
    with pytest.raises(PlanError, match=what) as caught:
        plan_job(make_experiment(teacher__path=teacher(**sizes), trainer__tensor_parallel=2), make_topology())
    assert caught.value.where.startswith("teacher.path") and where in caught.value.where


def test_a_teacher_with_another_tokenizer_is_refused(make_experiment, make_topology, teacher, tmp_path_factory):
    own = tmp_path_factory.mktemp("own")
    (own / "config.json").write_text(json.dumps(CONFIG))
    (own / "model.safetensors").touch()
    (own / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    taught = {"model__path": str(own)}
    assert plan_job(make_experiment(**taught, teacher__path=teacher({"a": 0, "b": 1})), make_topology())
    with pytest.raises(PlanError, match="numbers 2 tokens otherwise"):
        plan_job(make_experiment(**taught, teacher__path=teacher({"a": 1, "b": 0})), make_topology())


def test_a_missing_teacher_is_named_by_its_own_key(make_experiment, make_topology, tmp_path):
    with pytest.raises(DataError) as caught:
        plan_job(make_experiment(teacher__path=str(tmp_path / "none")), make_topology())
    assert caught.value.where == "teacher.path"


def test_a_dense_model_has_no_routes(make_experiment, make_topology):
    with pytest.raises(PlanError, match="without experts") as caught:
        plan_job(make_experiment(algorithm__route_replay=True), make_topology())
    assert caught.value.where == "algorithm.route_replay"
    with pytest.raises(ConfigError, match="compares with the replay"):
        make_experiment(algorithm__route_replay_compare=True)


@pytest.mark.parametrize(
    ("changes", "what"), [({"algorithm__advantage": "gae"}, "needs the table \\[critic\\]"), ({"critic": {}}, "does not use \\[critic\\]")]
)
def test_a_critic_comes_with_gae_alone(make_experiment, changes, what):
    with pytest.raises(ConfigError, match=what):
        make_experiment(**changes)
