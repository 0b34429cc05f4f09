"""Whether a role is started again: its kind's budget, its own fault, and what was trained since."""

import pytest

from slime_hpc.config.schema import Failure
from slime_hpc.launch.recovery import Recovery
from slime_hpc.testing.engines import make_role

KINDS = ("controller", "router", "engines", "trainer")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_budget(kind):
    recovery = Recovery(Failure(**{f"{kind.removesuffix('s')}_restarts": 2}))
    role = make_role("x", kind)
    assert [recovery.restart(role, user_error=False, trained=step) for step in range(4)] == [1, 2, 0, 0]
    other = make_role("y", next(each for each in KINDS if each != kind))
    assert recovery.restart(other, user_error=False, trained=3) == 1


def test_two_groups_of_engines_have_a_budget_each():
    recovery = Recovery(Failure(engine_restarts=1))
    assert [recovery.restart(make_role(name, "engines"), user_error=False, trained=0) for name in ("a", "b", "a")] == [1, 1, 0]


def test_a_role_that_finds_its_input_wrong_is_not_started_again():
    assert Recovery(Failure()).restart(make_role("x", "trainer"), user_error=True, trained=5) == 0


def test_a_role_that_fails_again_before_anything_is_trained_is_given_up():
    recovery = Recovery(Failure(trainer_restarts=9))
    role = make_role("x", "trainer")
    assert [recovery.restart(role, user_error=False, trained=trained) for trained in (0, 0, 4, 5, 5)] == [1, 0, 2, 3, 0]
