import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.errors import ConfigError
from slime_hpc.sync.buckets import TensorSpec, is_expert
from slime_hpc.sync.push_plan import EngineLayout, Part, TrainerLayout, plan_push

ENGINES = [EngineLayout(tensor=2), EngineLayout(tensor=1), EngineLayout(tensor=2, data=2)]


def parts_of(layers, stages, experts, rows):
    """Parameters of a small model, as a trainer with fused qkv holds them; tied, so that there is no output layer."""

    def spec(name, rows):
        return TensorSpec(name, "bfloat16", (rows, 8))

    yield Part((spec("model.embed_tokens.weight", 4 * rows),), 0)
    for layer in range(layers):
        stage, prefix = layer * stages // layers, f"model.layers.{layer}"
        for expert in range(experts):
            yield Part((spec(f"{prefix}.mlp.experts.{expert}.down_proj.weight", rows),), stage)
        yield Part(tuple(spec(f"{prefix}.self_attn.{x}_proj.weight", rows) for x in "qkv"), stage)
    yield Part((spec("model.norm.weight", 1),), stages - 1)


sizes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.integers(1, 9)).map(lambda t: (t[0] * t[1], *t[1:]))


@given(sizes, st.integers(1, 1000))
def test_every_tensor_goes_once_from_its_own_stage(sizes, limit):
    trainer = TrainerLayout(world=2 * sizes[1], tensor=2, pipeline=sizes[1], expert=2)
    plan = plan_push(parts_of(*sizes), trainer, ENGINES, limit_bytes=limit)
    expected = {spec: 2 * part.stage for part in parts_of(*sizes) for spec in part.specs}
    sent = [(spec, bucket.source) for bucket in plan.buckets for spec in bucket.specs]
    assert len(sent) == len(expected)
    assert dict(sent) == expected
    for bucket in plan.buckets:
        assert bucket.num_bytes <= limit or len(bucket.specs) == 1
        assert len({is_expert(spec.name) for spec in bucket.specs}) == 1


@given(sizes, st.integers(1, 1000))
def test_heads_take_turns_and_experts_come_last(sizes, limit):
    trainer = TrainerLayout(world=sizes[1], pipeline=sizes[1])
    plan = plan_push(parts_of(*sizes), trainer, ENGINES, limit_bytes=limit)
    order = [(bucket.source, is_expert(bucket.specs[0].name)) for bucket in plan.buckets]
    assert order == sorted(order)


@given(sizes, st.integers(1, 1000))
def test_a_plan_does_not_depend_on_the_order_of_stages(sizes, limit):
    trainer = TrainerLayout(world=sizes[1], pipeline=sizes[1])
    parts = list(parts_of(*sizes))
    plan = plan_push(parts, trainer, ENGINES, limit_bytes=limit)
    assert plan_push(sorted(parts, key=lambda part: -part.stage), trainer, ENGINES, limit_bytes=limit) == plan


def test_no_more_buckets_than_bytes_need():
    trainer = TrainerLayout(world=2, pipeline=2)
    plan = plan_push(parts_of(8, 2, 4, 8), trainer, ENGINES, limit_bytes=1024)
    total = sum(bucket.num_bytes for bucket in plan.buckets)
    # Tensors are an eighth of a bucket: seven eighths at least are full, but for the last bucket of each stage and kind.
    assert len(plan.buckets) <= total / (1024 * 7 / 8) + 4


def test_engines_follow_one_another_behind_the_head():
    plan = plan_push([], TrainerLayout(world=1), ENGINES, limit_bytes=1)
    assert plan.engine_ranks == (1, 3, 4)
    assert plan.group_size == 8


def test_ranks_that_cannot_be_split_are_refused():
    with pytest.raises(ConfigError, match="6 trainer ranks cannot be split into tensor 4"):
        TrainerLayout(world=6, tensor=4)
