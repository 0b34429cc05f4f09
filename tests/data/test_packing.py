import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slime_hpc.data.packing import attention_cost, deal, schedule
from slime_hpc.errors import PlanError


@st.composite
def batches(draw):
    """Lengths, groups and what to do with them; groups may be of any sizes and their ids in any order."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    ids = draw(st.lists(st.integers(0, 10**6), min_size=len(sizes), max_size=len(sizes), unique=True))
    groups = np.repeat(ids, sizes)
    lengths = np.array(draw(st.lists(st.integers(1, 3000), min_size=len(groups), max_size=len(groups))), np.int64)
    updates = draw(st.sampled_from([n for n in (1, 2, 3, 4) if len(sizes) % n == 0]))
    return lengths, groups, {"dp_size": draw(st.integers(1, 6)), "tokens_cap": draw(st.integers(1, 8000)), "updates": updates}


def made(batch):
    lengths, groups, options = batch
    try:
        return schedule(lengths, groups, **options)
    except PlanError:
        assume(False)


@given(batches())
def test_every_sample_is_in_exactly_one_micro_batch(batch):
    lengths, _, _ = batch
    trained = [index for update in made(batch) for rank in update.ranks for micro_batch in rank for index in micro_batch]
    assert sorted(trained) == list(range(len(lengths)))


@given(batches())
def test_a_micro_batch_keeps_to_its_tokens_unless_one_sample_is_longer(batch):
    lengths, _, options = batch
    for update in made(batch):
        for micro_batch in (m for rank in update.ranks for m in rank):
            assert len(micro_batch) == 1 or lengths[list(micro_batch)].sum() <= options["tokens_cap"]


@given(batches())
def test_all_ranks_have_the_same_number_of_micro_batches_and_none_is_empty(batch):
    _, _, options = batch
    for update in made(batch):
        assert len(update.ranks) == options["dp_size"]
        assert len({len(rank) for rank in update.ranks}) == 1
        assert all(micro_batch and list(micro_batch) == sorted(micro_batch) for rank in update.ranks for micro_batch in rank)


@given(batches())
def test_siblings_are_trained_in_one_update_and_groups_in_order(batch):
    _, groups, options = batch
    updates = made(batch)
    seen = [set(groups[list(update.samples)].tolist()) for update in updates]
    assert sum(map(len, seen)) == len(set(groups.tolist()))
    order = list(dict.fromkeys(groups.tolist()))
    share = len(order) // options["updates"]
    assert seen == [set(order[i * share : (i + 1) * share]) for i in range(options["updates"])]


@given(batches())
def test_no_rank_has_more_work_than_another_by_more_than_one_micro_batch(batch):
    lengths, _, _ = batch
    for update in made(batch):
        costs = [[float(attention_cost(lengths[list(m)]).sum()) for m in rank] for rank in update.ranks]
        loads = [sum(rank) for rank in costs]
        assert max(loads) - min(loads) <= max(map(max, costs)) * (1 + 1e-9)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.integers(1, 6))
def test_no_rank_is_loaded_more_than_costliest_first_would_load_it(loads, places):
    """The swaps after dealing only ever lower the largest sum of the two ranks."""
    bins = [load * (1 + k) for k in range(places) for load in loads]
    ranks = deal(bins, len(loads))
    assert sorted(k for rank in ranks for k in rank) == list(range(len(bins)))
    sums, counts = [0.0] * len(loads), [0] * len(loads)
    for load in sorted(bins, reverse=True):
        rank = min((r for r in range(len(loads)) if counts[r] < places), key=lambda r: sums[r])
        sums[rank] += load
        counts[rank] += 1
    assert max(sum(bins[k] for k in rank) for rank in ranks) <= max(sums) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_64_ranks_are_even_to_a_thousandth(seed):
    lengths = np.clip(np.random.default_rng(seed).lognormal(7.5, 1.0, 4096), 16, 32_768).astype(np.int64)
    (update,) = schedule(lengths, np.arange(4096) // 8, dp_size=64, tokens_cap=32_768, updates=1)
    loads = [sum(float(attention_cost(lengths[list(m)]).sum()) for m in rank) for rank in update.ranks]
    assert max(loads) < np.mean(loads) * 1.001
    assert sum(map(len, update.ranks)) == -(-int(lengths.sum()) // 32_768 // 64) * 64


@given(batches())
def test_no_more_micro_batches_than_twice_the_fewest_possible(batch):
    """First fit leaves at most one bin less than half full; ranks add fewer than dp_size."""
    lengths, _, options = batch
    for update in made(batch):
        total = np.minimum(lengths[list(update.samples)], options["tokens_cap"]).sum()
        fewest = -(-int(total) // options["tokens_cap"])
        assert sum(map(len, update.ranks)) <= 2 * fewest + options["dp_size"]


@given(batches())
def test_every_rank_computes_the_same(batch):
    lengths, groups, options = batch
    first = made(batch)
    assert schedule(lengths.copy(), groups.copy(), **options) == first


def test_an_example():
    (update,) = schedule(np.array([5, 4, 3, 3, 2, 1]), np.zeros(6, np.int64), dp_size=2, tokens_cap=9, updates=1)
    assert update.ranks == (((0, 1),), ((2, 3, 4, 5),))


def test_bins_are_split_until_the_ranks_are_even():
    (update,) = schedule(np.array([4, 3, 2, 1]), np.zeros(4, np.int64), dp_size=2, tokens_cap=100, updates=1)
    assert update.ranks == (((0, 2),), ((1, 3),))


@pytest.mark.parametrize(
    ("lengths", "options", "what"),
    [
        ([5, 5, 5], {"dp_size": 4, "tokens_cap": 9, "updates": 1}, "3 samples cannot feed 4 data-parallel ranks"),
        # Five samples that do not fit together: two ranks would need six micro-batches.
        ([5] * 5, {"dp_size": 2, "tokens_cap": 9, "updates": 1}, "5 samples make at least 5 micro-batches of 9 tokens"),
        ([5] * 6, {"dp_size": 2, "tokens_cap": 9, "updates": 4}, "6 prompt groups do not divide into 4 updates"),
    ],
)
def test_what_cannot_be_scheduled_is_said(lengths, options, what):
    with pytest.raises(PlanError, match=what) as caught:
        schedule(np.array(lengths), np.arange(len(lengths)), **options)
    assert caught.value.where and caught.value.fix


@given(batches())
def test_whatever_the_lengths_there_is_a_schedule_when_samples_divide_by_ranks(batch):
    """The plan checks this before the job starts, so no run ends in the middle for want of a schedule."""
    lengths, groups, options = batch
    order = list(dict.fromkeys(groups.tolist()))
    share = len(order) // options["updates"]
    sizes = [int(np.isin(groups, order[i * share : (i + 1) * share]).sum()) for i in range(options["updates"])]
    assume(all(size % options["dp_size"] == 0 for size in sizes))
    assert schedule(lengths, groups, **options)
