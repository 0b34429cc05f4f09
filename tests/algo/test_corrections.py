import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo import mismatch, numpy_twin, registry
from slime_hpc.algo.correction import Corrected, correct
from slime_hpc.config.schema import Correction
from tests.algo.answers import ANSWERS, Answer, algorithm, tokens


def corrected(answers: list[Answer], **values: object) -> Corrected:
    table = algorithm(correction=values)
    return correct(tokens(answers), table.correction, registry.load(table).weigh)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "clip", "mask"])
@given(answers=ANSWERS, low=st.floats(0.1, 0.9), high=st.floats(1.1, 5))
def test_weights_are_the_twins(level, mode, answers, low, high):
    own = corrected(answers, kind="importance", level=level, mode=mode, low=low, high=high)
    expected = [numpy_twin.importance(a.old, a.engine, a.mask, level=level, mode=mode, low=low, high=high) for a in answers]
    np.testing.assert_allclose(own.weight_R, np.concatenate(expected), rtol=1e-9)


@pytest.mark.parametrize(("kind", "mode"), [("tis", "truncate"), ("icepop", "mask")])
@given(answers=ANSWERS)
def test_tis_and_icepop_weigh_tokens(kind, mode, answers):
    expected = [numpy_twin.importance(a.old, a.engine, a.mask, level="token", mode=mode, low=0.5, high=2.0) for a in answers]
    np.testing.assert_allclose(corrected(answers, kind=kind).weight_R, np.concatenate(expected), rtol=1e-9)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@given(answers=ANSWERS)
def test_rejection_is_outside_its_bounds(level, answers):
    own = corrected(answers, reject=level, reject_low=0.5, reject_high=2.0)
    ratios = np.exp(np.concatenate([numpy_twin.log_ratios(a.old, a.engine, a.mask, level) for a in answers]))
    near = np.isclose(ratios, 0.5) | np.isclose(ratios, 2.0)
    outside = (ratios < 0.5) | (ratios > 2.0)
    assert ((own.rejected_R.numpy() > 0) == outside)[~near].all()
    np.testing.assert_array_equal(own.weight_R, 1 - own.rejected_R)


def answer(old: list[float], engine: list[float], *, new: list[float] | None = None, advantage: float = 1.0) -> Answer:
    values = np.array(old)
    return Answer(np.array(new or old), values, np.array(engine), np.full_like(values, advantage), np.ones_like(values))


ANSWERS_OF_TWO = [answer([-1.0, -9.0], [-1.0, -1.0]), answer([-1.0, -1.5], [-1.0, -1.0])]


def test_a_veto_rejects_the_whole_answer():
    own = corrected(ANSWERS_OF_TWO, veto=1e-3)
    assert own.weight_R.tolist() == [0, 0, 1, 1]
    assert own.vetoed_R.tolist() == [1, 1, 0, 0]


def test_a_masked_token_vetoes_nothing():
    masked = Answer(*(getattr(ANSWERS_OF_TWO[0], name) for name in ("new", "old", "engine", "advantage")), mask=np.array([1.0, 0.0]))
    assert corrected([masked], veto=1e-3).weight_R.tolist() == [1, 1]


def test_off_policy_answers_go_only_when_they_were_bad():
    far, near = [-3.0, -3.0], [-1.0, -1.0]
    answers = [answer(near, near, new=new, advantage=a) for new in (far, near) for a in (1.0, -1.0)]
    assert corrected(answers, off_policy_kl=0.5).weight_R.tolist() == [1, 1, 0, 0, 1, 1, 1, 1]


@given(answers=ANSWERS)
def test_where_trainer_and_engine_agree_nothing_is_corrected(answers):
    same = [Answer(a.new, a.old, a.old, a.advantage, a.mask) for a in answers]
    for kind in ("none", "tis", "icepop", "importance"):
        own = corrected(same, kind=kind, reject="sequence", veto=1e-4)
        assert own.weight_R.tolist() == [1] * len(own.weight_R)
        assert not own.bounded_R.any() and not own.rejected_R.any() and not own.vetoed_R.any()
    values = mismatch.measure(tokens(same))
    assert all(abs(values[name].item()) < 1e-9 for name in values if not name.startswith("log_ppl"))


@given(answers=ANSWERS, cut=st.integers(0, 5))
def test_measures_of_parts_add_up(answers, cut):
    parts = [part for part in (answers[:cut], answers[cut:]) if part]
    whole = mismatch.measure(tokens(answers))
    assert set(whole) == {*mismatch.BY_TOKEN, *mismatch.BY_SAMPLE}
    for name, value in whole.items():
        torch.testing.assert_close(sum(mismatch.measure(tokens(part))[name] for part in parts), value)


def test_measures_in_closed_form():
    half = np.log(0.5)
    values = mismatch.measure(tokens([answer([half, half], [0.0, 0.0])]))
    expected = {"mismatch_kl": -half, "mismatch_k3": -0.5 - half, "mismatch_chi2": -0.75, "log_ppl_trainer": -half, "log_ppl_engine": 0.0}
    assert {name: value.item() / 2 for name, value in values.items() if name in expected} == pytest.approx(expected)
    assert values["mismatch_chi2_sequence"].item() == pytest.approx(1 / 16 - 1)


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match=r"'low' = 3\.0 is above 'high' = 2\.0"):
        Correction.model_validate({"low": 3.0})
