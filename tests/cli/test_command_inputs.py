"""Input that is wrong: exit code 2, the file and the key, what to change; nothing written, nothing submitted."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from slime_hpc.launch.lock import Holder, _boot_id
from slime_hpc.run_folder import RunFolder

EXPERIMENT = """\
name = "trial"

[model]
path = "recipe:demo_model"
init = "random"
dtype = "float32"

[data]
prompts = "prompts.jsonl"

[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 8

[trainer]
nodes = 1
tensor_parallel = 1
"""
PROMPTS = '{"prompt": "1 + 1 =", "answer": "2"}\n'
ON_CLUSTER = ("--topology", "test-cluster")

CASES = {
    "unknown key": (
        ("tensor_parallel = 1", "tensor_paralel = 1"),
        ["'tensor_paralel'", "trial.toml: trainer.tensor_paralel", "did you mean 'tensor_parallel'?"],
    ),
    "unknown table": (("[trainer]", "[trainr]"), ["'trainr'", "trial.toml: trainr", "did you mean 'trainer'?"]),
    "wrong type": (("nodes = 1", 'nodes = "two"'), ["'two'", "integer", "trial.toml: trainer.nodes", "slime-hpc explain trainer.nodes"]),
    "below the least": (
        ("samples_per_prompt = 4", "samples_per_prompt = 0"),
        ["trial.toml: rollout.samples_per_prompt", "greater than or equal to 1"],
    ),
    "missing key": (
        ('path = "recipe:demo_model"\n', ""),
        ["model.path is missing", "trial.toml: model.path", "slime-hpc explain model.path"],
    ),
    "no TOML": (("[trainer]", "[trainer"), ["trial.toml is not TOML", "line 16"]),
    "missing model folder": (("recipe:demo_model", "models/none"), ["no model folder", "models/none", "model.path", "recipes prepare"]),
    "no weights": (('init = "random"\n', ""), ["no safetensors", "model.path", 'model.init = "random"']),
    "tensor parallel against heads": (
        ("tensor_parallel = 1", "tensor_parallel = 3"),
        ["4 attention heads do not divide by trainer.tensor_parallel = 3", "4 / 3 = 1.33333", "config.json", "1, 2, 4"],
    ),
    "too many nodes": (
        ("nodes = 1", "nodes = 5"),
        ["trainer 5 + rollout.groups[0] 1 = 6 nodes", "'test-cluster' has 4", "trainer.nodes, rollout.groups", "lower one of them"],
    ),
    "batch against ranks": (
        ("nodes = 1", "nodes = 3\ngpus_per_node = 1"),
        ["4 prompts x 4 samples / 1 updates = 16", "16 / 3 data-parallel ranks = 5.33333", "rollout.prompts_per_step", "a multiple of 3"],
    ),
    "batch against updates": (
        ("nodes = 1", "nodes = 1\nupdates_per_step = 3"),
        ["4 prompts a step / 3 updates = 1.33333", "trainer.updates_per_step", "a divisor"],
    ),
    "one answer a prompt": (
        ("samples_per_prompt = 4", "samples_per_prompt = 1"),
        ["every advantage is 0", "rollout.samples_per_prompt", "at least 2"],
    ),
    "no room for a prompt": (("max_tokens = 8", "max_tokens = 128"), ["rollout.max_tokens = 128", "context of 128", "below 128"]),
    "line break in a directive": (
        ("[trainer]", '[slurm]\nextra = ["--comment=a\\nrm -rf x"]\n\n[trainer]'),
        ["is no sbatch option", "slurm.extra"],
    ),
}


@pytest.fixture
def write(here, slurm):
    """Write trial.toml and prompts.jsonl, one text replaced."""

    def write(old: str = "", new: str = "", prompts: bytes | None = PROMPTS.encode()) -> None:
        assert old in EXPERIMENT
        Path("trial.toml").write_text(EXPERIMENT.replace(old, new) if old else EXPERIMENT)
        if prompts is not None:
            Path("prompts.jsonl").write_bytes(prompts)

    return write


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture
def refused(slime, here, slurm):
    """Run a command that must be refused, saying all of `parts`, and leaving everything as it was."""

    def refused(parts: list[str], *words: str) -> None:
        before = files(here), slurm.calls()
        result = slime(*words)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert [part for part in parts if part not in result.stderr] == [], result.stderr
        assert "Traceback" not in result.stderr
        assert (files(here), slurm.calls()) == before

    return refused


def test_the_unchanged_input_is_submitted(slime, write, slurm):
    write()
    result = slime("submit", "trial.toml", *ON_CLUSTER, "--run-id", "a")
    assert result.exit_code == 0, result.output
    assert slurm.calls() == [f"sbatch --parsable {Path('runs/trial/a/job.sbatch').absolute()}"]


@pytest.mark.parametrize("command", ["submit", "render"])
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_experiment_is_refused(case, command, write, refused):
    (old, new), parts = CASES[case]
    write(old, new)
    refused(["slime-hpc: ", *parts], command, "trial.toml", *ON_CLUSTER)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["Cannot read the prompt file", "prompts.jsonl", "data.prompts", "correct the path"]),
        (b"", ["holds no prompt", "data.prompts", "at least one line"]),
        (b"\n  \n", ["holds no prompt", "data.prompts"]),
        (b"\xff\xfe\x00", ["not UTF-8 text (byte 0)", "data.prompts"]),
        (PROMPTS.encode() + b"{not json\n", ["Line 2 of", "is not JSON", "prompts.jsonl:2"]),
        (
            PROMPTS.encode() + b'{"question": "?", "answer": "2"}\n',
            ["Line 2 of", "no field 'prompt'", "'question', 'answer'", "prompts.jsonl:2", "data.prompt_key"],
        ),
        (b'{"prompt": "1 + 1 ="}\n', ["Line 1 of", "no field 'answer'", "data.answer_key"]),
        (b'{"prompt": "", "answer": "2"}\n', ["Line 1 of", "empty"]),
    ],
)
def test_a_wrong_prompt_file_is_refused(content, parts, write, refused):
    write(prompts=content)
    refused(parts, "submit", "trial.toml", *ON_CLUSTER)


def test_a_folder_in_place_of_the_prompt_file_is_refused(write, refused):
    write(prompts=None)
    Path("prompts.jsonl").mkdir()
    refused(["Cannot read the prompt file", "data.prompts"], "submit", "trial.toml", *ON_CLUSTER)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--set", "trainer.nods=2"], ["'nods'", "--set trainer.nods=2: trainer.nods", "did you mean 'nodes'?"]),
        (["--set", "trainer.nodes=two"], ["'two'", "--set trainer.nodes=two: trainer.nodes"]),
        (["--set", "trainer.nodes"], ["key=value", "--set"]),
        (["--topology", "tets-cluster"], ["'tets-cluster'", "did you mean 'test-cluster'?"]),
        (["--run-id", "../elsewhere"], ["'../elsewhere'", "--run-id"]),
        (["--set", "rollout.groups=[{engines=3, nodes=2}]"], ["3 engines on 2 nodes: 3 / 2 = 1.5", "rollout.groups[0].engines"]),
        (["--set", "trainer.gpus_per_node=9"], ["trainer.gpus_per_node = 9", "has 8", "at most 8"]),
    ],
)
def test_a_wrong_option_is_refused(words, parts, write, refused):
    write()
    refused(parts, "submit", "trial.toml", *ON_CLUSTER, *words)


@pytest.mark.parametrize(
    ("name", "parts"), [("demmo", ["'demmo'", "did you mean 'demo'?"]), ("none.toml", ["no file none.toml", "correct the path"])]
)
def test_an_experiment_that_is_not_there_is_refused(name, parts, refused):
    refused(parts, "submit", name)


@pytest.fixture(params=["this host", "another host"])
def held(request, write, slime):
    """A run folder that a live job holds."""
    write()
    assert slime("render", "trial.toml", *ON_CLUSTER, "--run-id", "held").exit_code == 0
    run = RunFolder(Path("runs/trial/held").absolute())
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    host = socket.gethostname() if request.param == "this host" else "elsewhere"
    holder = Holder(host=host, pid=process.pid, job="77", boot=_boot_id(), time=time.time())
    run.control.mkdir(exist_ok=True)
    run.lock.write_text(json.dumps(asdict(holder)))
    yield run, holder
    process.communicate(b"\n")


@pytest.mark.parametrize("words", [["resume", "held"], ["submit", "trial.toml", *ON_CLUSTER, "--run-id", "held"]])
def test_a_run_folder_that_another_job_holds_is_refused(words, held, refused):
    run, holder = held
    parts = [f"{run.path} is held by job 77 (pid {holder.pid} on {holder.host})", str(run.lock), f"slime-hpc cancel {run.path}"]
    refused(parts, *words)


def test_a_run_whose_job_still_waits_is_refused(write, slime, refused, slurm):
    write()
    assert slime("submit", "trial.toml", *ON_CLUSTER, "--run-id", "a").exit_code == 0
    run = RunFolder(Path("runs/trial/a").absolute())
    refused([f"{run.path} is held by job 4242 (PENDING)", str(run.job), "slime-hpc cancel"], "resume", "a")
    slurm.set_state("CANCELLED")
    assert slime("resume", "a", "--parsable").stdout == "4242\n"


def test_a_run_folder_that_exists_is_refused(write, slime, refused):
    write()
    assert slime("render", "trial.toml", *ON_CLUSTER, "--run-id", "a").exit_code == 0
    refused(["exists already", "--run-id", "slime-hpc resume"], "submit", "trial.toml", *ON_CLUSTER, "--run-id", "a")


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "resume"])
def test_a_run_that_is_not_there_is_refused(command, refused):
    refused(["There is no run 'nowhere'", "RUN", "there are none in"], command, "nowhere")
