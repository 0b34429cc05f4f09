import dataclasses

import h5py
import numpy as np
from hypothesis import given

from slime_hpc.data.collate import collate
from slime_hpc.data.sample import Finish
from slime_hpc.store import hdf5
from slime_hpc.store.summary import read_summary, summarize
from slime_hpc.testing.samples import make_sample
from slime_hpc.testing.strategies import samples


def summary_of(given_samples):
    batch = collate(given_samples, step=1, weight_version=0)
    return summarize({field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)})


@given(given_samples=samples())
def test_figures_are_those_of_the_samples(given_samples):
    summary = summary_of(given_samples)
    groups = {s.group: {t.reward for t in given_samples if t.group == s.group} for s in given_samples}
    assert (summary.samples, summary.groups) == (len(given_samples), len(groups))
    assert summary.groups_with_spread == sum(len(rewards) > 1 for rewards in groups.values())
    assert summary.truncated == sum(s.finish is Finish.LENGTH for s in given_samples)
    assert summary.aborted == sum(s.finish is Finish.ABORT for s in given_samples)
    assert summary.reward_failed == sum(s.reward_failed for s in given_samples)
    assert summary.tokens == sum(len(s.prompt_tokens_P) + len(s.response_tokens_R) for s in given_samples)
    if not given_samples:
        assert summary.reward_mean is None and summary.response_max is None and summary.weight_version is None
        return
    lengths = [len(s.response_tokens_R) for s in given_samples]
    assert (summary.response_mean, summary.response_median, summary.response_max) == (np.mean(lengths), np.median(lengths), max(lengths))
    assert summary.prompt_mean == np.mean([len(s.prompt_tokens_P) for s in given_samples])
    rewards = [s.reward for s in given_samples]
    found = (summary.reward_mean, summary.reward_std, summary.reward_min, summary.reward_max)
    np.testing.assert_allclose(found, (np.mean(rewards), np.std(rewards), min(rewards), max(rewards)), atol=1e-6)
    assert summary.weight_version == min(s.weight_version for s in given_samples)
    assert summary.weight_version_last == max(s.weight_version_last for s in given_samples)


def test_no_token_is_read(tmp_path, monkeypatch):
    hdf5.seal(tmp_path / "b.h5", collate([make_sample(index=i) for i in range(3)], step=1, weight_version=0))
    names = set()
    original = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, key: names.add(self.name) or original(self, key))
    assert read_summary(tmp_path / "b.h5").samples == 3
    assert names and not names & {"/tokens_T", "/logprobs_R", "/loss_mask_R", "/text_bytes"}
