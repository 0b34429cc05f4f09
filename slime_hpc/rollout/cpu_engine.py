"""What SGLang needs in order to run on a CPU, and to sample there by each request's own seed.

Applied by `sglang_server` in every process of an engine on a CPU cluster, before SGLang starts. Four things are replaced:

- The hash behind seeded sampling (`murmur_hash32`) exists as CUDA kernel and in a CPU kernel build only; here it is in torch,
  with the same bits.
- SGLang's batch-invariant operators are Triton kernels. On a CPU the last bits of a row of a matrix product depend on how many rows
  there are, in a way that differs with shape and threads (the BLAS chooses its path by them): here every product is made of products of
  one fixed number of rows.
- `torch_native` joins the attention backends that are allowed with `enable_deterministic_inference`: it attends to one request at a
  time, so a request cannot see its neighbours.
- SGLang's checker of weights waits for the GPU, whatever the device: on a CPU there is nothing to wait for.
- Host memory that keeps the experts of every token is registered with CUDA; there is none to register it with.

Knows nothing of ports, tokens or experiments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_MASK = 0xFFFFFFFF
_TILE_ROWS = 32
"""As many as a CPU engine has requests at most, so that a decode step is one tile; a long prefill takes up to twice its time."""


def _rotate_left(x: torch.Tensor, bits: int) -> torch.Tensor:
    return ((x << bits) | (x >> (32 - bits))) & _MASK


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = (_rotate_left((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK
    return (_rotate_left(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def murmur_hash32(seed_N: torch.Tensor, position_N: torch.Tensor, column_V: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bit) of seed (two blocks), position and column: (N, V) values of 0 .. 2**32 - 1, as SGLang's kernel has them."""
    seed = seed_N.to(torch.int64)
    state = torch.zeros_like(seed)
    for block in (seed & _MASK, (seed >> 32) & _MASK, position_N.to(torch.int64) & _MASK):
        state = _mix(state, block)
    state = _mix(state[:, None], column_V.to(torch.int64)[None, :] & _MASK) ^ 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return state ^ (state >> 16)


def in_tiles(product: Callable[[torch.Tensor], torch.Tensor], rows_NK: torch.Tensor) -> torch.Tensor:
    """`product` of all rows, computed for `_TILE_ROWS` of them at a time; the last ones are padded with zeros."""
    count = rows_NK.shape[0]
    tiles = torch.nn.functional.pad(rows_NK, (0, 0, 0, -count % _TILE_ROWS)).split(_TILE_ROWS)
    return torch.cat([product(tile) for tile in tiles])[:count]


def use_batch_invariant_products() -> None:
    """Compute `linear` and two-dimensional `matmul` in tiles in this process, so that no row depends on its neighbours' number."""
    linear, matmul = torch.nn.functional.linear, torch.matmul

    def invariant_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if input.dim() != 2 or input.shape[0] == 0:
            return linear(input, weight, bias)
        return in_tiles(lambda tile: linear(tile, weight, bias), input)

    def invariant_matmul(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None or input.dim() != 2 or other.dim() != 2 or input.shape[0] == 0:
            return matmul(input, other, out=out)
        return in_tiles(lambda tile: matmul(tile, other), input)

    torch.nn.functional.linear = invariant_linear
    torch.matmul = invariant_matmul


def apply() -> None:
    """Make SGLang, in this process, run deterministically on a CPU. Before SGLang's server or scheduler starts."""
    import sglang.srt.batch_invariant_ops as batch_invariant_ops
    import sglang.srt.layers.sampler as sampler
    import sglang.srt.mem_cache.pool_host.common as pool_host
    from sglang.srt.arg_groups.choices import add_deterministic_attention_backend_choices

    sampler.murmur_hash32 = murmur_hash32
    batch_invariant_ops.enable_batch_invariant_mode = use_batch_invariant_products
    pool_host._cuda_host_register = lambda *_: None
    add_deterministic_attention_backend_choices(["torch_native"])
    torch.cuda.synchronize = lambda *args, **kwargs: None  # type: ignore[assignment]
