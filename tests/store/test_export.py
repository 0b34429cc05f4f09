import dataclasses
import json

import numpy as np
import pyarrow.parquet as parquet
import pytest

from slime_hpc.data.collate import collate
from slime_hpc.errors import DataError
from slime_hpc.store.export import export, rows
from slime_hpc.testing.samples import make_sample

KINDS = (".jsonl", ".parquet")


@pytest.fixture
def batches():
    return [
        collate(
            [make_sample(group=step, index=i, response=i, reward=0.1 * i, text="é\n" * i) for i in range(3)], step=step, weight_version=0
        )
        for step in (1, 2)
    ]


def decode(ids):
    return " ".join(map(str, ids))


def read(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_is_a_row(tmp_path, batches, kind):
    target = tmp_path / f"all{kind}"
    assert export(iter(batches), target, decode=decode) == 6
    assert read(target) == [row for batch in batches for row in rows(batch, decode)]
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    last = read(target)[-1]
    assert (last["step"], last["group"], last["index"], last["response"], last["prompt"]) == (2, 2, 2, "é\né\n", "2020 2021 2022")
    assert (last["response_tokens"], last["logprobs"], last["finish"]) == ([2520, 2521], [-1.0, -2.0], "stop")
    assert np.float32(last["reward"]) == np.float32(0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_half_way_leaves_what_was_there(tmp_path, batches, kind):
    target = tmp_path / f"all{kind}"
    target.write_text("before")

    def failing():
        yield batches[0]
        raise DataError("The second one is torn.")

    with pytest.raises(DataError, match="The second one is torn"):
        export(failing(), target, decode=None)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(target.name, "before")]


def test_without_a_tokenizer_prompts_are_null(tmp_path, batches):
    export(batches, tmp_path / "a.jsonl", decode=None)
    assert {row["prompt"] for row in read(tmp_path / "a.jsonl")} == {None}


def test_json_has_null_for_what_is_no_number(tmp_path, batches):
    odd = dataclasses.replace(
        batches[0], reward_N=np.array([np.nan, np.inf, 1], np.float32), logprobs_R=np.array([-np.inf, -1, -2], np.float32)
    )
    export([odd], tmp_path / "a.jsonl", decode=None)
    found = read(tmp_path / "a.jsonl")
    assert [row["reward"] for row in found] == [None, None, 1.0]
    assert [row["logprobs"] for row in found] == [[], [None], [-1.0, -2.0]]


@pytest.mark.parametrize("name", ["a.csv", "a", "none/a.jsonl", "folder.jsonl"])
def test_a_name_that_cannot_be_written_is_a_clean_error(tmp_path, batches, name):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError) as caught:
        export(batches, tmp_path / name, decode=None)
    assert caught.value.where == "--to" and caught.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["folder.jsonl"]
