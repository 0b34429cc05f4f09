"""The event stream of a run: one JSON object a line in metrics.jsonl, appended by the controller, and by the supervisor beside it.

    kind         step of  values
    attempt      -        attempt, step (that the trainer goes on from)
    warm_start   warm-up  loss, lr, seconds (since the warm start began); not of every step
    rollout      RL       samples, reward_mean, reward_std, groups_with_spread, response_tokens, response_tokens_mean, truncated,
                          reward_failed, retries, weight_version, staleness, seconds_generate, seconds_reward, seconds_seal
    train        RL       loss, grad_norm, lr, tokens, trained_tokens, oversized_samples, zero_advantage_fraction, skipped_updates,
                          kl, entropy, clip_fraction, ratio_max, logprob_abs_diff_mean, logprob_abs_diff_max,
                          mismatch_kl, mismatch_k3, mismatch_chi2, mismatch_chi2_sequence, log_ppl_trainer, log_ppl_engine,
                          correction_weight, correction_bounded, rejected_fraction, vetoed_fraction, off_policy_fraction,
                          seconds_wait, seconds_logprobs, seconds_train
    push         version  bytes, buckets, calls, engines, failed_tries,
                          seconds, seconds_gather, seconds_convert, seconds_wire, seconds_load, seconds_pause,
                          verify_abs_diff and seconds_verify (when sync.verify is on)
    catch_up     version  the same, of a push to engines that had come up again
    engine       RL       name, what ("lost", "serves", of the router "up"), seconds (that it was out of the rotation, if known)
    restart      RL       role, restart (its number), of (how many are allowed), cause
    checkpoint   RL       seconds, path
    eval         RL       pass_rate, problems, seconds

Every line also has `kind`, `step`, `attempt` and `time` (Unix seconds). A step that is trained again after a restart appears again;
the later line counts. Knows nothing of who emits what.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def append(path: Path, event: Event) -> None:
    """Append one event in one write, so that a crash leaves at most one incomplete line."""
    line = json.dumps(event, allow_nan=True, separators=(",", ":")) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # What a crash left of a line must not swallow this one.
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, (("\n" if torn else "") + line).encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> Iterator[Event]:
    """All events; an incomplete line (a crash, a write in progress) is passed over."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.split("\n"):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def by_step(path: Path, kind: str) -> dict[int, Event]:
    """The newest event of one kind for each step, in step order."""
    newest = {event["step"]: event for event in read(path) if event["kind"] == kind}
    return dict(sorted(newest.items()))
