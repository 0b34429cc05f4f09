import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.data.prompt_file import read_prompts
from slime_hpc.errors import DataError


def read(path):
    return read_prompts(path, prompt_key="prompt", answer_key="answer", where="data.prompts")


@given(st.lists(st.tuples(st.text(min_size=1), st.text()), min_size=1), st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_any_text_comes_back(tmp_path_factory, rows, ascii_only, end):
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    lines = [json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=ascii_only) for prompt, answer in rows]
    path.write_bytes("".join(line + end for line in lines).encode())
    assert [(prompt.content, prompt.answer) for prompt in read(path)] == rows


def test_chat_messages_numbers_and_the_whole_line(tmp_path):
    path = tmp_path / "p.jsonl"
    messages = [{"role": "user", "content": "6 x 7?"}]
    path.write_text(json.dumps({"prompt": messages, "answer": 42, "level": "easy"}))
    (prompt,) = read(path)
    assert (prompt.content, prompt.answer, prompt.metadata["level"]) == (messages, "42", "easy")


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": "b"}')
    assert read(path)[0].content == "a"


GOOD = '{"prompt": "a", "answer": "b"}\n'


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        (GOOD + "{prompt", "Line 2 of .* is not JSON", 2),
        (GOOD + "\n[1]", "Line 3 of .* is not a JSON object", 3),
        (GOOD + '{"answer": "b"}', "Line 2 of .* has no field 'prompt'; it has 'answer'", 2),
        (GOOD + '{"prompt": "a"}', "Line 2 of .* has no field 'answer'; it has 'prompt'", 2),
        (GOOD + "{}", "has no field 'prompt'; it has none", 2),
        (GOOD + '{"prompt": "", "answer": "b"}', "empty or not text", 2),
        (GOOD + '{"prompt": 3, "answer": "b"}', "empty or not text", 2),
        (GOOD + '{"prompt": [], "answer": "b"}', "not a list of chat messages", 2),
        (GOOD + '{"prompt": [{"role": "user"}], "answer": "b"}', "not a list of chat messages", 2),
        (GOOD + '{"prompt": "a", "answer": null}', "'answer' is null", 2),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, what, line):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=what) as caught:
        read(path)
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.fix


def test_a_file_that_cannot_be_used_names_its_key(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    (tmp_path / "no.parquet").write_bytes(b"PAR0")
    for name, what in [
        ("empty.jsonl", "holds no prompt"), ("latin.jsonl", r"not UTF-8 text \(byte 12\)"), ("none.jsonl", "No such file"),
        ("none.parquet", "no such file"), ("no.parquet", "is not a Parquet file"), ("", "Is a directory"),
    ]:  # fmt: skip
        with pytest.raises(DataError, match=what) as caught:
            read(tmp_path / name)
        assert caught.value.where == "data.prompts"


def test_parquet_says_the_same_as_json_lines(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "a"}], "answer": "1"}, {"prompt": [{"role": "user", "content": "é"}], "answer": "2"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read(tmp_path / "p.parquet") == read(tmp_path / "p.jsonl")
