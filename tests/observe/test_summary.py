import pytest

from slime_hpc.observe import events
from slime_hpc.observe.summary import summarize


@pytest.fixture
def files(tmp_path):
    return tmp_path / "metrics.jsonl", tmp_path / "index.jsonl"


def write(metrics, kind, step, **values):
    events.append(metrics, {"kind": kind, "step": step, "attempt": 0, "time": 100.0 + step, **values})


def test_a_run_with_a_restart(tmp_path, files):
    metrics, index = files
    for step in (1, 2, 3, 3, 4, 5, 6, 7):  # step 3 is done again after a restart
        write(metrics, "rollout", step, samples=8, reward_mean=step / 10)
        write(metrics, "train", step, logprob_abs_diff_max=step * 1e-6)
        write(metrics, "push", step)
        events.append(index, {"step": step})
    for step, rate in ((0, 0.2), (7, 0.9)):
        write(metrics, "eval", step, pass_rate=rate)
    index.write_text(index.read_text() + '{"step": 8, "fi')
    assert summarize(tmp_path, metrics, index) == {
        "steps": 7,
        "samples": 56,
        "reward_first": pytest.approx(0.3),
        "reward_last": pytest.approx(0.5),
        "batches": 7,
        "weight_version": 7,
        "logprob_abs_diff_max": 7e-6,
        "heldout_before": 0.2,
        "heldout_after": 0.9,
        "seconds": 7.0,
        "run_dir": str(tmp_path),
    }


def test_a_run_that_never_began(tmp_path, files):
    summary = summarize(tmp_path, *files)
    assert (summary["steps"], summary["samples"], summary["batches"]) == (0, 0, 0)
    assert [key for key, value in summary.items() if value is None] == [
        "reward_first", "reward_last", "weight_version", "logprob_abs_diff_max", "heldout_before", "heldout_after", "seconds",
    ]  # fmt: skip


def test_one_evaluation_is_the_one_before(tmp_path, files):
    write(files[0], "eval", 0, pass_rate=0.25)
    summary = summarize(tmp_path, *files)
    assert (summary["heldout_before"], summary["heldout_after"]) == (0.25, None)
