"""Hugging Face folder -> checkpoint -> Hugging Face folder, and a run's checkpoint exported: bit-equal weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer import tiny

TOOL = Path(__file__).parents[2] / "tools" / "convert.py"
pytestmark = pytest.mark.slow


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TOOL.parents[1])}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=200, env=environment)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_a_folder_makes_the_round_trip_through_a_checkpoint(tmp_path):
    model, checkpoint, out = tmp_path / "model", tmp_path / "checkpoint", tmp_path / "out"
    tiny.hf_model("deepseek-v3", tied=False).save_pretrained(model)
    there = run(str(TOOL), "--dtype", "float32", "to-checkpoint", str(model), str(checkpoint))
    assert there.returncode == 0, there.stderr[-3000:]
    back = run(str(TOOL), "--dtype", "float32", "--file-mib", "1", "to-hugging-face", str(checkpoint), str(model), str(out))
    assert back.returncode == 0, back.stderr[-3000:]
    before, after = tensors(model), tensors(out)
    assert sorted(before) == sorted(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (out / "config.json").read_text() == (model / "config.json").read_text()
    assert len(list(out.glob("*.safetensors"))) > 1
    again = run(str(TOOL), "to-checkpoint", str(model), str(checkpoint))
    assert again.returncode != 0 and "is there already" in again.stderr


def test_a_runs_checkpoint_is_exported(tmp_path):
    model, out = tmp_path / "model", tmp_path / "out"
    tiny.hf_model("qwen3-moe", tied=False).save_pretrained(model)
    experiment = tmp_path / "tiny.toml"
    experiment.write_text(
        f'name = "tiny"\nruns = "{tmp_path}/runs"\n[model]\npath = "{model}"\ndtype = "float32"\n'
        '[data]\nsource = "none:none"\n[rollout]\nmax_tokens = 16\n'
    )
    rendered = run("-m", "slime_hpc.cli.main", "render", str(experiment), "--run-id", "a")
    assert rendered.returncode == 0, rendered.stderr
    folder = tmp_path / "runs" / "tiny" / "a"
    words = ("-m", "slime_hpc.cli.main", "export", str(folder), str(out))
    early = run(*words)
    assert early.returncode == 2 and "has no complete checkpoint" in early.stderr
    made = run(str(TOOL), "--dtype", "float32", "to-checkpoint", str(model), str(folder / "checkpoints" / "step_00000003"))
    assert made.returncode == 0, made.stderr[-3000:]
    wrong = run(*words, "--step", "7")
    assert wrong.returncode == 2 and "there are those of steps 3" in wrong.stderr
    exported = run(*words)
    assert exported.returncode == 0, exported.stderr[-3000:]
    assert "weights of step_00000003" in exported.stdout
    before, after = tensors(model), tensors(out)
    assert sorted(before) == sorted(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
