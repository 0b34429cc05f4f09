"""submit, follow, status, resume, cancel and demo, with a Slurm that only takes notes, and event files in the documented form."""

import json
from pathlib import Path

import pytest
from finished_run import write_run

from slime_hpc.launch import job
from slime_hpc.launch.submissions import read_submissions
from slime_hpc.run_folder import RunFolder
from slime_hpc.slurm.client import SlurmCommands

CLUSTER = ("demo", "--topology", "test-cluster")


def test_submit_prints_the_job_id_alone_when_parsable(slime, slurm):
    assert slime("submit", *CLUSTER, "--parsable").stdout == "4242\n"


def test_submit_notes_the_job_in_the_run_folder(slime, slurm):
    result = slime("submit", *CLUSTER, "--run-id", "a", "--json")
    run = RunFolder(Path("runs/demo/a").absolute())
    assert json.loads(result.stdout) == {"run_dir": str(run.path), "id": "4242", "state": "PENDING"}
    (submission,) = json.loads(run.job.read_text())
    assert (submission["id"], submission["cluster"], submission["attempt"]) == ("4242", "", 0)


def test_what_sbatch_says_is_what_the_user_reads_and_the_folder_can_be_resumed(slime, slurm):
    slurm.refuse()
    result = slime("submit", *CLUSTER, "--run-id", "a")
    assert result.exit_code == 4
    assert "sbatch: sbatch: error: Invalid account" in result.stderr
    assert slime("status", "a").stdout.endswith("job    none yet\n")


def test_wait_tells_every_step_and_ends_with_the_runs_outcome(slime, finished):
    result = slime("submit", *CLUSTER, "--set", "steps=12", "--wait", "--json")
    assert result.exit_code == 0, result.output
    told = result.stderr.splitlines()
    assert told[1] == "warm start: 2 supervised steps, loss 4.000 -> 2.000, 1.0 s"
    assert told[2] == "held-out pass rate 0.200 of 50 problems, before the first step"
    phases = "generate 1.00 reward 0.25 logprobs 0.25 train 0.40 push 0.10 s"
    assert told[3:15] == [
        f"step {n:2}/12  reward {n / 100:.3f}  500 tokens/s  diff {n * 1e-7:.1e}  staleness 0  {phases}" for n in range(1, 13)
    ]
    assert told[15:] == ["checkpoint of step 12, 0.3 s", "held-out pass rate 0.800 of 50 problems, after step 12"]
    assert json.loads(result.stdout.splitlines()[-1])["state"] == "COMPLETED"


def test_wait_exits_1_with_the_cause_when_the_run_fails(slime, slurm):
    write_run(slurm.leaves, steps=2, state="FAILED", cause="trainer rank 1 on n2: out of memory")
    slurm.set_state("FAILED")
    result = slime("submit", *CLUSTER, "--wait", "--json")
    assert result.exit_code == 1
    assert "slime-hpc: The run ended FAILED: trainer rank 1 on n2: out of memory" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["state"] == "FAILED"


def test_a_job_that_dies_before_its_supervisor_is_told_by_its_log(slime, slurm):
    (slurm.leaves.path / "attempts").mkdir()
    (slurm.leaves.path / "attempts" / "4242.log").write_text("loading\nmodule: command not found\n\n")
    slurm.set_state("FAILED")
    result = slime("submit", *CLUSTER, "--wait")
    assert result.exit_code == 1
    assert "it left no outcome; the last line of 4242.log: module: command not found" in result.stderr


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED"])
def test_slurms_word_counts_where_it_says_more_than_the_outcome(state, slime, slurm):
    write_run(slurm.leaves, steps=2, state="RUNNING")
    slurm.set_state(state)
    assert f"ended {state}" in slime("submit", *CLUSTER, "--wait").stderr


def test_resume_makes_a_new_attempt_and_tells_only_that(slime, slurm):
    write_run(slurm.leaves, steps=2, state="FAILED", cause="node lost")
    slurm.set_state("FAILED")
    slime("submit", *CLUSTER, "--run-id", "a")
    run = RunFolder(Path("runs/demo/a").absolute())
    run.attempt(0).mkdir()
    # The second job appends to the events of the first.
    old = run.metrics.read_text()
    write_run(slurm.leaves, steps=3, attempt=1)
    slurm.leaves.metrics.write_text(old + slurm.leaves.metrics.read_text().removeprefix(old))
    slurm.set_state("COMPLETED")
    result = slime("resume", "a", "--wait", "--json")
    assert result.exit_code == 0, result.output
    assert [submission["attempt"] for submission in json.loads(run.job.read_text())] == [0, 1]
    told = result.stderr.splitlines()
    assert told[0] == "attempt 1: goes on from step 0"
    assert sum(line.startswith("step ") for line in told) == 3


def test_a_complete_run_is_not_resumed(slime, finished):
    slime("submit", *CLUSTER, "--run-id", "a")
    result = slime("resume", "a")
    assert result.exit_code == 2
    assert "is complete" in result.stderr
    assert len(finished.calls()) == 1


