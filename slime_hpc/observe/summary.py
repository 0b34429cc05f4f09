"""The outcome of a run in one flat object, from its event stream and its batch index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_hpc.observe import events

WINDOW = 5
"""Steps that `reward_first` and `reward_last` are means of."""


def summarize(run_dir: Path, metrics: Path, index: Path) -> dict[str, Any]:
    """Summary of all attempts; fields that the run has no events for are None."""
    rollouts = events.by_step(metrics, "rollout")
    trains = events.by_step(metrics, "train")
    pushes = events.by_step(metrics, "push")
    evals = list(events.by_step(metrics, "eval").values())
    rewards = [event["reward_mean"] for event in rollouts.values()]
    times = [event["time"] for event in events.read(metrics)]
    batches = {entry["step"] for entry in events.read(index)}
    return {
        "steps": len(trains),
        "samples": sum(event["samples"] for event in rollouts.values()),
        "reward_first": _mean(rewards[:WINDOW]),
        "reward_last": _mean(rewards[-WINDOW:]),
        "batches": len(batches),
        "weight_version": max(pushes, default=None),
        "logprob_abs_diff_max": max(_of(trains, "logprob_abs_diff_max"), default=None),
        "heldout_before": evals[0]["pass_rate"] if evals else None,
        "heldout_after": evals[-1]["pass_rate"] if len(evals) > 1 else None,
        "seconds": max(times) - min(times) if times else None,
        "run_dir": str(run_dir),
    }


def _of(by_step: dict[int, events.Event], name: str) -> list[Any]:
    """The values of the steps that have one: while a critic warms up, nothing is said of the policy."""
    return [event[name] for event in by_step.values() if name in event]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
