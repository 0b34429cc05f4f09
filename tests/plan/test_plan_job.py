import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.errors import DataError, PlanError
from slime_hpc.plan.job import PORTS_PER_TASK, JobPlan
from slime_hpc.plan.plan_job import check_prompt_files, plan_job


def places(plan):
    """Every (node, GPU) with the roles that have it, and every (node, port)."""
    gpus, ports = {}, {}
    for role in plan.roles:
        for node in role.nodes:
            for gpu in range(role.gpu_first, role.gpu_first + role.gpus_per_node):
                gpus.setdefault((node, gpu), []).append(role.name)
            for port in range(role.port_first, role.port_first + role.tasks_per_node * PORTS_PER_TASK):
                ports.setdefault((node, port), []).append(role.name)
    return gpus, ports


def test_trainer_first_then_engines_and_sidecars_beside_the_first_node(make_experiment, make_topology):
    plan = plan_job(
        make_experiment(trainer__nodes=2, rollout__groups=[{"engines": 4, "gpus_per_engine": 4}], trainer__tensor_parallel=2),
        make_topology(),
    )
    assert [role.name for role in plan.roles] == ["controller", "router", "trainer", "engines"]
    assert [role.nodes for role in plan.roles] == [(0,), (0,), (0, 1), (2, 3)]
    assert [role.tasks_per_node for role in plan.roles] == [1, 1, 8, 2]
    assert [role.gpus_per_node for role in plan.roles] == [0, 0, 8, 8]
    assert (plan.num_nodes, plan.data_parallel) == (4, 8)
    assert plan.role("trainer").num_tasks == 16 and plan.of_kind("engines") == (plan.roles[3],)


def test_several_groups_have_names_of_their_own(make_experiment, make_topology):
    groups = [{"engines": 2, "gpus_per_engine": 8}, {"engines": 8}]
    plan = plan_job(make_experiment(rollout__groups=groups), make_topology())
    assert [(role.name, role.nodes, role.group) for role in plan.of_kind("engines")] == [("engines-0", (1, 2), 0), ("engines-1", (3,), 1)]


def test_on_one_node_each_role_takes_the_gpus_after_the_one_before(make_experiment, make_topology):
    groups = [{"engines": 2, "gpus_per_engine": 2}]
    plan = plan_job(make_experiment(trainer__gpus_per_node=4, rollout__groups=groups), make_topology(nodes=1))
    assert (plan.role("trainer").gpu_first, plan.role("engines").gpu_first, plan.num_nodes) == (0, 4, 1)


def test_on_a_cpu_cluster_the_trainer_takes_as_few_ranks_as_its_parallel_sizes_need(make_experiment, make_topology):
    cpu = make_topology(accelerator="cpu", node__gpu_memory_gib=0)
    assert plan_job(make_experiment(), cpu).role("trainer").num_tasks == 1
    assert plan_job(make_experiment(trainer__nodes=2, trainer__tensor_parallel=2), cpu).role("trainer").num_tasks == 2