def test_cancel_ends_the_job_and_waits_for_it(slime, slurm):
    slime("submit", *CLUSTER)
    result = slime("cancel", "demo")
    assert result.stdout == "job 4242: CANCELLED\n", result.output
    assert slurm.calls()[-1] == "scancel 4242"


def test_a_job_is_told_by_its_own_outcome_when_another_has_taken_the_run_on(slime, slurm):
    """Whoever waits for a job asks now and then; between two questions it may be cancelled and the run resumed."""
    slime("submit", *CLUSTER, "--run-id", "a")
    run = RunFolder(Path("runs/demo/a").absolute())
    (first,) = read_submissions(run)
    run.attempt(0).mkdir(parents=True)
    run.attempt_outcome(0).write_text('{"state": "CANCELLED", "cause": "told to end by SIGTERM", "attempt": 0}')
    slurm.set_state("CANCELLED")
    slime("resume", "a")
    slurm.set_state("RUNNING")
    asked = [job.job_state(run, SlurmCommands(), submission) for submission in (first, None)]
    assert asked == [job.JobState(id="4242", state="CANCELLED", cause="told to end by SIGTERM"), job.JobState(id="4242", state="RUNNING")]
    run.attempt_outcome(0).unlink()
    lost = job.job_state(run, SlurmCommands(), first)
    assert (lost.state, lost.cause) == ("FAILED", "it left no outcome; its log is empty")


def test_status_shows_the_state_the_phase_and_the_last_step(slime, slurm):
    write_run(slurm.leaves, steps=3, state="RUNNING")
    status = {"phase": "generating", "step": 4, "since": 0}
    (slurm.leaves.path / "control" / "status.json").write_text(json.dumps(status))
    slurm.set_state("RUNNING")
    slime("submit", *CLUSTER)
    lines = slime("status", "demo").stdout.splitlines()
    assert lines[1:3] == ["what   demo on test-cluster, nodes: 2", "job    4242 RUNNING"]
    assert lines[3].startswith("now    generating, step 4/40, for ")
    assert lines[4].startswith("last   step  3/40  reward 0.030  500 tokens/s")
    value = json.loads(slime("status", "demo", "--json").stdout)
    assert value["state"] == "RUNNING"
    assert value["status"] == status
    assert value["last"]["step"] == 3


def test_logs_show_the_last_lines_of_each_file_with_role_and_rank(slime, slurm):
    attempts = slurm.leaves.path / "attempts"
    for attempt in (0, 1):
        for name, text in {
            "trainer/4242_1_log.err": "a\nb\nc\n",
            "engines/4242_0_log.out": f"engine of attempt {attempt}\n",
            "trainer/4242_1_result.pkl": "x\n",
        }.items():
            path = attempts / str(attempt) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (attempts / "4242.log").write_text("COMPLETED\n")
    slime("submit", *CLUSTER)
    assert slime("logs", "demo", "-n", "2").stdout.splitlines() == [
        "supervisor: COMPLETED",
        "trainer-1: b",
        "trainer-1: c",
        "engines-0: engine of attempt 1",
    ]
    assert slime("logs", "demo", "--role", "engines", "--attempt", "0").stdout == "engines-0: engine of attempt 0\n"
    result = slime("logs", "demo", "--role", "trainers")
    assert result.exit_code == 2
    assert "there are: supervisor, controller, router, trainer, engines" in result.stderr


def test_demo_prints_one_json_object_last(slime, finished):
    result = slime("demo", "--topology", "test-cluster", "--set", "steps=12", "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout.splitlines()[-1])
    run = RunFolder(Path(value.pop("run_dir")))
    assert value.pop("reward_first") == pytest.approx(0.03)
    assert value.pop("reward_last") == pytest.approx(0.10)
    assert value.pop("logprob_abs_diff_max") == pytest.approx(12e-7)
    assert value == {
        "steps": 12,
        "samples": 12 * 256,
        "batches": 12,
        "weight_version": 12,
        "heldout_before": 0.2,
        "heldout_after": 0.8,
        "seconds": 42.0,
    }
    assert (run.path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_demo_ends_with_a_table_a_plot_and_where_everything_lies(slime, finished):
    result = slime("demo", "--topology", "test-cluster", "--set", "steps=12")
    assert result.exit_code == 0, result.output
    table, _, rest = result.stdout.partition("mean reward by step")
    rows = [line.split() for line in table.splitlines() if line.split() and line.split()[0].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [(str(n), f"{n / 100:.3f}") for n in range(1, 13)]
    assert "held-out pass rate  0.200 before, 0.800 after" in rest
    (folder,) = Path("runs/demo").absolute().iterdir()
    assert f"Everything lies in {folder}:" in rest
    named = [line.split()[0] for line in rest.partition("Everything lies in")[2].splitlines()[1:]]
    assert {"reward.png", "metrics.jsonl", "batches"} <= set(named)
    assert all((folder / name).exists() for name in named if name != "checkpoints")


def test_a_demo_that_fails_says_why_and_draws_nothing(slime, slurm):
    write_run(slurm.leaves, steps=2, state="FAILED", cause="engines ended with status 3")
    slurm.set_state("FAILED")
    result = slime("demo", "--topology", "test-cluster", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "engines ended with status 3" in result.stderr
