"""slime-hpc rollouts, over batches that were sealed as a controller seals them, in the run folder that `render` makes."""

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from rich.console import Console
from test_command_light import slime as slime_without_packages

from slime_hpc.cli.sample_view import draw, visible
from slime_hpc.cli.stored_sample import Shown
from slime_hpc.data.sample import Finish
from slime_hpc.run_folder import RunFolder
from slime_hpc.testing.samples import make_sample
from slime_hpc.testing.stored_run import seal_step


def answers(step):
    """Two prompts: the first group's answers differ in reward, the second's are alike, its last is cut off and its scoring failed."""
    for group, rewards in ((2 * step, (1.0, 0.0)), (2 * step + 1, (0.0, 0.0))):
        for index, reward in enumerate(rewards):
            yield dataclasses.replace(
                make_sample(group=group, index=index, response=2 + index, reward=reward, text=f"answer {index}"),
                prompt_tokens_P=np.array([5, 6, 7], np.int32),
                weight_version=step - 1,
                weight_version_last=step - 1,
                **({"finish": Finish.LENGTH, "reward_failed": True} if (group % 2, index) == (1, 1) else {}),
            )


@pytest.fixture
def run(slime):
    assert slime("render", "demo", "--run-id", "a").exit_code == 0
    run = RunFolder(Path("runs/demo/a").absolute())
    for step in (1, 2, 3):
        seal_step(run, step, list(answers(step)))
    return run


def cells(line):
    return line.split()


def test_ls_lists_every_batch(slime, run):
    run.batch(2).write_bytes(run.batch(2).read_bytes()[:-1])
    run.batch(3).unlink()
    lines = slime("rollouts", "ls", "demo").stdout.splitlines()
    assert cells(lines[1]) == ["step", "samples", "tokens", "reward", "truncated", "failed", "weights", "bytes", "state"]
    size = run.batch(1).stat().st_size
    assert [cells(line) for line in lines[3:6]] == [
        ["1", "4", "22", "0.250", "1", "1", "0", str(size), "sealed"],
        ["2", str(run.batch(2).stat().st_size), "torn"],
        ["3", "0", "missing"],
    ]
    first, torn, missing = json.loads(slime("rollouts", "ls", "demo", "--json").stdout)
    assert (first["state"], first["samples"], first["bytes"], first["reward_mean"]) == ("sealed", 4, size, 0.25)
    assert (torn["state"], missing["state"]) == ("torn", "missing") and "samples" not in torn


def test_stats_shows_what_can_be_read_and_names_the_rest(slime, run):
    run.batch(2).unlink()
    result = slime("rollouts", "stats", "demo")
    rows = [cells(line) for line in result.stdout.splitlines()[3:5]]
    assert rows == [[str(step), "3.0", "2.5", "2.5", "3", "0.250", "0.433", "0.000", "1.000", "1/2", "1"] for step in (1, 3)]
    assert result.stderr == "step 2 is left out: there is no file step_00000002.h5\n"
    assert [each["step"] for each in json.loads(slime("rollouts", "stats", "demo", "--json").stdout)] == [1, 3]


def test_verify_passes_what_was_sealed(slime, run):
    result = slime("rollouts", "verify", "demo")
    assert (result.exit_code, result.stdout) == (0, "3 of 3 batches are as they were sealed\n")


def test_verify_names_what_is_wrong_and_exits_1(slime, run):
    run.batch(1).write_bytes(run.batch(1).read_bytes().replace(b"answer 1", b"answer 2"))
    run.batch(2).unlink()
    result = slime("rollouts", "verify", "demo")
    assert result.exit_code == 1
    told = result.stdout.splitlines()
    assert told[0].startswith("step 1: changed: ") and told[1] == "step 2: missing: there is no file step_00000002.h5"
    assert told[2] == "1 of 3 batches are as they were sealed"
    result = slime("rollouts", "verify", "demo", "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert (value["batches"], value["sealed"]) == (3, 1)
    assert [(each["step"], each["state"]) for each in value["problems"]] == [(1, "changed"), (2, "missing")]


def test_show_shows_a_group_with_prompt_response_and_advantage(slime, run):
    result = slime("rollouts", "show", "demo", "2", "--group", "4", "--json")
    first, second = json.loads(result.stdout)
    # GRPO over rewards 1 and 0: the difference to the mean is half of 1, the deviation sqrt(1/2).
    assert [each["advantage"] for each in (first, second)] == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    assert [each["response"] for each in (first, second)] == ["answer 0", "answer 1"]
    assert first["prompt"] and isinstance(first["prompt"], str)
    assert (first["reward"], first["finish"], first["weight_version"], first["logprob_mean"]) == (1.0, "stop", 1, -1.5)
    assert "response_tokens" not in first
    text = slime("rollouts", "show", "demo", "2").stdout
    assert "sample 0: group 4, answer 0" in text and "sample 1: group 4, answer 1" in text and "sample 2" not in text
    assert "reward 1  advantage +0.707  finish stop  weights 1  tokens 3 + 2, trained 2  log-prob -1.500 a token" in text


def test_show_shows_one_sample_with_its_tokens(slime, run):
    (value,) = json.loads(slime("rollouts", "show", "demo", "1", "--sample", "3", "--tokens", "--json").stdout)
    assert (value["sample"], value["group"], value["index"], value["finish"], value["reward_failed"]) == (3, 3, 1, "length", True)
    assert value["response_tokens"] == [3510, 3511, 3512] and value["prompt_tokens"] == [5, 6, 7]
    assert (value["logprobs"], value["loss_mask"], value["advantages"]) == ([-1.0, -2.0, -3.0], [1, 1, 1], [0.0, 0.0, 0.0])


def test_without_a_tokenizer_the_prompt_stays_token_ids(slime, run):
    text = run.experiment.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("path = "))
    run.experiment.write_text(text.replace(line, 'path = "no-model"'))
    result = slime("rollouts", "show", "demo", "1", "--sample", "0")
    assert result.exit_code == 0
    assert "prompt    tokens 5 6 7" in [line.rstrip() for line in result.stdout.splitlines()]
    assert "prompts stay token ids: no tokenizer in no-model: " in result.stderr


