import pytest

from slime_hpc.observe.report import draw_png, draw_terminal, report_step, report_steps

ROLLOUT = {
    "kind": "rollout",
    "step": 1,
    "reward_mean": 0.5,
    "response_tokens": 1000,
    "staleness": 1,
    "seconds_generate": 1.0,
    "seconds_reward": 0.5,
}
TRAIN = {
    "kind": "train", "step": 1, "loss": -0.1, "logprob_abs_diff_max": 1e-6, "seconds_wait": 30.0,
    "seconds_logprobs": 0.2, "seconds_train": 0.2,
}  # fmt: skip
PUSH = {"kind": "push", "step": 1, "seconds": 0.1}


def test_a_step_is_its_events_and_the_speed_counts_every_phase_but_waiting():
    report = report_step(1, [ROLLOUT, TRAIN, PUSH])
    assert (report.reward, report.loss, report.staleness, report.logprob_abs_diff_max) == (0.5, -0.1, 1, 1e-6)
    assert dict(report.seconds) == {"generate": 1.0, "reward": 0.5, "logprobs": 0.2, "train": 0.2, "push": 0.1}
    assert report.tokens_per_s == pytest.approx(500)


def test_a_checkpoint_does_not_slow_the_speed():
    report = report_step(1, [ROLLOUT, TRAIN, PUSH, {"kind": "checkpoint", "step": 1, "seconds": 5.0}])
    assert report.seconds["checkpoint"] == 5.0
    assert report.tokens_per_s == pytest.approx(500)


def test_an_event_that_has_not_come_leaves_none():
    report = report_step(1, [ROLLOUT])
    assert report.loss is None
    assert dict(report.seconds) == {"generate": 1.0, "reward": 0.5}
    assert report_step(1, [TRAIN]).tokens_per_s is None


def test_of_two_events_of_one_kind_the_later_counts():
    assert report_step(1, [ROLLOUT, {**ROLLOUT, "reward_mean": 0.75}]).reward == 0.75


def test_only_steps_with_a_batch_are_listed_and_in_order():
    second = {**ROLLOUT, "step": 2}
    log = [{"kind": "push", "step": 0}, second, ROLLOUT, {"kind": "eval", "step": 3}]
    assert [report.step for report in report_steps(log)] == [1, 2]


def test_the_terminal_plot_has_its_title_and_the_range_of_the_rewards():
    reports = report_steps([{**ROLLOUT, "step": n, "reward_mean": n / 8} for n in range(1, 9)])
    text = draw_terminal(reports, width=60, height=12)
    assert "mean reward by step" in text
    assert "1.00┤" in text
    assert "\x1b" not in text
    assert {len(line) for line in text.splitlines()} == {60}
    assert text == draw_terminal(reports, width=60, height=12)


def test_the_png_is_an_image_of_the_stated_size(tmp_path):
    from matplotlib.image import imread

    draw_png(report_steps([ROLLOUT, {**ROLLOUT, "step": 2}]), tmp_path / "reward.png")
    image = imread(tmp_path / "reward.png")
    assert image.shape[:2] == (480, 840)
    # More than background was drawn.
    assert image.std() > 0.01
