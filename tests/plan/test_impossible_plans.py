"""What a site would refuse, or leave waiting for ever, is refused before anything is written."""

import pytest

from slime_hpc.errors import PlanError
from slime_hpc.plan.plan_job import plan_job

LIMITS = [
    {"partition": "gpu", "max_time": "24:00:00", "max_nodes": 6},
    {"qos": "debug", "max_time": "00:30:00", "max_nodes": 2},
    {"qos": "large", "min_nodes": 4},
    {"partition": "gpu", "qos": "long", "max_time": "10:00:00"},
]
SITE = {"scheduler__partition": "gpu", "scheduler__limits": LIMITS, "scheduler__default_time": "04:00:00"}
CASES = {
    "no account": ({}, {"scheduler__account_required": True}, "charges an account", "slurm.account"),
    "another account": ({"slurm__account": "abc"}, {"scheduler__account_suffix": "@h100"}, "end in '@h100'", "scheduler.account_suffix"),
    "no image": ({}, {"container__runtime": "pyxis"}, "'pyxis' needs an image", "container.image"),
    "too long for the partition": ({"slurm__time": "1-00:00:01"}, SITE, "'gpu' allows 24:00:00", "scheduler.limits.0.max_time"),
    "too long for the QoS": ({"slurm__qos": "debug", "slurm__time": "31"}, SITE, "QoS 'debug' allows 00:30:00", "limits.1.max_time"),
    "too long for both": ({"slurm__qos": "long", "slurm__time": "11:00:00"}, SITE, "'gpu' with QoS 'long'", "limits.3.max_time"),
    "the default too long for the QoS": ({"slurm__qos": "debug"}, SITE, "A time limit of 04:00:00", "slurm.time"),
    "too many nodes": (
        {"trainer__nodes": 6, "rollout__prompts_per_step": 42}, SITE,
        "A job of 7 nodes; partition 'gpu' takes jobs of at most 6", "limits.0.max_nodes",
    ),
    "too few nodes": ({"slurm__qos": "large"}, SITE, "A job of 2 nodes; QoS 'large' takes jobs from 4", "limits.2.min_nodes"),
    "over before the signal": ({"slurm__time": "2"}, {}, "A time limit of 2 is over before", "scheduler.grace_s"),
    "segments that do not fit": ({"trainer__nodes": 4}, {"scheduler__segment": 4}, "5 / 4 = 1.25", "scheduler.segment"),
    "a forbidden option": ({"slurm__extra": ["--mem=0"]}, {"scheduler__forbidden": ["--mem"]}, "refuses jobs with --mem", "slurm.extra"),
    "nodes by hand": ({"slurm__extra": ["--nodes=9"]}, {}, "--nodes, which comes from the plan", "slurm.extra"),
    "another log": ({"slurm__extra": ["--output=x"]}, {}, "--output, which comes from the run folder", "slurm.extra"),
    "a folder nobody shares": ({"runs": "/tmp/runs"}, {"shared": ["/scratch", "/home"]}, "share /scratch, /home only", "topology: shared"),
    "a folder with a shared name's beginning": ({"runs": "/scratch2"}, {"shared": ["/scratch"]}, "would lie in /scratch2", "runs"),
    "more nodes than there are": ({"trainer__nodes": 8}, {}, "trainer 8 + rollout.groups[0] 1 = 9 nodes", "trainer.nodes"),
    "an engine over nodes": (
        {"rollout__groups": [{"gpus_per_engine": 8}]}, {"node__gpus": 4}, "does not fit on a node of 4",
        "gpus_per_engine",
    ),
    "engines that do not spread": ({"rollout__groups": [{"engines": 3, "nodes": 2}]}, {}, "3 / 2 = 1.5", "rollout.groups[0].engines"),
    "more ranks than GPUs": ({"trainer__gpus_per_node": 9}, {}, "trainer.gpus_per_node = 9", "at most 8"),
    "ranks that do not divide": (
        {"trainer__gpus_per_node": 3, "trainer__tensor_parallel": 2}, {}, "1 nodes x 3 = 3 ranks",
        "multiple of 2",
    ),
    "heads that do not divide": ({"trainer__tensor_parallel": 3}, {}, "16 / 3 = 5.33333", "trainer.tensor_parallel"),
    "layers that do not divide": ({"trainer__pipeline_parallel": 8}, {}, "28 layers do not divide", "trainer.pipeline_parallel"),
    "a batch that does not divide": ({"rollout__prompts_per_step": 1, "rollout__samples_per_prompt": 3}, {}, "3 / 8", "samples_per_prompt"),
    "no cores": ({}, {"node__cpus": 8}, "less than one core each", "node.cpus"),
    "no ports": (
        {}, {"network__port_first": 65000, "node__gpus": 64, "node__cpus": 400}, "the last there is is 65535",
        "network.port_first",
    ),
    "too little memory": ({"trainer__tokens_per_gpu": 900000}, {}, "GiB; it has 80.0", "trainer.tokens_per_gpu"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_impossible_plan_says_what_where_and_what_to_change(case, make_experiment, make_topology):
    asked, site, what, where = CASES[case]
    with pytest.raises(PlanError) as caught:
        plan_job(make_experiment(**asked), make_topology(**site))
    assert what in caught.value.what
    assert where in f"{caught.value.where} {caught.value.fix}"
    assert caught.value.fix and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("asked", "site"),
    [
        ({"slurm__time": "24:00:00"}, SITE),
        ({"slurm__qos": "debug", "slurm__time": "00:30:00"}, SITE),
        ({"slurm__qos": "large", "trainer__nodes": 3, "rollout__prompts_per_step": 42}, SITE),
        ({"slurm__partition": "other", "slurm__time": "2-00:00:00"}, SITE),
        ({"slurm__account": "abc@h100"}, {"scheduler__account_required": True, "scheduler__account_suffix": "@h100"}),
        ({"trainer__nodes": 7, "rollout__prompts_per_step": 42}, {"scheduler__segment": 4}),
        ({"trainer__nodes": 2}, {"scheduler__segment": 4}),
        ({"runs": "/scratch/me/runs"}, {"shared": ["/scratch"]}),
        ({"slurm__time": "00:02:01"}, {}),
    ],
)
def test_what_a_site_allows_is_planned(asked, site, make_experiment, make_topology):
    assert plan_job(make_experiment(**asked), make_topology(**site)).num_nodes >= 2
