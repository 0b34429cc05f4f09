import pytest

from slime_hpc.config import names
from slime_hpc.errors import ConfigError


def test_a_reference_is_imported():
    import json

    assert names.load("json:dumps", where="reward.kind") is json.dumps


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("json", "not of the form 'module:attribute'"),
        ("json:", "not of the form"),
        (":dumps", "not of the form"),
        ("..json:dumps", "not of the form"),
        ("json:dump_all", "has no 'dump_all'"),
        ("no_such_module:f", "no module 'no_such_module'"),
    ],
)
def test_a_bad_reference_names_the_key(reference, what):
    with pytest.raises(ConfigError) as caught:
        names.load(reference, where="reward.kind")
    assert what in caught.value.what
    assert caught.value.where == "reward.kind"
    assert caught.value.fix


def test_a_module_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_reward.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        names.load("broken_reward:score", where="reward.kind")
