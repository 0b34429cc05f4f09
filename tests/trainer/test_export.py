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
