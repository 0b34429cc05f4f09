"""Training state on disk, through Megatron's dist_checkpointing: readable at other parallel sizes, and whole or absent.

A folder counts only when its COMPLETE marker, written last, is there. Step 0 (after a warm start) holds no optimizer state: there is none.
A critic has a folder of its own inside, under the same marker.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state

from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import RunError
from slime_hpc.run_folder import RunFolder
from slime_hpc.trainer.optimizer import Optimization
from slime_hpc.trainer.policy import Policy

MARKER = "COMPLETE"
_CRITIC = "critic"


def complete_steps(run: RunFolder) -> list[int]:
    """Steps with a complete checkpoint, ascending."""
    markers = run.checkpoints.glob(f"step_*/{MARKER}")
    return sorted(int(marker.parent.name.removeprefix("step_")) for marker in markers)


class Trained(Protocol):
    """A model that is trained beside the policy."""

    policy: Policy
    optimization: Optimization


def save(run: RunFolder, step: int, policy: Policy, optimization: Optimization | None, critic: Trained | None = None) -> float:
    """Save the state after `step`; seconds it took. Collective."""
    start = time.monotonic()
    folder = run.checkpoint(step)
    if dist.get_rank() == 0:
        # What a killed attempt left here is no checkpoint.
        shutil.rmtree(folder, ignore_errors=True)
        (folder / _CRITIC if critic else folder).mkdir(parents=True, mode=0o700)
    dist.barrier()
    dist_checkpointing.save(_state(policy, optimization, loading=False), str(folder))
    if critic:
        dist_checkpointing.save(_state(critic.policy, critic.optimization, loading=False), str(folder / _CRITIC))
    dist.barrier()
    if dist.get_rank() == 0:
        marker = {"step": step, "optimizer": optimization is not None, "model": _sizes(policy), "time": time.time()}
        write_atomic(folder / MARKER, json.dumps(marker))
    dist.barrier()
    return time.monotonic() - start


def load(run: RunFolder, step: int, policy: Policy, optimization: Optimization | None, critic: Trained | None = None) -> None:
    """Set the policy and the critic, and the optimizers where the checkpoint has their state. Collective.

    Raises RunError, on all ranks, for a checkpoint that cannot be read or is of another model.
    """
    folder = run.checkpoint(step)
    marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    found = marker["model"]
    differences = [f"{name} {found.get(name)} instead of {size}" for name, size in _sizes(policy).items() if found.get(name) != size]
    if differences:
        raise RunError(
            f"Checkpoint {folder} is of another model: {', '.join(differences)}.",
            where=f"{folder / MARKER}; model.path",
            fix="give the model that the run began with, or start a new run",
        )
    _set(policy, optimization if marker["optimizer"] else None, folder, folder / MARKER)
    if critic:
        _set(critic.policy, critic.optimization, folder / _CRITIC, folder / MARKER)


def _set(policy: Policy, wanted: Optimization | None, folder: Path, marker: Path) -> None:
    try:
        state = dist_checkpointing.load(_state(policy, wanted, loading=True), str(folder))
    except Exception as error:
        raise RunError(
            f"Checkpoint {folder} cannot be read: {type(error).__name__}: {error}",
            where=str(folder),
            fix=f"delete {marker}; the run then goes on from the one before",
        ) from error
    policy.model.load_state_dict(state["model"])
    if wanted is not None:
        wanted.megatron.load_state_dict(state["optimizer"])
        _own_step_counts(wanted)


def _own_step_counts(optimization: Optimization) -> None:
    """Give each parameter its own step count: Megatron's loading hands all of them one tensor, which AdamW counts up once for each."""
    for optimizer in optimization.parts:
        for state in optimizer.optimizer.state.values():
            state["step"] = state["step"].clone()


def _sizes(policy: Policy) -> dict[str, Any]:
    """What two policies must share for the weights of one to fit the other."""
    shape = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels")
    names = (*shape, "qk_layernorm", "add_qkv_bias")
    sizes = {name: getattr(policy.config, name) for name in names}
    return {**sizes, "vocab_size": policy.model.vocab_size, "tied": policy.model.share_embeddings_and_output_weights}


def prune(run: RunFolder, *, keep: int, always: frozenset[int] = frozenset()) -> None:
    """Delete all complete checkpoints but the newest `keep` and those of `always`. Rank 0 alone does it."""
    if dist.get_rank() == 0:
        for step in complete_steps(run)[:-keep]:
            if step not in always:
                # First the marker: a folder that is being deleted must not count.
                (run.checkpoint(step) / MARKER).unlink(missing_ok=True)
                shutil.rmtree(run.checkpoint(step), ignore_errors=True)


def _state(policy: Policy, optimization: Optimization | None, *, loading: bool) -> dict[str, Any]:
    metadata = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "distrib_optim_sharding_type": "fully_reshardable",
    }
    state: dict[str, Any] = {"model": policy.model.sharded_state_dict(metadata=metadata)}
    if optimization is not None:
        if loading:
            # Without apex Megatron's loading expects moments that exist; the step that makes them moves weights that are then overwritten.
            for optimizer in optimization.parts:
                optimizer._init_optimizer_states_with_dummy_values()
        state["optimizer"] = optimization.megatron.sharded_state_dict(state["model"], is_loading=loading, metadata=metadata)
    return state
