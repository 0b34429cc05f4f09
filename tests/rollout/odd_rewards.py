"""Rewards for test_reward.py; each does to its own process what the answer's text says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def score(prompt, text, finish, *, pids=None):
    if pids:
        Path(pids, str(os.getpid())).touch()
    if text == "raise":
        raise ValueError("no such answer")
    if text == "hang":
        time.sleep(600)
    if text == "hang with a child":
        subprocess.run(
            [sys.executable, "-c", f"import os, time; open({str(Path(pids, 'child'))!r}, 'w').write(str(os.getpid())); time.sleep(600)"]
        )
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "exit":
        sys.exit(0)
    if text == "slow":
        time.sleep(0.2)
        return 1.0
    if text == "number":
        return float(prompt.answer)
    return {"nan": float("nan"), "none": None}[text]


def parity(prompt, text, finish, *, sleep_s=0.0):
    """1 for an answer of an even length."""
    time.sleep(sleep_s)
    return float(len(text) % 2 == 0)
