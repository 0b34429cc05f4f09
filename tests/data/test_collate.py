import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.data.collate import collate, offsets
from slime_hpc.errors import DataError
from slime_hpc.testing.samples import make_sample
from slime_hpc.testing.strategies import samples


@given(st.lists(st.integers(0, 100)))
def test_offsets_are_the_sums_of_what_is_before(lengths):
    result = offsets(lengths)
    assert result.dtype == np.int64 and result.shape == (len(lengths) + 1,)
    assert result.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]


@given(samples())
def test_every_sample_is_found_again_through_the_offsets(given_samples):
    batch = collate(given_samples, step=3, weight_version=2)
    assert (batch.step, batch.weight_version, batch.num_samples) == (3, 2, len(given_samples))
    for i, sample in enumerate(given_samples):
        tokens = batch.tokens_T[batch.token_offsets[i] : batch.token_offsets[i + 1]]
        assert tokens.tolist() == [*sample.prompt_tokens_P, *sample.response_tokens_R]
        response = slice(batch.response_offsets[i], batch.response_offsets[i + 1])
        np.testing.assert_array_equal(batch.logprobs_R[response], sample.logprobs_R)
        np.testing.assert_array_equal(batch.loss_mask_R[response], sample.loss_mask_R)
        text = batch.text_bytes[batch.text_offsets[i] : batch.text_offsets[i + 1]].tobytes()
        assert text == sample.text.encode(errors="replace")
        assert batch.reward_N[i] == np.float32(sample.reward)
        assert (batch.group_N[i], batch.index_N[i], batch.finish_N[i]) == (sample.group, sample.index, sample.finish)
        assert (batch.weight_version_N[i], batch.weight_version_last_N[i]) == (sample.weight_version, sample.weight_version_last)
        assert batch.token_lengths_N[i] - batch.response_lengths_N[i] == len(sample.prompt_tokens_P)
    assert batch.token_offsets[-1] == len(batch.tokens_T)
    assert batch.response_offsets[-1] == len(batch.logprobs_R) == len(batch.loss_mask_R)


@given(samples())
def test_types_do_not_depend_on_what_is_in_it(given_samples):
    batch, empty = collate(given_samples, step=1, weight_version=0), collate([], step=1, weight_version=0)
    for field in dataclasses.fields(batch):
        if field.name not in ("step", "weight_version", "routes_TLK"):
            assert getattr(batch, field.name).dtype == getattr(empty, field.name).dtype, field.name


@pytest.mark.parametrize("field", ["logprobs_R", "loss_mask_R", "response_tokens_R"])
def test_a_sample_whose_arrays_differ_in_length_is_refused(field):
    """Flat arrays would shift from there on, and every later sample would be trained on its neighbour's values."""
    bad = make_sample(group=7, index=2, response=4)
    bad = dataclasses.replace(bad, **{field: getattr(bad, field)[:-1]})
    with pytest.raises(DataError, match="numbers must be equal") as caught:
        collate([make_sample(), bad], step=1, weight_version=0)
    assert caught.value.where == "group 7, answer 2"


def test_routes_that_do_not_fit_their_tokens_are_refused():
    """Rows would shift from there on, and every later token would be sent where its neighbour went."""

    def routed(rows):
        return dataclasses.replace(make_sample(group=7, index=2, prompt=2, response=4), routes_TLK=np.zeros((rows, 3, 2), np.int16))

    assert collate([routed(5)], step=1, weight_version=0).routes_TLK.shape == (6, 3, 2)
    with pytest.raises(DataError, match="6 tokens has the routes of 6; there must be one less") as caught:
        collate([routed(6)], step=1, weight_version=0)
    assert caught.value.where == "group 7, answer 2"
    with pytest.raises(DataError, match="1 of 2 samples have routes"):
        collate([routed(5), make_sample()], step=1, weight_version=0)


def test_half_a_character_does_not_stop_a_run():
    batch = collate([make_sample(text="a\ud83d"), make_sample(text="b")], step=1, weight_version=0)
    assert batch.text_bytes.tobytes() == b"a?b"
