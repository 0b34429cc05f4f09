"""slime_hpc.slurm against the cluster: Slurm's own commands, states and words."""

import time

import pytest

from slime_hpc.errors import SchedulerError
from slime_hpc.slurm import states
from slime_hpc.slurm.client import JobId, SlurmCommands, clean_environment

slurm_test = pytest.mark.slurm


@pytest.fixture
def slurm(cluster):
    return SlurmCommands()


@pytest.fixture
def script(tmp_path):
    def write(body, *directives):
        path = tmp_path / "job with space.sbatch"
        head = [f"--output='{tmp_path}/%j.log'", "--nodes=1", "--mem=1G", *directives]
        path.write_text("\n".join(["#!/bin/bash", *[f"#SBATCH {directive}" for directive in head], body]) + "\n")
        return path

    return write


def wait_for(slurm, job, wanted, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while (state := slurm.state(job)) not in wanted:
        assert time.monotonic() < deadline, f"job {job.id} is {state}, not {wanted}"
        time.sleep(0.1)
    return state


@slurm_test
@pytest.mark.parametrize(("body", "state"), [("exit 0", "COMPLETED"), ("exit 3", "FAILED"), ("kill -9 $$", "FAILED")])
def test_a_job_ends_in_the_state_slurm_gives_it(slurm, script, body, state):
    assert wait_for(slurm, slurm.submit(script(body)), states.ENDED) == state


@slurm_test
def test_a_job_is_cancelled(slurm, script):
    job = slurm.submit(script("sleep 300"))
    wait_for(slurm, job, {"RUNNING"})
    slurm.cancel(job)
    assert wait_for(slurm, job, states.ENDED) == "CANCELLED"


@slurm_test
def test_a_job_that_waits_is_pending(slurm, script):
    job = slurm.submit(script("true", "--begin=now+1hour"))
    assert slurm.state(job) == "PENDING"
    slurm.cancel(job)
    assert wait_for(slurm, job, states.ENDED) == "CANCELLED"


@slurm_test
def test_a_requeued_job_keeps_its_id_and_runs_again(cluster, slurm, script, tmp_path):
    job = slurm.submit(
        script(f"echo ${{SLURM_RESTART_COUNT:-0}} >> '{tmp_path}/starts'; [ $(wc -l < '{tmp_path}/starts') = 2 ] || sleep 300", "--requeue")
    )
    # A job is RUNNING before its script is.
    deadline = time.monotonic() + 60.0
    while not (tmp_path / "starts").exists():
        assert time.monotonic() < deadline, f"job {job.id} is {slurm.state(job)}"
        time.sleep(0.1)
    cluster.run("scontrol", "requeue", job.id)
    assert slurm.state(job) in {"PENDING", "COMPLETING", "CONFIGURING"}
    assert wait_for(slurm, job, states.ENDED) == "COMPLETED"
    assert (tmp_path / "starts").read_text().split() == ["0", "1"]


@slurm_test
def test_a_job_that_slurm_has_forgotten_is_unknown(slurm):
    assert slurm.state(JobId("987654")) == states.UNKNOWN


@slurm_test
def test_a_refused_submission_says_why_in_slurms_words(slurm, script):
    with pytest.raises(SchedulerError, match="invalid partition specified: nowhere") as caught:
        slurm.submit(script("true", "--partition=nowhere"))
    assert caught.value.exit_code == 4


@slurm_test
def test_the_variables_of_an_allocation_do_not_change_a_submission(slurm, script, monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert wait_for(slurm, slurm.submit(script("exit 0")), states.ENDED) == "COMPLETED"


def test_what_says_how_slurm_is_reached_stays_in_the_environment():
    environment = {"SLURM_CONF": "c", "SLURM_JOB_ID": "1", "SBATCH_QOS": "q", "PMIX_RANK": "0", "PATH": "p"}
    assert clean_environment(environment) == {"SLURM_CONF": "c", "PATH": "p"}


def test_a_machine_without_slurm_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SchedulerError, match="There is no sbatch on this machine"):
        SlurmCommands().submit(tmp_path / "x")


@pytest.fixture
def scripted_slurm(tmp_path, monkeypatch):
    """Commands that answer as told: for what the cluster cannot be brought to do."""

    def install(**bodies):
        for name, body in bodies.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return SlurmCommands(timeout_s=0.5)

    return install


def test_a_slurmctld_that_hangs_is_no_end_of_the_job(scripted_slurm):
    slurm = scripted_slurm(squeue="exec sleep 60", scontrol="exec sleep 60", sacct="echo no accounting >&2; exit 1")
    with pytest.raises(SchedulerError, match=r"squeue did not answer within 0\.5 s"):
        slurm.state(JobId("1"))


def test_accounting_is_asked_when_slurmctld_has_forgotten(scripted_slurm):
    forgotten = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    assert scripted_slurm(squeue=forgotten, scontrol=forgotten, sacct="echo 'CANCELLED by 1000'").state(JobId("1")) == "CANCELLED"


def test_a_job_of_another_cluster_is_asked_for_there(scripted_slurm, tmp_path):
    slurm = scripted_slurm(sbatch="echo '12;far'", squeue='[ "$1 $2" = "-M far" ] && printf "CLUSTER: far\\nRUNNING\\n"')
    job = slurm.submit(tmp_path / "x")
    assert job == JobId("12", "far")
    assert slurm.state(job) == "RUNNING"


def test_an_answer_that_is_no_job_id_is_shown(scripted_slurm, tmp_path):
    with pytest.raises(SchedulerError, match="maintenance tonight"):
        scripted_slurm(sbatch="echo maintenance tonight").submit(tmp_path / "x")
