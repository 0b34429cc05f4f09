"""Context and expert parallelism in the plan: what multiplies out, and what is said where it does not."""

import json

import pytest

from slime_hpc.errors import PlanError
from slime_hpc.plan.plan_job import plan_job
from tests.plan.test_model_config import QWEN3_30B


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3-moe")
    (folder / "config.json").write_text(json.dumps({**QWEN3_30B, "max_position_embeddings": 40960}))
    (folder / "model.safetensors").touch()
    return {"model__path": str(folder)}


def test_context_parallel_ranks_are_not_data_parallel_ones(make_experiment, make_topology):
    plan = plan_job(make_experiment(trainer__context_parallel=2, trainer__tensor_parallel=2), make_topology())
    assert (plan.role("trainer").num_tasks, plan.data_parallel) == (8, 2)


def test_context_parallel_ranks_share_a_larger_pack(make_experiment):
    trainer = make_experiment(trainer__context_parallel=4, trainer__tokens_per_gpu=1000).trainer
    assert (trainer.tokens_per_pack, trainer.model_ranks) == (4000, 4)


def test_on_a_cpu_cluster_there_are_as_many_ranks_as_experts_need(with_experts, make_experiment, make_topology):
    sizes = {"trainer__expert_parallel": 4, "trainer__pipeline_parallel": 2, "trainer__context_parallel": 2}
    topology = make_topology(accelerator="cpu", node__memory_gib=8000)
    plan = plan_job(make_experiment(**with_experts, **sizes), topology)
    assert (plan.role("trainer").num_tasks, plan.data_parallel) == (8, 2)


def test_expert_parallelism_splits_the_memory_of_experts(with_experts, make_experiment, make_topology):
    def weights_gib(**sizes):
        plan = plan_job(make_experiment(**with_experts, **sizes), make_topology(node__gpu_memory_gib=100_000))
        return next(part.weights_gib for part in plan.memory if part.role == "trainer")

    assert weights_gib() > 50
    # An eighth of 29 billion parameters of experts, and the rest: 1.5 billion.
    assert weights_gib(trainer__expert_parallel=8) == pytest.approx(2 * (29.0 / 8 + 1.55) * 1e9 / 2**30, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "what", "where"),
    [
        (
            {"trainer__expert_parallel": 3},
            "128 experts do not divide by trainer.expert_parallel = 3 (128 / 3 = 42.6667).",
            "expert_parallel",
        ),
        ({"trainer__expert_tensor_parallel": 5}, "768 channels of an expert do not divide by trainer.expert_tensor", "expert_tensor"),
        ({"trainer__tensor_parallel": 2}, "need each token on one rank alone", "trainer.sequence_parallel"),
        (
            {"trainer__expert_parallel": 16},
            "8 ranks / 1 pipeline stages = 8 ranks a stage, which do not divide by expert_parallel 16 x expert_tensor_parallel 1 = 16.",
            "trainer.expert_parallel, trainer.expert_tensor_parallel",
        ),
    ],
)
def test_experts_that_cannot_be_placed(with_experts, make_experiment, make_topology, changes, what, where):
    with pytest.raises(PlanError) as caught:
        plan_job(make_experiment(**with_experts, **changes), make_topology())
    assert what in caught.value.what and where in caught.value.where
    assert caught.value.fix and caught.value.exit_code == 2


@pytest.mark.parametrize("key", ["expert_parallel", "expert_tensor_parallel"])
def test_a_model_without_experts_has_no_expert_parallelism(make_experiment, make_topology, key):
    with pytest.raises(PlanError, match=f"trainer.{key} = 2, but a Qwen3ForCausalLM has no experts"):
        plan_job(make_experiment(**{f"trainer__{key}": 2}), make_topology())


def test_ranks_must_be_a_multiple_of_all_that_a_replica_needs(make_experiment, make_topology):
    with pytest.raises(PlanError, match="tensor_parallel 1 x pipeline_parallel 1 x context_parallel 3 = 3"):
        plan_job(make_experiment(trainer__context_parallel=3), make_topology())
