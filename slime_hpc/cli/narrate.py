"""The events of a run as lines for a person. Pure: events in, lines out."""

from __future__ import annotations

from slime_hpc.observe.events import Event
from slime_hpc.observe.report import StepReport, report_step


class Narrator:
    """Tells a run from its events, one by one in order; a step is told once its weights are pushed."""

    def __init__(self, steps: int, *, attempt: int) -> None:
        """`attempt`: the first one to tell; earlier ones are only remembered."""
        self._steps = steps
        self._attempt = attempt
        self._events: dict[int, list[Event]] = {}
        self._warm: list[Event] = []

    def tell(self, event: Event) -> list[str]:
        """What to print now."""
        self._events.setdefault(event["step"], []).append(event)
        if event["attempt"] < self._attempt:
            return []
        if event["kind"] == "warm_start":
            self._warm.append(event)
            return []
        return [*self._warm_start(), *self._tell(event)]

    def now(self) -> str:
        """How far the warm start is; "" outside it."""
        return f"warm start, step {self._warm[-1]['step']}, loss {self._warm[-1]['loss']:.3f}" if self._warm else ""

    def _warm_start(self) -> list[str]:
        warm, self._warm = self._warm, []
        if not warm:
            return []
        first, last = warm[0], warm[-1]
        return [f"warm start: {last['step']} supervised steps, loss {first['loss']:.3f} -> {last['loss']:.3f}, {last['seconds']:.1f} s"]

    def _tell(self, event: Event) -> list[str]:
        step = event["step"]
        if event["kind"] == "attempt" and event["attempt"] > 0:
            return [f"attempt {event['attempt']}: goes on from step {step}"]
        if event["kind"] == "eval":
            when = f"after step {step}" if step else "before the first step"
            return [f"held-out pass rate {event['pass_rate']:.3f} of {event['problems']} problems, {when}"]
        if event["kind"] == "restart":
            return [f"restart {event['restart']} of at most {event['of']}: {event['cause']}"]
        if event["kind"] == "engine" and event["what"] != "up":
            return [f"{event['name']} {event['what']}" + (f" again, after {event['seconds']:.0f} s" if "seconds" in event else "")]
        if event["kind"] == "checkpoint":
            return [f"checkpoint of step {step}, {event['seconds']:.1f} s"]
        if event["kind"] == "push" and step > 0:
            return [step_line(report_step(step, self._events[step]), self._steps)]
        return []


def step_line(report: StepReport, steps: int) -> str:
    """One step: reward, speed, log-prob difference of trainer and engine, staleness, and the seconds of each phase."""
    parts = [f"step {report.step:>{len(str(steps))}}/{steps}"]
    if report.reward is not None:
        parts.append(f"reward {report.reward:.3f}")
    if report.tokens_per_s is not None:
        parts.append(f"{report.tokens_per_s:.0f} tokens/s")
    if report.logprob_abs_diff_max is not None:
        parts.append(f"diff {report.logprob_abs_diff_max:.1e}")
    if report.staleness is not None:
        parts.append(f"staleness {report.staleness}")
    parts.append(" ".join(f"{phase} {seconds:.2f}" for phase, seconds in report.seconds.items()) + " s")
    return "  ".join(parts)
