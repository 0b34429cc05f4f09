"""What a person wants to see of every step, from the event stream; and its plots.

Knows nothing of how it is shown, but for the two plots; plotext and matplotlib are imported only to draw.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from slime_hpc.errors import RunError
from slime_hpc.observe.events import Event

PHASES = ("generate", "reward", "logprobs", "train", "push", "checkpoint")
"""In the order in which they follow one another in a step of the synchronous loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One RL step, as far as its events have come. A value whose event has not come is None."""

    step: int
    reward: float | None
    """Mean over the batch."""
    loss: float | None
    logprob_abs_diff_max: float | None
    """Trainer against engine."""
    staleness: int | None
    """Steps between the weights that answered and the weights that train."""
    response_tokens: int | None
    seconds: Mapping[str, float]
    """Of each phase that is over."""

    @property
    def tokens_per_s(self) -> float | None:
        """Generated tokens by the seconds of all phases but the checkpoint, which most steps do without."""
        total = sum(seconds for phase, seconds in self.seconds.items() if phase != "checkpoint")
        return self.response_tokens / total if self.response_tokens is not None and total > 0 else None


def report_step(step: int, events: Iterable[Event]) -> StepReport:
    """One step from its events, in order; of two events of one kind the later counts."""
    newest = {event["kind"]: event for event in events if event["step"] == step}
    rollout, train, push, checkpoint = (newest.get(kind, {}) for kind in ("rollout", "train", "push", "checkpoint"))
    seconds = {
        "generate": rollout.get("seconds_generate"),
        "reward": rollout.get("seconds_reward"),
        "logprobs": train.get("seconds_logprobs"),
        "train": train.get("seconds_train"),
        "push": push.get("seconds"),
        "checkpoint": checkpoint.get("seconds"),
    }
    return StepReport(
        step=step,
        reward=rollout.get("reward_mean"),
        loss=train.get("loss"),
        logprob_abs_diff_max=train.get("logprob_abs_diff_max"),
        staleness=rollout.get("staleness"),
        response_tokens=rollout.get("response_tokens"),
        seconds=MappingProxyType({phase: value for phase, value in seconds.items() if value is not None}),
    )


def report_steps(events: Iterable[Event]) -> list[StepReport]:
    """Every step that has a batch, in order."""
    by_step: dict[int, list[Event]] = {}
    for event in events:
        by_step.setdefault(event["step"], []).append(event)
    return [report_step(step, own) for step, own in sorted(by_step.items()) if any(event["kind"] == "rollout" for event in own)]


def draw_terminal(reports: Sequence[StepReport], *, width: int = 80, height: int = 16) -> str:
    """The reward by step as plain text. Raises RunError when plotext is not installed."""
    _require("plotext")
    import plotext

    steps, rewards = _rewards(reports)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    figure.title("mean reward by step")
    figure.label("step")
    curve = figure.signal(steps, rewards, marker="braille")
    curve.lines()
    figure.draw(curve)
    return str(plotext.uncolorize(str(figure.build())))


def draw_png(reports: Sequence[StepReport], path: Path) -> None:
    """The reward by step as a PNG file. Raises RunError when matplotlib is not installed."""
    _require("matplotlib")
    # A figure of its own: pyplot would look for a display.
    from matplotlib.figure import Figure

    steps, rewards = _rewards(reports)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, rewards)
    axes.set(xlabel="step", ylabel="mean reward")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=120, format="png")


def _rewards(reports: Sequence[StepReport]) -> tuple[list[int], list[float]]:
    points = [(report.step, report.reward) for report in reports if report.reward is not None]
    return [step for step, _ in points], [reward for _, reward in points]


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise RunError(f"The plot needs the package {package}.", fix=f"pip install {package}; it is in the extra 'job'")
