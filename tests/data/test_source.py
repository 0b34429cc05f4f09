import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.config.schema import Data, Evaluation
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.source import EpochSource, load_prompts, make_source
from slime_hpc.errors import ConfigError, DataError


def prompts(count, answer=""):
    return [Prompt(content=f"p{i}", answer=answer) for i in range(count)]


def source(count, *, seed=0, shuffle=True):
    return EpochSource(prompts(count), seed=seed, shuffle=shuffle)


TAKES = st.lists(st.integers(0, 7), max_size=10)


@given(st.integers(1, 9), st.integers(0, 2**40), st.booleans(), TAKES)
def test_group_ids_count_up_and_every_epoch_holds_every_prompt_once(count, seed, shuffle, takes):
    whole = source(count, seed=seed, shuffle=shuffle)
    taken = [item for take in takes for item in whole.take(take)]
    assert [group for group, _ in taken] == list(range(sum(takes)))
    contents = [prompt.content for _, prompt in taken]
    for first in range(0, len(contents) - count + 1, count):
        assert sorted(contents[first : first + count]) == sorted(prompt.content for prompt in prompts(count))


@given(st.integers(1, 9), st.integers(0, 5), TAKES, TAKES)
def test_going_on_from_any_point_gives_what_would_have_come(count, seed, before, after):
    first = source(count, seed=seed)
    for take in before:
        first.take(take)
    state = json.loads(json.dumps(first.state()))
    other = source(count, seed=seed)
    other.take(3)
    other.restore(state)
    assert [other.take(take) for take in after] == [first.take(take) for take in after]
    assert other.state() == first.state()


@given(st.integers(1, 9), TAKES)
def test_how_many_are_taken_at_a_time_does_not_matter(count, takes):
    at_once, piecewise = source(count), source(count)
    assert at_once.take(sum(takes)) == [item for take in takes for item in piecewise.take(take)]


def test_seeds_and_epochs_differ_and_file_order_is_kept_without_shuffling():
    first, second = source(50, seed=1), source(50, seed=2)
    epoch = [[prompt.content for _, prompt in first.take(50)] for _ in range(2)]
    assert epoch[0] != epoch[1]
    assert epoch[0] != [prompt.content for _, prompt in second.take(50)]
    assert [prompt.content for _, prompt in source(5, shuffle=False).take(7)] == ["p0", "p1", "p2", "p3", "p4", "p0", "p1"]


@pytest.mark.parametrize("other", [prompts(4), prompts(3, answer="changed"), list(reversed(prompts(3)))])
def test_other_prompts_than_at_the_start_are_noticed(other):
    state = source(3).state()
    with pytest.raises(DataError, match="The run was started with 3 prompts"):
        EpochSource(other, seed=0, shuffle=True).restore(state)


def test_prompts_from_code_and_from_a_file(tmp_path):
    made = load_prompts(Evaluation(source="slime_hpc.recipes.spell:prompts", options={"split": "heldout"}, limit=5), key="eval")
    assert len(made) == 5
    path = tmp_path / "p.jsonl"
    path.write_text('{"q": "a", "a": "1"}\n{"q": "b", "a": "2"}\n')
    data = Data(prompts=str(path), prompt_key="q", answer_key="a", shuffle=False)
    assert [prompt.answer for _, prompt in make_source(data, 0).take(3)] == ["1", "2", "1"]


def test_code_that_is_missing_or_returns_nothing_names_its_key():
    with pytest.raises(ConfigError) as caught:
        load_prompts(Data(source="slime_hpc.recipes.spell:no_prompts"), key="data")
    assert caught.value.where == "data.source"
    with pytest.raises(DataError, match="returned no prompt"):
        load_prompts(Data(source="builtins:list"), key="data")
    with pytest.raises(ConfigError, match="missing a required argument") as caught:
        load_prompts(Data(source="slime_hpc.recipes.spell:prompts", options={"splt": "train"}), key="data")
    assert caught.value.where == "data.options"