@pytest.mark.parametrize(("advantage", "colour"), [(0.5, "\x1b[32m"), (-0.5, "\x1b[31m"), (0.0, "")])
def test_the_response_has_the_colour_of_its_advantage(advantage, colour):
    shown = Shown(row=0, sample=make_sample(text="why not"), advantages_R=[advantage] * 2, prompt="well")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    console.print(draw(shown, decode=None, tokens=False))
    assert f"{colour}why not" in console.file.getvalue()


def test_what_a_model_writes_does_not_command_the_terminal():
    assert visible("a\x1b[2J\x9b\r\n\tb\u00e9") == "a\\x1b[2J\\x9b\\x0d\n\tb\u00e9"


def test_only_trained_tokens_count_for_the_advantage():
    sample = dataclasses.replace(make_sample(response=3), loss_mask_R=np.array([1, 0, 1], np.uint8))
    assert Shown(row=0, sample=sample, advantages_R=[1.0, 50.0, 3.0], prompt=None).advantage == 2.0
    nothing = dataclasses.replace(sample, loss_mask_R=np.zeros(3, np.uint8))
    assert Shown(row=0, sample=nothing, advantages_R=[1.0, 50.0, 3.0], prompt=None).advantage is None


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_export_writes_the_samples_of_some_steps(slime, run, kind):
    result = slime("rollouts", "export", "demo", "--to", f"all.{kind}", "--steps", "2-3", "--json")
    path = Path(f"all.{kind}")
    assert json.loads(result.stdout) == {"file": str(path), "batches": 2, "samples": 8, "bytes": path.stat().st_size}
    rows = parquet.read_table(path).to_pylist() if kind == "parquet" else [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["group"], row["index"], row["response"]) for row in rows] == [
        (step, 2 * step + group, index, f"answer {index}") for step in (2, 3) for group in (0, 1) for index in (0, 1)
    ]


def test_export_of_a_changed_batch_writes_nothing(slime, run):
    run.batch(3).write_bytes(run.batch(3).read_bytes().replace(b"answer 1", b"answer 2"))
    result = slime("rollouts", "export", "demo", "--to", "all.jsonl")
    assert result.exit_code == 2
    assert "step_00000003.h5 has the SHA-256" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["runs"]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["show", "demo", "9"], "step_00000009.h5"),
        (["show", "demo", "1", "--sample", "4"], "--sample"),
        (["show", "demo", "1", "--group", "77"], "--group"),
        (["show", "demo", "1", "--group", "2", "--sample", "0"], "--sample"),
        (["show", "demo", "0"], "0"),
        (["ls", "nothing"], "RUN"),
        (["export", "demo", "--to", "all.csv"], "--to"),
        (["export", "demo", "--to", "no/all.jsonl"], "--to"),
        (["export", "demo", "--to", "all.jsonl", "--steps", "7-9"], "--steps"),
        (["export", "demo", "--to", "all.jsonl", "--steps", "3-1"], "--steps"),
        (["export", "demo", "--to", "all.jsonl", "--steps", "a"], "--steps"),
    ],
    ids=" ".join,
)
def test_wrong_words_exit_2_with_what_to_change(slime, run, words, where):
    result = slime("rollouts", *words)
    assert result.exit_code == 2, result.output
    assert where in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


def test_a_run_without_a_batch_is_no_error(slime):
    slime("render", "demo", "--run-id", "a")
    assert slime("rollouts", "ls", "demo").stdout == "the run has no batch yet\n"
    assert slime("rollouts", "stats", "demo").stdout == "the run has no batch yet\n"
    assert json.loads(slime("rollouts", "ls", "demo", "--json").stdout) == []
    assert slime("rollouts", "verify", "demo").stdout == "0 of 0 batches are as they were sealed\n"
    result = slime("rollouts", "export", "demo", "--to", "all.jsonl")
    assert result.exit_code == 2 and "the run has sealed no batch yet" in result.stderr


def test_where_nothing_reads_hdf5_help_works_and_commands_say_what_is_missing(here, run):
    for words in (["--help"], ["ls", "--help"], ["show", "--help"], ["export", "--help"]):
        assert slime_without_packages(here, "rollouts", *words).returncode == 0
    result = slime_without_packages(here, "rollouts", "ls", "demo")
    assert result.returncode == 2
    assert "Batches are read with the package h5py." in result.stderr and "Traceback" not in result.stderr
