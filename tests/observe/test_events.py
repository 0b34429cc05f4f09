import json
import math
import multiprocessing

from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.observe import events

EVENTS = st.lists(st.fixed_dictionaries({"kind": st.text(), "step": st.integers()}, optional={"x": st.floats(allow_nan=False) | st.text()}))


@given(EVENTS)
def test_events_come_back_in_order(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("events") / "metrics.jsonl"
    for event in written:
        events.append(path, event)
    assert list(events.read(path)) == written


@given(EVENTS.filter(len), EVENTS.filter(len), st.integers(1, 30))
def test_a_line_torn_by_a_crash_costs_that_line_alone(tmp_path_factory, before, after, cut):
    path = tmp_path_factory.mktemp("events") / "metrics.jsonl"
    for event in before:
        events.append(path, event)
    content = path.read_bytes()
    last = json.dumps(before[-1], separators=(",", ":")).encode() + b"\n"
    path.write_bytes(content[: len(content) - min(cut, len(last) - 1)])
    torn = cut > 1  # without its line break alone, a line is whole
    for event in after:
        events.append(path, event)
    assert list(events.read(path)) == [*(before[:-1] if torn else before), *after]


def test_bytes_that_a_file_system_left_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'\0\0\xff\xfe{"kind"\n{"kind":"train","step":1}\n')
    assert list(events.read(path)) == [{"kind": "train", "step": 1}]


def test_not_a_number_comes_back(tmp_path):
    events.append(tmp_path / "m", {"kind": "train", "step": 1, "grad_norm": math.nan, "loss": math.inf})
    (event,) = events.read(tmp_path / "m")
    assert math.isnan(event["grad_norm"]) and event["loss"] == math.inf


def test_no_file_is_no_events(tmp_path):
    assert list(events.read(tmp_path / "none")) == []
    assert events.by_step(tmp_path / "none", "train") == {}


def test_the_later_event_of_a_step_counts(tmp_path):
    for step, loss in ((2, 0.5), (1, 0.9), (2, 0.4)):
        events.append(tmp_path / "m", {"kind": "train", "step": step, "loss": loss})
    events.append(tmp_path / "m", {"kind": "push", "step": 3})
    found = events.by_step(tmp_path / "m", "train")
    assert [(step, event["loss"]) for step, event in found.items()] == [(1, 0.9), (2, 0.4)]


def append_many(path, writer):
    for number in range(200):
        events.append(path, {"kind": "x" * 500, "step": number, "writer": writer})


def test_lines_of_several_writers_do_not_mix(tmp_path):
    writers = [multiprocessing.get_context("fork").Process(target=append_many, args=(tmp_path / "m", i)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = list(events.read(tmp_path / "m"))
    assert sorted((event["writer"], event["step"]) for event in found) == [(i, n) for i in range(3) for n in range(200)]
