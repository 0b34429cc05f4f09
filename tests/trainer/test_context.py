"""How context-parallel ranks share the tokens of a pack."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.trainer import context
from slime_hpc.trainer.microbatch import pack

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=8)


def offsets_of(lengths):
    return (0, *itertools.accumulate(lengths))


@given(lengths, st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4]))
def test_every_token_is_on_one_rank_and_all_shares_are_as_long(lengths, size, multiple):
    offsets = offsets_of(lengths)
    shares = [context.places(offsets, rank, size, multiple) for rank in range(size)]
    assert sorted(place for share in shares for place in share.tolist() if place >= 0) == list(range(offsets[-1]))
    assert len({len(share) for share in shares}) == 1 and len(shares[0]) % multiple == 0
    # A chunk may be a token longer than another of its sequence, and a rank has two.
    assert len(shares[0]) < offsets[-1] / size + 2 * len(lengths) + multiple


@given(lengths, st.sampled_from([1, 2, 4]))
def test_a_span_sees_its_sequence_up_to_its_own_last_token(lengths, size):
    offsets = offsets_of(lengths)
    for rank in range(size):
        share = context.places(offsets, rank, size, 1)
        positions = context.positions(offsets, rank, size, len(share))
        for span in context.spans(offsets, rank, size):
            assert span.start in offsets
            assert share[span.query : span.query + span.count].tolist() == list(range(span.end - span.count, span.end))
            assert positions[span.query + span.count - 1] == span.end - span.start - 1


def test_attention_costs_all_ranks_alike():
    def cost(rank, size):
        return sum(span.count * (span.end - span.start) for span in context.spans((0, 8000), rank, size))

    assert max(cost(rank, 4) for rank in range(4)) == min(cost(rank, 4) for rank in range(4))


@given(lengths, st.sampled_from([2, 4]), st.data())
def test_ranks_predict_each_response_token_once(lengths, size, data):
    lengths = [length + 1 for length in lengths]
    offsets = offsets_of(lengths)
    responses = offsets_of([data.draw(st.integers(1, length - 1)) for length in lengths])
    tokens = torch.arange(offsets[-1]).numpy()
    whole = pack(tokens, offsets, responses, range(len(lengths)), multiple=1, device=torch.device("cpu"))
    own, targets = [], torch.full_like(whole.targets_Q, -1)
    for rank in range(size):
        share = pack(tokens, offsets, responses, range(len(lengths)), multiple=1, device=torch.device("cpu"), rank=rank, ranks=size)
        own += share.own_Q.tolist()
        targets[share.own_Q] = share.targets_Q
        assert torch.equal(share.tokens_T[share.rows_Q] + 1, share.targets_Q)
    assert sorted(own) == list(range(responses[-1]))
    assert torch.equal(targets, whole.targets_Q)
