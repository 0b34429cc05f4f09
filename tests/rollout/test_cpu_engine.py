import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import slime_hpc.rollout.engine as engine
from slime_hpc.rollout.cpu_engine import murmur_hash32, use_batch_invariant_products

MASK = 0xFFFFFFFF


def rotate(x, bits):
    return ((x << bits) | (x >> (32 - bits))) & MASK


def murmur3(data, seed=0):
    """MurmurHash3_x86_32 of whole 4-byte blocks (Appleby's reference, in Python)."""
    state = seed
    for i in range(0, len(data), 4):
        block = int.from_bytes(data[i : i + 4], "little")
        block = (rotate((block * 0xCC9E2D51) & MASK, 15) * 0x1B873593) & MASK
        state = (rotate(state ^ block, 13) * 5 + 0xE6546B64) & MASK
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & MASK
    return state ^ (state >> 16)


def test_the_reference_gives_a_published_value():
    assert murmur3(b"test") == 0xBA6BD213


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=5), st.integers(1, 9))
def test_the_hash_is_murmur3_of_seed_position_and_column(rows, columns):
    seed, position = (torch.tensor(values, dtype=torch.int64) for values in zip(*rows, strict=True))
    hashed = murmur_hash32(seed.to(torch.uint64), position, torch.arange(columns))
    for i, (s, p) in enumerate(rows):
        for column in range(columns):
            data = s.to_bytes(8, "little") + p.to_bytes(4, "little") + column.to_bytes(4, "little")
            assert int(hashed[i, column]) == murmur3(data)


@pytest.fixture
def invariant(monkeypatch):
    # Registers the originals, so that they come back after the test.
    monkeypatch.setattr(torch.nn.functional, "linear", torch.nn.functional.linear)
    monkeypatch.setattr(torch, "matmul", torch.matmul)
    use_batch_invariant_products()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(64, 128), (576, 1536), (1536, 576), (100, 77)])
def test_a_row_does_not_depend_on_its_neighbours(invariant, threads, shape):
    width, height = shape
    generator = torch.Generator().manual_seed(0)
    weight, bias, rows = (torch.randn(*size, generator=generator) for size in ((height, width), (height,), (70, width)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        full = torch.nn.functional.linear(rows, weight, bias)
        product = torch.matmul(rows, weight.T)
        for count in [*range(1, 40), 63, 70]:
            assert torch.equal(torch.nn.functional.linear(rows[:count], weight, bias), full[:count])
            assert torch.equal(torch.matmul(rows[:count], weight.T), product[:count])
        order = torch.randperm(70, generator=generator)
        assert torch.equal(torch.nn.functional.linear(rows[order], weight, bias), full[order])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(full, rows @ weight.T + bias)


def test_products_of_other_shapes_are_as_before(invariant):
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(torch.matmul(a, b), torch.einsum("bij,bjk->bik", a, b))
    torch.testing.assert_close(torch.nn.functional.linear(a, torch.eye(4)), a)
    assert torch.nn.functional.linear(torch.empty(0, 4), torch.eye(4)).shape == (0, 4)


def test_the_stand_ins_serve_imports_and_nothing_else():
    shims = Path(engine.__file__).with_name("cpu_shims")
    source = """
import triton, triton.language as tl
from triton.runtime.driver import driver
from sgl_kernel import anything
from torchvision.transforms import InterpolationMode
from torchvision.io import decode_jpeg
assert triton.__file__.startswith(SHIMS) and triton.cdiv(7, 2) == 4 and triton.next_power_of_2(5) == 8
@triton.jit
def f(x, y: tl.constexpr): return x + y
@triton.autotune(configs=[triton.Config({"a": 1})], key=[])
def g(x): return x
assert f(1, 2) == 3 and g(4) == 4
for call in (anything, decode_jpeg):
    try: call()
    except RuntimeError: pass
    else: raise AssertionError(call)
"""
    environment = os.environ | {"PYTHONPATH": str(shims)}
    done = subprocess.run([sys.executable, "-c", f"SHIMS = {str(shims)!r}\n{source}"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
