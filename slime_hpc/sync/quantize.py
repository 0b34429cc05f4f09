"""Weights as quantized engines hold them: a pure function for each kind, from one Hugging Face tensor to the tensors that stand for it.

'fp8_block' is the form of DeepSeek-V3's checkpoints (DeepSeek-AI 2024, section 3.3): float8_e4m3 with one float32 scale for each block of
128 x 128, `weight = quantized * weight_scale_inv`. Scales are plain float32, not the powers of two that some kernels of newer GPUs want.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
import torch.nn.functional as F

from slime_hpc.sync.buckets import NamedTensor

BLOCK = 128
_FP8 = torch.float8_e4m3fn
_LINEAR = re.compile(r"\.\w+_proj\w*\.weight$")
"""Projections of attention and MLP; embeddings, norms, routers and the output layer keep the model's dtype."""


def quantize_block(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix (rows, columns) as float8_e4m3 of the same shape, and its scales (ceil(rows / 128), ceil(columns / 128)) in float32.

    A block's scale is its largest magnitude / 448; a block of zeros has scale 1.
    """
    rows, columns = weight.shape
    padded = F.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / torch.finfo(_FP8).max
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    quantized = (blocks / scale[:, None, :, None]).view_as(padded)[:rows, :columns]
    return quantized.contiguous().to(_FP8), scale


def _as_it_is(name: str, tensor: torch.Tensor) -> list[NamedTensor]:
    return [(name, tensor)]


def _fp8_block(name: str, tensor: torch.Tensor) -> list[NamedTensor]:
    if tensor.dim() != 2 or not _LINEAR.search(name):
        return [(name, tensor)]
    quantized, scale = quantize_block(tensor.detach())
    return [(name, quantized), (f"{name}_scale_inv", scale)]


QUANTIZERS: dict[str, Callable[[str, torch.Tensor], list[NamedTensor]]] = {"none": _as_it_is, "fp8_block": _fp8_block}
