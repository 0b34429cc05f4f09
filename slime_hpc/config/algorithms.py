"""The algorithms that an experiment may name, and where each one lies. An own one is given as "module:attribute"; so are these, in the end.

Strings alone: nothing is imported before a job loads what it uses.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

ADVANTAGES = {
    "grpo": "slime_hpc.algo.grpo:GRPO",
    "dr_grpo": "slime_hpc.algo.dr_grpo:DR_GRPO",
    "rloo": "slime_hpc.algo.rloo:RLOO",
    "reinforce_plus_plus": "slime_hpc.algo.reinforce:PLUS_PLUS",
    "reinforce_plus_plus_baseline": "slime_hpc.algo.reinforce:PLUS_PLUS_BASELINE",
    "gae": "slime_hpc.algo.gae:GAE",
    "none": "slime_hpc.algo.no_score:NONE",
}
WITH_CRITIC = ("gae",)
"""Advantages that need the table [critic]."""
WITH_SIBLINGS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
"""Advantages that are 0 for a prompt with one answer."""
LOSSES = {
    "ppo_clip": "slime_hpc.algo.ppo_clip:ppo_clip",
    "gspo": "slime_hpc.algo.gspo:gspo",
    "cispo": "slime_hpc.algo.cispo:cispo",
    "sft": "slime_hpc.algo.sft:sft",
}
REDUCERS = {
    "sample": "slime_hpc.algo.weighting:sample_mean",
    "rollout": "slime_hpc.algo.weighting:rollout_mean",
    "token": "slime_hpc.algo.weighting:token_mean",
    "constant": "slime_hpc.algo.weighting:constant",
}
KL_ESTIMATORS = {
    "k1": "slime_hpc.algo.kl:k1",
    "k2": "slime_hpc.algo.kl:k2",
    "k3": "slime_hpc.algo.kl:k3",
    "low_var_kl": "slime_hpc.algo.kl:low_var_kl",
}
CORRECTIONS = {
    "none": "slime_hpc.algo.importance:none",
    "tis": "slime_hpc.algo.importance:tis",
    "icepop": "slime_hpc.algo.importance:icepop",
    "importance": "slime_hpc.algo.importance:importance",
}


def _known(registry: Mapping[str, str]) -> AfterValidator:
    def check(value: str) -> str:
        if value in registry or ":" in value:
            return value
        near = difflib.get_close_matches(value, registry, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{value!r} is neither one of {', '.join(map(repr, registry))} nor 'module:attribute'.{hint}")

    return AfterValidator(check)


AdvantageName = Annotated[str, _known(ADVANTAGES)]
LossName = Annotated[str, _known(LOSSES)]
ReducerName = Annotated[str, _known(REDUCERS)]
KlName = Annotated[str, _known(KL_ESTIMATORS)]
CorrectionName = Annotated[str, _known(CORRECTIONS)]
