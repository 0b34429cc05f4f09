import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slime_hpc.config.schema import Sync
from slime_hpc.sync.quantize import BLOCK, QUANTIZERS, quantize_block

GRID = np.unique(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy())
GRID = GRID[np.isfinite(GRID)]
"""Every value that float8_e4m3 has."""


def reference(weight):
    """The same in NumPy, block by block, value by value: the nearest of all float8 values."""
    rows, columns = weight.shape
    quantized = np.zeros_like(weight)
    scales = np.ones((math.ceil(rows / BLOCK), math.ceil(columns / BLOCK)), np.float32)
    for i, j in np.ndindex(*scales.shape):
        place = np.s_[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
        block = weight[place]
        largest = np.abs(block).max()
        if largest > 0:
            scales[i, j] = largest / np.float32(448)
        scaled = block / scales[i, j]
        above = np.clip(np.searchsorted(GRID, scaled), 1, len(GRID) - 1)
        lower, upper = GRID[above - 1], GRID[above]
        quantized[place] = np.where(scaled - lower < upper - scaled, lower, upper)
    return quantized, scales


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**31), st.sampled_from([1e-6, 1.0, 3e4]))
def test_quantized_blocks_are_those_of_the_reference(rows, columns, seed, size):
    weight = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * np.float32(size)
    quantized, scales = quantize_block(torch.from_numpy(weight))
    expected, expected_scales = reference(weight)
    np.testing.assert_array_equal(scales.numpy(), expected_scales)
    ties = np.abs(quantized.float().numpy() - expected) > 0
    # Halfway between two float8 values either may be right.
    scaled = weight / np.repeat(np.repeat(scales.numpy(), BLOCK, 0), BLOCK, 1)[:rows, :columns]
    np.testing.assert_allclose(np.abs(quantized.float().numpy() - scaled)[ties], np.abs(expected - scaled)[ties], rtol=1e-6)
    assert ties.mean() < 0.01


def test_what_an_engine_computes_with_is_within_half_a_step():
    weight = torch.randn(200, 384, generator=torch.Generator().manual_seed(0))
    quantized, scales = quantize_block(weight)
    assert quantized.dtype == torch.float8_e4m3fn
    assert scales.shape == (2, 3)
    restored = quantized.float() * scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:200, :384]
    # Three bits of mantissa: at most 1/16 of the value, and below 2**-6 of the scale half a step of 2**-9.
    bound = (weight.abs() / 16).clamp(min=float(scales.max()) * 2**-10)
    assert ((restored - weight).abs() <= bound * 1.001).all()


def test_a_block_of_zeros_stays_zero():
    quantized, scales = quantize_block(torch.zeros(128, 256))
    assert (quantized.float() == 0).all()
    assert (scales == 1).all()


@pytest.mark.parametrize(
    ("name", "shape", "quantized"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), True),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (8, 8), True),
        ("model.layers.0.mlp.experts.7.down_proj.weight", (8, 8), True),
        ("model.layers.0.self_attn.q_proj.bias", (8,), False),
        ("model.layers.0.mlp.gate.weight", (8, 8), False),
        ("model.layers.0.input_layernorm.weight", (8,), False),
        ("model.embed_tokens.weight", (8, 8), False),
        ("lm_head.weight", (8, 8), False),
    ],
)
def test_projections_alone_are_quantized(name, shape, quantized):
    made = QUANTIZERS["fp8_block"](name, torch.ones(shape, dtype=torch.bfloat16))
    names = [name, f"{name}_scale_inv"] if quantized else [name]
    assert [each for each, _ in made] == names
    assert made[0][1].dtype == (torch.float8_e4m3fn if quantized else torch.bfloat16)


def test_a_transport_that_would_not_quantize_is_refused():
    with pytest.raises(ValidationError, match="'quantization' is for the transports 'distributed' and 'ipc'; 'disk'"):
        Sync(transport="disk", quantization="fp8_block")
