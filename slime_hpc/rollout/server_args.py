"""From an experiment to the arguments, devices and environment of one SGLang server. Pure: starts nothing, reads nothing.

The CPU defaults are those with which SGLang runs without any kernel build, and without taking a core while it has nothing to do.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError, PlanError
from slime_hpc.plan.job import RolePlan
from slime_hpc.topology.schema import Topology

_CPU_REQUESTS = 32
_CPU_TOKENS = 32_768
_COLOCATED_FRACTION = 0.4
"""Share of the GPU for weights and cache of a colocated engine: the trainer's weights and optimizer keep their place."""
_FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
"""`quantization_config` of a model folder whose weights are as `sync.quantize` makes them."""
_RESERVED = {
    "host": "the plan decides it",
    "port": "the plan decides it",
    "nccl_port": "the plan decides it",
    "api_key": "the run's token is used",
    "admin_api_key": "the run's token is used",
    "model_path": "set model.path",
    "tp_size": "set rollout.groups[].gpus_per_engine",
    "weight_version": "the trainer's pushes set it",
}


def tensor_parallel(experiment: Experiment, role: RolePlan) -> int:
    """Tensor-parallel size of the engines of a role."""
    return experiment.rollout.groups[role.group].gpus_per_engine


def engine_args(experiment: Experiment, topology: Topology, role: RolePlan, *, host: str, port: int, nccl_port: int) -> dict[str, Any]:
    """SGLang's ServerArgs as keyword arguments, without the token.

    `rollout.sglang` comes last, so it overrides every default. Raises ConfigError when it sets what the plan decides.
    """
    passed = experiment.rollout.sglang
    for key, instead in _RESERVED.items():
        if key in passed:
            raise ConfigError(f"rollout.sglang.{key} cannot be set: {instead}.", where=f"rollout.sglang.{key}", fix="remove it")
    arguments: dict[str, Any] = {
        "model_path": experiment.model.path,
        "host": host,
        "port": port,
        "nccl_port": nccl_port,
        "tp_size": tensor_parallel(experiment, role),
        "dtype": experiment.model.dtype,
        "random_seed": experiment.seed,
        "load_format": "dummy" if experiment.model.init == "random" else "auto",
        "enable_deterministic_inference": experiment.deterministic,
        "weight_version": "none",
        "log_level": "info",
        "log_level_http": "warning",
    }
    if experiment.sync.quantization == "fp8_block":
        # The model folder holds other weights: the first push brings those that the engine has room for.
        arguments |= {"load_format": "dummy", "json_model_override_args": json.dumps({"quantization_config": _FP8_BLOCK})}
    if experiment.algorithm.route_replay:
        arguments["enable_return_routed_experts"] = True
    if experiment.rollout.context_length:
        arguments["context_length"] = experiment.rollout.context_length
    if topology.accelerator == "cpu":
        arguments |= _cpu_args(experiment)
    elif experiment.rollout.colocate:
        arguments |= {"enable_memory_saver": True, "mem_fraction_static": _COLOCATED_FRACTION}
    return arguments | passed


def _cpu_args(experiment: Experiment) -> dict[str, Any]:
    requests = min(experiment.rollout.concurrency, _CPU_REQUESTS)
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_overlap_schedule": True,
        "sleep_on_idle": True,
        # max_total_tokens bounds the cache; the fraction only has to hold although others take memory while the weights load.
        "mem_fraction_static": 0.5,
        "max_total_tokens": max(_CPU_TOKENS, 2 * experiment.rollout.context_length),
        "max_running_requests": requests,
    }


def check_fields(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ConfigError for an argument that the installed SGLang does not have, with the nearest name it has."""
    for key in arguments:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(
                f"The installed SGLang has no argument '{key}'.",
                where=f"rollout.sglang.{key}",
                fix=f"did you mean '{near[0]}'?" if near else "see sglang's ServerArgs for the names",
            )


def devices(role: RolePlan, local_rank: int, size: int, visible: str | None) -> list[str]:
    """The GPUs of one engine, as entries of CUDA_VISIBLE_DEVICES.

    `visible` is that variable as the task sees it. When Slurm shows a step its own GPUs only, they count from the step's first;
    else from the node's first.
    """
    listed = [entry for entry in (visible or "").split(",") if entry]
    own = len(listed) == role.gpus_per_node
    first = (0 if own else role.gpu_first) + local_rank * size
    if not listed:
        return [str(index) for index in range(first, first + size)]
    if first + size > len(listed):
        raise PlanError(
            f"An engine of {role.name} needs GPUs {first} to {first + size - 1}, but the task sees {len(listed)}: {visible}.",
            where=role.name,
            fix="give the step all its GPUs (--gpus-per-node, no --gpu-bind), or correct node.gpus in the topology file",
        )
    return listed[first : first + size]


def cpu_environment(size: int, cores: Sequence[int], threads: int) -> dict[str, str]:
    """Environment of an engine on a CPU cluster whose `size` tensor-parallel ranks share `cores`, with at most `threads` each."""
    share = max(1, min(len(cores) // size, threads))
    environment = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": str(share),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if size > 1:
        ranks = ([cores[(rank * share + i) % len(cores)] for i in range(share)] for rank in range(size))
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, rank)) for rank in ranks)
    return environment