@given(st.data())
def test_a_plan_fits_whatever_is_asked_or_says_why_not(make_experiment, make_topology, data):
    size = st.sampled_from([1, 2, 4, 8])
    topology = make_topology(
        nodes=data.draw(st.integers(1, 6)), node__gpus=data.draw(size), node__cpus=data.draw(st.integers(8, 64)),
        network__port_first=data.draw(st.sampled_from([21000, 64500])), accelerator=data.draw(st.sampled_from(["cpu", "cuda"])),
    )  # fmt: skip
    groups = st.fixed_dictionaries({"engines": st.integers(1, 9), "gpus_per_engine": size}, optional={"nodes": st.integers(0, 3)})
    experiment = make_experiment(
        trainer__nodes=data.draw(st.integers(1, 4)), trainer__gpus_per_node=data.draw(st.sampled_from([0, 1, 2, 3, 8])),
        trainer__tensor_parallel=data.draw(size), trainer__pipeline_parallel=data.draw(st.sampled_from([1, 2])),
        rollout__groups=data.draw(st.lists(groups, min_size=1, max_size=3)), rollout__prompts_per_step=96,
    )  # fmt: skip
    try:
        plan = plan_job(experiment, topology)
    except PlanError as error:
        assert error.where and error.fix
        return
    gpus, ports = places(plan)
    assert all(len(roles) == 1 for roles in gpus.values()) and all(len(roles) == 1 for roles in ports.values())
    assert all(node < topology.nodes and gpu < topology.node.gpus for node, gpu in gpus)
    assert all(port <= 65535 for _, port in ports)
    assert {node for node, _ in ports} == set(range(plan.num_nodes))
    assert all(role.cpus_per_task * role.tasks_per_node <= topology.node.cpus for role in plan.roles if role.gpus_per_node)
    for index, group in enumerate(experiment.rollout.groups):
        role = plan.of_kind("engines")[index]
        assert (role.num_tasks, role.gpus_per_node) == (group.engines, role.tasks_per_node * group.gpus_per_engine)
    model_parallel = experiment.trainer.tensor_parallel * experiment.trainer.pipeline_parallel
    assert plan.role("trainer").num_tasks == plan.data_parallel * model_parallel
    assert JobPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_ports_are_a_nodes_so_that_a_large_job_has_enough(make_experiment, make_topology):
    groups = [{"engines": 1000, "gpus_per_engine": 8}]
    experiment = make_experiment(trainer__nodes=1000, rollout__prompts_per_step=1000, rollout__groups=groups)
    plan = plan_job(experiment, make_topology(nodes=2000))
    assert max(role.port_first + role.tasks_per_node * PORTS_PER_TASK for role in plan.roles) < 22000


@pytest.mark.parametrize(
    ("changes", "what", "where"),
    [
        ({"trainer__nodes": 8}, "trainer 8 + rollout.groups[0] 1 = 9 nodes; topology 'c' has 8.", "trainer.nodes, rollout.groups"),
        ({"trainer__gpus_per_node": 9}, "trainer.gpus_per_node = 9; a node of 'c' has 8.", "trainer.gpus_per_node"),
        ({"trainer__tensor_parallel": 3}, "16 attention heads do not divide by trainer.tensor_parallel = 3 (16 / 3 = 5.33333).", "tensor"),
        ({"trainer__tensor_parallel": 16}, "8 key-value heads do not divide by trainer.tensor_parallel = 16 (8 / 16 = 0.5).", "tensor"),
        ({"trainer__tensor_parallel": 4, "trainer__gpus_per_node": 6}, "1 nodes x 6 = 6 ranks do not divide by tensor_parallel 4", "gpus"),
        ({"trainer__pipeline_parallel": 8}, "28 layers do not divide by trainer.pipeline_parallel = 8.", "trainer.pipeline_parallel"),
        ({"trainer__sequence_parallel": True}, "there is one", "trainer.sequence_parallel"),
        ({"rollout__groups": [{"gpus_per_engine": 16}]}, "8 key-value heads do not divide by rollout.groups[0].gpus", "groups[0]"),
        ({"rollout__groups": [{"engines": 9}]}, "9 engines on 2 nodes: 9 / 2 = 4.5 a node; a node takes 8 / 1 = 8.", "groups[0].engines"),
        ({"rollout__groups": [{"kind": "prefill"}]}, "'prefill'", "rollout.groups[0].kind"),
        ({"rollout__prompts_per_step": 30, "trainer__updates_per_step": 4}, "30 prompts a step / 4 updates = 7.5", "prompts_per_step"),
        (
            {"rollout__prompts_per_step": 3, "rollout__samples_per_prompt": 4},
            "3 prompts x 4 samples / 1 updates = 12 samples an update; 12 / 8 data-parallel ranks = 1.5, not a whole number.",
            "rollout.prompts_per_step, rollout.samples_per_prompt",
        ),
        (
            {"warm_start__source": "m:f", "warm_start__samples_per_step": 12},
            "12 demonstrations a step / 8 data-parallel ranks = 1.5, not a whole number.",
            "warm_start.samples_per_step",
        ),
        ({"rollout__samples_per_prompt": 1}, "grpo compares", "rollout.samples_per_prompt"),
        ({"rollout__max_tokens": 512, "rollout__context_length": 512}, "no room for a prompt in a context of 512", "max_tokens"),
        ({"rollout__context_length": 50000}, "exceeds the model's 40960 positions", "rollout.context_length"),
        ({"trainer__tokens_per_gpu": 10**7}, "GiB; it has 80.0.", "trainer.tokens_per_gpu"),
        ({"container__runtime": "apptainer"}, "Container runtime 'apptainer' needs an image.", "container.image"),
    ],
)
def test_what_does_not_fit_is_shown_with_its_arithmetic(make_experiment, make_topology, changes, what, where):
    with pytest.raises(PlanError) as caught:
        plan_job(make_experiment(**changes), make_topology())
    assert what in caught.value.what
    assert where in caught.value.where
    assert caught.value.fix and caught.value.exit_code == 2


