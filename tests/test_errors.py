import pickle

import pytest

from slime_hpc import errors
from slime_hpc.errors import SlimeError


def tree(kind):
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


@pytest.mark.parametrize("kind", tree(SlimeError))
def test_an_error_survives_the_way_from_a_job_to_its_supervisor(kind):
    error = kind("what", where="where", fix="fix")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.what, again.where, again.fix, again.exit_code) == (kind, "what", "where", "fix", kind.exit_code)
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", tree(SlimeError))
def test_every_error_is_drawn_in_the_docstring(kind):
    assert f" {kind.__name__} " in errors.__doc__ or kind is SlimeError


def test_exit_codes():
    codes = {kind.__name__: kind.exit_code for kind in tree(SlimeError)}
    assert codes == {
        "SlimeError": 1, "UserError": 2, "ConfigError": 2, "PlanError": 2, "DataError": 2, "RunFolderError": 2,
        "SchedulerError": 4, "RunError": 1, "EngineError": 1, "WeightPushError": 1, "DeltaError": 1,
    }  # fmt: skip


def test_text_for_people_and_one_line_for_a_log():
    error = SlimeError("Too\nmany nodes.", where="a.toml:\n nodes", fix="use\n  fewer")
    assert str(SlimeError("Too many.", where="a.toml", fix="fewer")) == "Too many.\n  where: a.toml\n  fix:   fewer"
    assert str(SlimeError("Too many.")) == "Too many."
    assert error.cause == "Too many nodes. [a.toml: nodes] -> use fewer"
    assert SlimeError("Too many.").cause == "Too many."
