import pytest

from slime_hpc.errors import PlanError
from slime_hpc.plan.plan_job import plan_job

SHARED = {"rollout__colocate": True, "sync__transport": "ipc", "trainer__gpus_per_node": 1}


def test_engine_and_trainer_have_the_same_gpu(make_experiment, make_topology):
    plan = plan_job(make_experiment(**SHARED), make_topology(nodes=1, node__gpus=1))
    trainer, engine = plan.role("trainer"), plan.role("engines")
    assert (trainer.nodes, trainer.gpu_first, trainer.gpus_per_node) == ((0,), 0, 1)
    assert (engine.nodes, engine.gpu_first, engine.gpus_per_node) == ((0,), 0, 1)
    assert trainer.port_first != engine.port_first


@pytest.mark.parametrize(
    ("changes", "topology", "what"),
    [
        (SHARED | {"trainer__gpus_per_node": 2}, {}, "there are 1 x 2 ranks and engines of 1 GPUs"),
        (SHARED | {"rollout__groups": [{"engines": 2}]}, {}, "there are 1 x 1 ranks and engines of 2 GPUs"),
        (SHARED | {"sync__transport": "distributed"}, {}, "NCCL does not join two processes on one GPU"),
        (SHARED, {"accelerator": "cpu", "node__gpu_memory_gib": 0}, "shares a GPU; 'c' has none"),
        ({"sync__transport": "ipc"}, {}, "IPC needs trainer and engine on one GPU"),
    ],
)
def test_what_cannot_share_a_gpu(make_experiment, make_topology, changes, topology, what):
    with pytest.raises(PlanError, match=what):
        plan_job(make_experiment(**changes), make_topology(**topology))