def test_one_node_that_is_too_small_for_both(make_experiment, make_topology):
    with pytest.raises(PlanError, match="GPUs 8 to 8 of a node are needed; topology 'c' has 8"):
        plan_job(make_experiment(), make_topology(nodes=1))


def test_fewer_cores_than_tasks(make_experiment, make_topology):
    with pytest.raises(PlanError, match=r"\(8 - 4\) / 8 is less than one core each"):
        plan_job(make_experiment(), make_topology(node__cpus=8))


def test_ports_that_run_out(make_experiment, make_topology):
    with pytest.raises(PlanError, match="the last there is is 65535"):
        plan_job(make_experiment(), make_topology(network__port_first=65000, node__gpus=64, node__cpus=400))


def test_an_account_that_is_required(make_experiment, make_topology):
    topology = make_topology(scheduler__account_required=True)
    with pytest.raises(PlanError, match="charges an account"):
        plan_job(make_experiment(), topology)
    assert plan_job(make_experiment(slurm__account="a"), topology)


def test_memory_falls_with_the_parallel_sizes_and_recomputation(make_experiment, make_topology):
    def trainer(**changes):
        return plan_job(make_experiment(**changes), make_topology()).memory[0]

    base = trainer()
    # 16 heads x 128: 28 x (1024 x 128 x (2 x 16 + 2 x 8) + 3 x 1024 x 3072) + 151936 x 1024 weights, 2 bytes each
    assert base.weights_gib == pytest.approx((28 * (1024 * 128 * 48 + 3 * 1024 * 3072) + 151936 * 1024) * 2 / 2**30)
    assert base.optimizer_gib == pytest.approx(base.weights_gib / 2 * 12 / 8)
    assert trainer(trainer__tensor_parallel=2).weights_gib == pytest.approx(base.weights_gib / 2)
    assert trainer(algorithm__kl_coef=0.1).weights_gib == pytest.approx(2 * base.weights_gib)
    assert trainer(trainer__recompute=True).activations_gib == pytest.approx(base.activations_gib / 28)
    assert trainer(model__dtype="float32").activations_gib == pytest.approx(2 * base.activations_gib)


def test_an_engine_queues_what_its_cache_does_not_hold(make_experiment, make_topology):
    few = plan_job(make_experiment(rollout__concurrency=10), make_topology()).memory[1]
    # 2 x 28 layers x 8 heads x 128 x 2 bytes a token; 10 requests of 2048 tokens
    assert few.cache_gib == pytest.approx(10 * 2048 * 2 * 28 * 8 * 128 * 2 / 2**30)
    many = plan_job(make_experiment(rollout__concurrency=100_000, rollout__prompts_per_step=8000), make_topology()).memory[1]
    assert few.cache_gib < many.cache_gib and many.total_gib < many.available_gib


def test_an_engine_that_cannot_hold_its_weights(make_experiment, make_topology):
    topology = make_topology(accelerator="cpu", node__gpu_memory_gib=0, node__memory_gib=28, node__gpus=40)
    with pytest.raises(PlanError, match=r"engines: weights 1\.1") as caught:
        plan_job(make_experiment(rollout__groups=[{"engines": 40}]), topology)
    assert caught.value.fix == "raise gpus_per_engine"


@pytest.mark.parametrize(("line", "what"), [("", "holds no prompt"), ('{"prompt": "a"}', "no field 'answer'"), ("{", "not JSON")])
def test_prompt_files_are_read_before_anything_is_submitted(make_experiment, tmp_path, line, what):
    (tmp_path / "p.jsonl").write_text(line)
    (tmp_path / "good.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    for key in ("data", "eval"):
        files = {f"{k}__prompts": str(tmp_path / ("p.jsonl" if k == key else "good.jsonl")) for k in ("data", "eval")}
        with pytest.raises(DataError, match=what):
            check_prompt_files(make_experiment(**files))
