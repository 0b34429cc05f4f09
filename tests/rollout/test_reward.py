import math
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.config.schema import Reward
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish
from slime_hpc.errors import ConfigError, RunError
from slime_hpc.rollout.process import python_environment
from slime_hpc.rollout.reward import make_scorer
from slime_hpc.rollout.rewards.answer import extract

FAILING = "odd_rewards:score"


def item(text, answer="0.5"):
    return Prompt(content="?", answer=answer), text, Finish.STOP


@pytest.fixture
def scored():
    scorers = []

    def score(items, *, workers=2, **reward):
        scorer = make_scorer(Reward(**{"kind": FAILING, "timeout_s": 1.0, **reward}), workers=workers)
        scorers.append(scorer)
        return scorer.score(items)

    yield score
    for scorer in scorers:
        scorer.close()


def test_only_the_answer_at_fault_is_marked(scored):
    texts = ["number", "raise", "number", "die", "slow", "nan", "hang", "none", "number", "exit", "slow"]
    scores = scored([item(text) for text in texts])
    assert [score.value for score in scores] == [0.5, 0, 0.5, 0, 1, 0, 0, 0, 0.5, 0, 1]
    errors = dict(zip(texts, (score.error for score in scores), strict=True))
    assert errors["number"] == errors["slow"] == ""
    assert errors["raise"] == "ValueError: no such answer"
    assert errors["nan"] == "the reward returned nan"
    assert "TypeError" in errors["none"]
    assert errors["hang"] == "the reward took longer than 1 s (reward.timeout_s)"
    assert errors["die"] == errors["exit"] == "the reward ended its process"
    assert [score.failed for score in scores] == [bool(score.error) for score in scores]


def test_a_deadline_does_not_count_the_start_of_a_process(scored):
    """Starting Python takes longer than this."""
    assert [score.value for score in scored([item("number")] * 4, timeout_s=0.02)] == [0.5] * 4


def test_hanging_rewards_end_in_their_time(scored):
    start = time.monotonic()
    scores = scored([item("hang")] * 3, workers=3)
    assert all(score.failed for score in scores)
    assert time.monotonic() - start < 20


def test_what_a_hanging_reward_started_ends_with_it(scored, tmp_path):
    [score] = scored([item("hang with a child")], timeout_s=3.0, options={"pids": str(tmp_path)})
    assert score.failed
    child = int((tmp_path / "child").read_text())
    assert wait_gone(child)


def test_closing_ends_the_processes(tmp_path):
    scorer = make_scorer(Reward(kind=FAILING, options={"pids": str(tmp_path)}), workers=2)
    scorer.score([item("slow")] * 4)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids
    scorer.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(score.failed for score in scorer.score([item("number")]))


def test_a_reward_that_hangs_dies_with_a_killed_parent(tmp_path):
    source = f"""
if __name__ == "__main__":
    from slime_hpc.config.schema import Reward
    from slime_hpc.data.prompt import Prompt
    from slime_hpc.rollout.reward import make_scorer
    scorer = make_scorer(Reward(kind={FAILING!r}, timeout_s=600, options={{"pids": {str(tmp_path)!r}}}), workers=1)
    scorer.score([(Prompt(content="?"), "hang", 0)])
"""
    script = tmp_path.with_suffix(".py")
    script.write_text(source)
    parent = subprocess.Popen([sys.executable, str(script)], env=python_environment(Path(__file__).parent))
    deadline = time.monotonic() + 30
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    [worker] = [int(path.name) for path in tmp_path.iterdir()]
    parent.kill()
    parent.wait()
    assert wait_gone(worker)


def wait_gone(pid, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("kind", "match"), [("nonsense", "not of the form"), ("no_such_module:score", "no module"), ("math:no_such", "has no 'no_such'")]
)
def test_a_reward_that_cannot_be_imported_is_a_configuration_error(kind, match):
    with pytest.raises(ConfigError, match=match) as caught:
        make_scorer(Reward(kind=kind), workers=1)
    assert caught.value.where == "reward.kind"


def test_a_reward_that_only_this_process_can_import_is_told(monkeypatch):
    module = type(math)("here_only")
    module.score = lambda prompt, text, finish: 1.0
    monkeypatch.setitem(sys.modules, "here_only", module)
    scorer = make_scorer(Reward(kind="here_only:score"), workers=1)
    with pytest.raises(RunError, match="did not come up"):
        scorer.score([item("number")])
    scorer.close()


def test_the_rewards_of_the_package_score(scored):
    assert [s.value for s in scored([item("7", "7"), item("8", "7"), item(" 7\n", "7")], kind="exact", timeout_s=30)] == [1, 0, 1]
    answers = [item("so it is $\\frac{1}{2}$", "0.5"), item("the result is 3", "4"), item("?", "4")]
    assert [(s.value, s.error) for s in scored(answers, kind="math", timeout_s=60)] == [(1, ""), (0, ""), (0, "")]


def test_reasoning_gym_verifies_its_own_items(scored):
    import reasoning_gym

    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=1)[0]
    prompt = Prompt(content=entry["question"], answer=entry["answer"], metadata=entry)
    answers = [(prompt, text, Finish.STOP) for text in (entry["answer"], "-1", f"It is {entry['answer']}.")]
    scores = scored(answers, kind="reasoning_gym", timeout_s=60, options={"take": "last_number", "threshold": 0.9})
    assert [(s.value, s.error) for s in scores] == [(1, ""), (0, ""), (1, "")]


def test_an_answer_that_was_cut_off_can_be_refused(scored):
    prompt = Prompt(content="?", answer="ab")
    items = [(prompt, "ab", Finish.STOP), (prompt, "ab", Finish.LENGTH)]
    assert [s.value for s in scored(items, kind="exact", timeout_s=30, options={"require_stop": True})] == [1, 0]


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        (" a\nb ", "all", "a\nb"),
        ("\n a \nb", "first_line", "a"),
        ("3 and -4.5.", "last_number", "-4.5"),
        ("3 + 4 = 7\n9", "first_line_number", "7"),
        ("none", "last_number", ""),
        ("", "first_line_number", ""),
    ],
)
def test_extract(text, how, expected):
    assert extract(text, how) == expected


@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc \n", max_size=20))
def test_the_last_number_is_found_behind_any_text(number, text):
    assert extract(f"{text} {number}", "last_number") == str(number)
