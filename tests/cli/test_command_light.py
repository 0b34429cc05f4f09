"""plan, render, submit and status on a login node: nothing that a job needs is installed there."""

import os
import subprocess
import sys

BLOCKED = (
    "numpy",
    "torch",
    "h5py",
    "submitit",
    "transformers",
    "aiohttp",
    "requests",
    "psutil",
    "megatron",
    "sglang",
    "matplotlib",
    "plotext",
)
CODE = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
from slime_hpc.cli.main import main
main(sys.argv[1:])
"""


def slime(here, *words):
    return subprocess.run([sys.executable, "-c", CODE, *words], cwd=here, capture_output=True, text=True, env=dict(os.environ))


def test_the_blocker_blocks(here):
    result = subprocess.run([sys.executable, "-c", CODE.replace("main(sys.argv[1:])", "import numpy")], capture_output=True, text=True)
    assert "No module named 'numpy'" in result.stderr


def test_plan_render_submit_and_status_work_without_what_a_job_needs(here, finished):
    for words in (
        ["plan", "demo"],
        ["render", "demo", "--run-id", "a"],
        ["submit", "demo", "--topology", "test-cluster", "--run-id", "b", "--wait"],
    ):
        result = slime(here, *words)
        assert result.returncode == 0, result.stderr
    assert (here / "runs/demo/a/job.sbatch").is_file()
    result = slime(here, "status", "demo")
    assert "4242 COMPLETED" in result.stdout, result.stderr
