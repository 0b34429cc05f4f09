"""Training state on disk, through Megatron's dist_checkpointing: readable at other parallel sizes, and whole or absent.

A folder counts only when its COMPLETE marker, written last, is there, and its files are as long as the marker says. Step 0 (after a warm
start) holds no optimizer state: there is none. A critic has a folder of its own inside, under the same marker.
"""

from __future__ import annotations

import functools
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import RunError
from slime_hpc.run_folder import RunFolder
from slime_hpc.trainer.optimizer import Optimization
from slime_hpc.trainer.policy import Policy

MARKER = "COMPLETE"
_CRITIC = "critic"
_LOG = logging.getLogger(__name__)


def complete_steps(run: RunFolder) -> list[int]:
    """Steps with a complete checkpoint, ascending. One whose files are not those that its marker lists is skipped, with a warning."""
    return [_step(marker) for marker in sorted(run.checkpoints.glob(f"step_*/{MARKER}")) if _whole(marker)]


def _step(marker: Path) -> int:
    return int(marker.parent.name.removeprefix("step_"))


def _whole(marker: Path) -> bool:
    try:
        files: dict[str, int] = json.loads(marker.read_text(encoding="utf-8")).get("files", {})
    except ValueError:
        _LOG.warning("Checkpoint %s is skipped: its marker is not JSON.", marker.parent)
        return False
    for name, size in files.items():
        path = marker.parent / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes instead of {size}"
            _LOG.warning("Checkpoint %s is skipped: %s %s.", marker.parent, name, what)
            return False
    return True


class Trained(Protocol):
    """A model that is trained beside the policy."""

    policy: Policy
    optimization: Optimization


class Saves:
    """Writes checkpoints of one run; asynchronous ones are written by a process of their own, one at a time, while training goes on.

    Every method is called on all ranks together.
    """

    def __init__(self, run: RunFolder, *, asynchronous: bool = False) -> None:
        self._run = run
        self._queue = AsyncCallsQueue(persistent=False) if asynchronous else None
        self._finish: Callable[[], None] | None = None

    def save(self, step: int, policy: Policy, optimization: Optimization | None, critic: Trained | None = None) -> float:
        """Save the state after `step`, once an earlier save is done; seconds that training had to wait."""
        start = time.monotonic()
        self.settle(wait=True)
        folder = self._run.checkpoint(step)
        marker = {"step": step, "optimizer": optimization is not None, "model": _sizes(policy)}
        beside = {_CRITIC: _state(critic.policy, critic.optimization, loading=False)} if critic else {}
        write(folder, _state(policy, optimization, loading=False), marker, self._queue, beside=beside)
        if self._queue is not None:
            self._finish = functools.partial(_mark, folder, marker)
        return time.monotonic() - start

    def settle(self, *, wait: bool) -> None:
        """Complete a save that is done; `wait` for it otherwise. Raises RunError when it failed."""
        if self._queue is None or self._finish is None:
            return
        try:
            self._queue.maybe_finalize_async_calls(blocking=wait)
        except Exception as error:
            raise RunError(f"Checkpoint could not be written: {error}", where=str(self._run.checkpoints), fix="see the disk") from error
        if not self._queue.get_num_unfinalized_calls():
            self._finish()
            self._finish = None


def write(
    folder: Path,
    state: dict[str, Any],
    marker: dict[str, Any],
    queue: AsyncCallsQueue | None = None,
    *,
    beside: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Write a sharded state as a complete checkpoint, others `beside` it in folders of these names. Collective.

    With a queue the marker is left to `_mark`.
    """
    states = {folder: state, **{folder / name: other for name, other in (beside or {}).items()}}
    if dist.get_rank() == 0:
        # First the marker: a folder that is being rewritten must not count. What a killed attempt left here is no checkpoint.
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        for path in states:
            path.mkdir(parents=True, mode=0o700)
    dist.barrier()
    for path, sharded in states.items():
        request = dist_checkpointing.save(sharded, str(path), async_sharded_save=queue is not None)
        if queue is not None:
            queue.schedule_async_request(request)
    if queue is None:
        _mark(folder, marker)


def write_policy(folder: Path, step: int, policy: Policy) -> None:
    """Write a policy without optimizer state as a complete checkpoint. Collective."""
    write(folder, _state(policy, None, loading=False), {"step": step, "optimizer": False, "model": _sizes(policy)})


def _mark(folder: Path, marker: dict[str, Any]) -> None:
    """Say that all files are there. Collective."""
    dist.barrier()
    if dist.get_rank() == 0:
        files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
        write_atomic(folder / MARKER, json.dumps({**marker, "files": files, "time": time.time()}))
    dist.barrier()


def save(run: RunFolder, step: int, policy: Policy, optimization: Optimization | None, critic: Trained | None = None) -> float:
    """Save the state after `step`; seconds it took. Collective."""
    return Saves(run).save(step, policy, optimization, critic)


def load(run: RunFolder, step: int, policy: Policy, optimization: Optimization | None, critic: Trained | None = None) -> None:
    """Set the policy and the critic, and the optimizers where the checkpoint has their state. Collective.

    Raises RunError, on all ranks, for a checkpoint that cannot be read or is of another model.
    """
    folder = run.checkpoint(step)
    read(folder, policy, optimization)
    if critic:
        _set(critic.policy, critic.optimization, folder / _CRITIC, folder / MARKER)


def read(folder: Path, policy: Policy, optimization: Optimization | None) -> None:
    """As `load`, from any checkpoint folder. Collective."""
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
    experts = ("num_moe_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "kv_lora_rank")
    names = (*shape, "qk_layernorm", "add_qkv_bias", *experts)
    sizes = {name: getattr(policy.config, name, None) for name in names}
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
