"""The trainer's ranks: how they meet, and their place in data, context, tensor and pipeline parallelism.

Rank 0 opens a store and publishes its address as any role does; the token of the run guards its name, so that no other run's rank joins.
"""

from __future__ import annotations

import datetime
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from slime_hpc.config.schema import Trainer
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, free_port, publish, wait_for
from slime_hpc.control.interface import collective_environment

_NAME = "trainer-rendezvous"
_MEET_TIMEOUT_S = 600.0
_COLLECTIVE_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this rank stands."""

    rank: int
    world: int
    dp_rank: int
    dp_size: int
    cp_rank: int
    tp_rank: int
    first_stage: bool
    last_stage: bool
    last_source: int
    """Global rank that is first in data, context and tensor parallelism on the last pipeline stage: it has log-probs to tell."""
    device: torch.device

    @property
    def tells(self) -> bool:
        """Whether this rank's log-probs count: one rank of the last stage for each data-parallel rank."""
        return self.last_stage and self.tp_rank == 0 and self.cp_rank == 0

    def finite_everywhere(self, value: float) -> bool:
        """Whether all ranks' values are finite. Collective."""
        bad = torch.tensor(0.0 if math.isfinite(value) else 1.0, device=self.device)
        if self.world > 1:
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        return not bad.item()


def join(context: RoleContext) -> tuple[Store, Place]:
    """Meet the other ranks and build Megatron's groups. Raises RunError when rank 0 is not there in time."""
    os.environ.update(collective_environment(context.address))
    device, backend = _device(context)
    store = _store(context)
    dist.init_process_group(
        backend,
        store=PrefixStore("trainer", store),
        rank=context.rank,
        world_size=context.role.num_tasks,
        timeout=datetime.timedelta(seconds=_COLLECTIVE_TIMEOUT_S),
    )
    split(context.experiment.trainer, context.experiment.seed)
    return store, place(device)


def unsplit() -> None:
    """Undo `split`: only the default group is left. Megatron alone forgets its groups, and their threads go on polling."""
    parallel_state.destroy_model_parallel()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def leave() -> None:
    """Take the groups down."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def place(device: torch.device) -> Place:
    """This rank's place, once the groups are built."""
    world, stages = dist.get_world_size(), parallel_state.get_pipeline_model_parallel_world_size()
    return Place(
        rank=dist.get_rank(),
        world=world,
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
        cp_rank=parallel_state.get_context_parallel_rank(),
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        first_stage=parallel_state.is_pipeline_first_stage(),
        last_stage=parallel_state.is_pipeline_last_stage(),
        last_source=(stages - 1) * (world // stages),
        device=device,
    )


def _device(context: RoleContext) -> tuple[torch.device, str]:
    if context.topology.accelerator != "cuda":
        return torch.device("cpu"), "gloo"
    # srun may show a task all GPUs of the step, or its own alone.
    torch.cuda.set_device(context.local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device()), "cpu:gloo,cuda:nccl"


def _store(context: RoleContext) -> Store:
    path = context.run.endpoint(context.attempt, _NAME)
    timeout = datetime.timedelta(seconds=_MEET_TIMEOUT_S)
    world = context.role.num_tasks
    if context.rank == 0:
        port = free_port(context.address, context.port_first)
        store = TCPStore(context.address, port, world, True, timeout, wait_for_workers=False)
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        publish(path, Endpoint(role=_NAME, rank=0, host=context.address, port=port, node=node, pid=os.getpid()))
    else:
        endpoint = wait_for(path, timeout_s=_MEET_TIMEOUT_S)
        store = TCPStore(endpoint.host, endpoint.port, world, False, timeout, wait_for_workers=False)
    return PrefixStore(context.token, store)


def split(trainer: Trainer, seed: int) -> None:
    """Build Megatron's groups over the ranks of the default group."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=trainer.tensor_parallel,
        pipeline_model_parallel_size=trainer.pipeline_parallel,
        context_parallel_size=trainer.context_parallel,
        expert_model_parallel_size=trainer.expert_parallel,
        expert_tensor_parallel_size=trainer.expert_tensor_parallel,
        create_gloo_process_groups=True,
    )
    model_parallel_cuda_manual_seed(seed + 1)
