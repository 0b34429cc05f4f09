import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.sync.buckets import TensorSpec, flatten, held, is_expert, itemsize, plan, stream

NAMES = ("layers.0.mlp.experts.3.up", "layers.0.mlp.shared_experts.up", "norm")


def make_spec(i, name, dtype, shape):
    return TensorSpec(name=f"{name}.{i}", dtype=dtype, shape=tuple(shape))


specs = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["float32", "bfloat16", "int8"]), st.lists(st.integers(0, 7), max_size=3)),
    max_size=30,
).map(lambda drawn: [make_spec(i, *each) for i, each in enumerate(drawn)])


def tensors_of(specs):
    return [(spec.name, torch.randn(spec.shape).to(getattr(torch, spec.dtype))) for spec in specs]


@given(specs, st.integers(1, 500))
def test_a_plan_has_every_tensor_once_in_order_and_keeps_the_limit(specs, limit):
    buckets = plan(specs, limit)
    assert [spec for bucket in buckets for spec in sorted(bucket, key=specs.index)] == specs
    for bucket in buckets:
        assert len({is_expert(spec.name) for spec in bucket}) == 1
        assert len(bucket) == 1 or sum(spec.num_bytes for spec in bucket) <= limit


@given(specs, st.integers(1, 500))
def test_every_tensor_of_a_bucket_is_aligned(specs, limit):
    for bucket in plan(specs, limit):
        start = 0
        for spec in bucket:
            assert start % itemsize(spec.dtype) == 0
            start += spec.num_bytes


@given(specs, st.integers(1, 500))
def test_a_bucket_closes_only_where_it_must(specs, limit):
    for before, after in itertools.pairwise(plan(specs, limit)):
        first = min(after, key=specs.index)
        total = sum(spec.num_bytes for spec in before) + first.num_bytes
        assert total > limit or is_expert(before[0].name) != is_expert(first.name)


@given(specs, st.integers(1, 500))
def test_streamed_buckets_are_the_planned_ones(specs, limit):
    tensors = tensors_of(specs)
    streamed = [[TensorSpec.of(name, tensor) for name, tensor in bucket] for bucket in stream(iter(tensors), limit)]
    assert streamed == plan(specs, limit)


@given(specs, st.integers(1, 500))
def test_flat_bytes_give_the_tensors_back(specs, limit):
    for bucket in stream(tensors_of(specs), limit):
        data = flatten(bucket)
        start = 0
        for _, tensor in bucket:
            part = data[start : start + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
            assert torch.equal(part.view(torch.uint8) if part.dim() else part, tensor.view(torch.uint8) if tensor.dim() else tensor)
            start += tensor.nbytes
        assert start == data.numel()


def test_flatten_fills_what_it_is_given_where_that_is_large_enough():
    buffer = torch.zeros(32, dtype=torch.uint8)
    bucket = [("a", torch.ones(3)), ("b", torch.ones(2, dtype=torch.bfloat16))]
    data = flatten(bucket, into=buffer)
    assert data.data_ptr() == buffer.data_ptr()
    assert torch.equal(data, flatten(bucket))
    assert flatten([("c", torch.ones(9))], into=buffer).data_ptr() != buffer.data_ptr()


def test_flatten_takes_any_layout():
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert torch.equal(flatten([("t", tensor)]).view(torch.float32).reshape(4, 3), tensor)


def test_num_bytes_is_what_torch_says():
    for shape in [(), (0,), (3,), (2, 5, 7)]:
        for dtype in (torch.float32, torch.bfloat16, torch.uint8):
            tensor = torch.empty(shape, dtype=dtype)
            spec = TensorSpec.of("t", tensor)
            assert spec.num_bytes == tensor.nbytes == math.prod(shape) * dtype.itemsize


def test_held_runs_through_all_and_keeps_what_is_here():
    tensor = torch.zeros(1)
    assert list(held([("a", None), ("b", tensor), ("c", None)])) == [("b", tensor)]


def test_stream_holds_one_bucket_back_at_most():
    taken = []

    def tensors():
        for i in range(6):
            taken.append(i)
            yield f"t{i}", torch.zeros(4)

    next(stream(tensors(), 32))
    assert taken == [0, 1, 2]
