"""What Megatron-core takes for granted of CUDA, replaced where there is no GPU. `install` once, before any part of Megatron is built.

Every replacement is a stand-in for a call that has no effect, or one meaning only, on a CPU. Does nothing where CUDA is available.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

_CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "zeros_like", "empty_like", "ones_like")


def install() -> None:
    """Patch torch.cuda, a collective and two places of Megatron-core; without effect the second time."""
    if torch.cuda.is_available() or getattr(torch.cuda.current_device, "is_stand_in", False):
        return
    _patch_device()
    _patch_streams()
    _patch_random()
    _patch_type_names()
    _patch_optimizer()
    _patch_all_to_all()


def _patch_device() -> None:
    def current_device() -> torch.device:
        return _CPU

    current_device.is_stand_in = True  # type: ignore[attr-defined]
    torch.cuda.current_device = current_device  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *args, **kwargs: None  # type: ignore[assignment]
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(factory: Any) -> Any:
    @functools.wraps(factory)
    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if str(device).startswith("cuda"):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return made


class _Stream:
    """Stands for streams and events: on a CPU everything is in order already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name not in ("wait_stream", "wait_event", "record_event", "synchronize", "record", "wait"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self

    def query(self) -> bool:
        """Whether all work is done."""
        return True


def _patch_streams() -> None:
    torch.cuda.Stream = _Stream  # type: ignore[assignment,misc]
    torch.cuda.Event = _Stream  # type: ignore[assignment,misc]
    torch.cuda.default_stream = torch.cuda.current_stream = lambda *args, **kwargs: _Stream()  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment,return-value]


def _patch_random() -> None:
    import megatron.core.tensor_parallel.random as megatron_random

    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()  # type: ignore[assignment]
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    megatron_random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)


def _patch_type_names() -> None:
    # Megatron's optimizer compares `param.type()` with 'torch.cuda.FloatTensor' and its kin.
    real = torch.Tensor.type

    def type_name(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is not None or kwargs:
            return real(self, dtype, non_blocking, **kwargs)
        name = str(real(self))
        return name if ".cuda." in name else name.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_name  # type: ignore[method-assign,assignment]


def _patch_optimizer() -> None:
    # torch's AdamW keeps a step count for each parameter, which the loading of a reshardable checkpoint does not hand on.
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    real = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" in state and "step" not in tensors:
            tensors = {**tensors, "step": state["step"]}
        return real(self, model_param, tensors)

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states


def _patch_all_to_all() -> None:
    # Megatron's token dispatcher turns split sizes that lie on a GPU into numbers, and leaves others as tensors.
    real = torch.distributed.all_to_all_single

    def all_to_all_single(output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, **kwargs: Any) -> Any:
        of_output, of_input = (x.tolist() if isinstance(x, torch.Tensor) else x for x in (output_split_sizes, input_split_sizes))
        return real(output, input, of_output, of_input, **kwargs)

    torch.distributed.all_to_all_single = all_to_all_single  # type: ignore[assignment]
