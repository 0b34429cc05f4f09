"""The files of a run that has ended."""

import json

from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder


def write_run(run: RunFolder, *, steps: int, attempt: int = 0, state: str = "COMPLETED", cause: str = "") -> None:
    """What a run of the demo leaves: events in the documented form, the batch index, and the outcome. The reward of step n is n / 100."""
    shared = {"attempt": attempt}
    log: list[events.Event] = [{"kind": "attempt", "step": 0}]
    log += [{"kind": "warm_start", "step": n, "loss": 4.0 / n, "lr": 1e-3, "seconds": 0.5 * n} for n in (1, 2)]
    log += [{"kind": "push", "step": 0, "seconds": 0.1}, {"kind": "eval", "step": 0, "pass_rate": 0.2, "problems": 50, "seconds": 1.0}]
    for step in range(1, steps + 1):
        rollout = {
            "reward_mean": step / 100,
            "samples": 256,
            "response_tokens": 1000,
            "staleness": 0,
            "seconds_generate": 1.0,
            "seconds_reward": 0.25,
        }
        train = {"loss": -0.01, "logprob_abs_diff_max": step * 1e-7, "seconds_wait": 9.0, "seconds_logprobs": 0.25, "seconds_train": 0.4}
        log += [{"kind": "rollout", "step": step, **rollout}, {"kind": "train", "step": step, **train}]
        log += [{"kind": "push", "step": step, "seconds": 0.1}]
    log += [{"kind": "checkpoint", "step": steps, "seconds": 0.3, "path": "x"}]
    log += [{"kind": "eval", "step": steps, "pass_rate": 0.8, "problems": 50, "seconds": 1.0}]
    for index, event in enumerate(log):
        events.append(run.metrics, {**event, **shared, "time": 1000.0 + index})
    run.batches.mkdir(exist_ok=True)
    run.batch_index.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, steps + 1)))
    run.control.mkdir(exist_ok=True)
    run.outcome.write_text(json.dumps({"state": state, "cause": cause, "attempt": attempt, "time": 2000.0, "seconds": 100.0}))
