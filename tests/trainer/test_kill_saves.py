"""A save that is killed leaves the one before it usable."""

import itertools
import json
import subprocess
import sys

import pytest

KILLS = 50


@pytest.mark.slow
def test_the_newest_complete_checkpoint_is_whole_after_every_kill(tmp_path):
    command = [sys.executable, "-m", "tests.trainer.kill_saves", str(tmp_path), str(KILLS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert len(result["found"]) == KILLS
    assert all(found.get("whole") for found in result["found"])
    steps = [found["step"] for found in result["found"]]
    assert all(later > earlier for earlier, later in itertools.pairwise(steps))
    assert result["marked"] >= 1
