"""The algorithm that an experiment asks for, loaded once: own functions are found before the first batch, or named in the error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime_hpc.algo.advantage import Advantage
from slime_hpc.algo.correction import Correct
from slime_hpc.algo.kl import Estimator
from slime_hpc.algo.loss import PolicyLoss
from slime_hpc.algo.weighting import Reducer
from slime_hpc.config import algorithms, names
from slime_hpc.config.schema import Algorithm
from slime_hpc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parts:
    """What the names in [algorithm] stand for."""

    advantage: Advantage
    loss: PolicyLoss
    kl: Estimator
    weigh: Correct
    reduce: Reducer


def load(algorithm: Algorithm) -> Parts:
    """Raises ConfigError for a name that cannot be imported, or is not what its key asks for."""
    return Parts(
        advantage=load_advantage(algorithm),
        loss=_load(algorithms.LOSSES, algorithm.loss, "algorithm.loss"),
        kl=_load(algorithms.KL_ESTIMATORS, algorithm.kl_estimator, "algorithm.kl_estimator"),
        weigh=_load(algorithms.CORRECTIONS, algorithm.correction.kind, "algorithm.correction.kind"),
        reduce=_load(algorithms.REDUCERS, algorithm.loss_mean, "algorithm.loss_mean"),
    )


def load_advantage(algorithm: Algorithm) -> Advantage:
    """The advantage alone. Raises ConfigError."""
    advantage = _load(algorithms.ADVANTAGES, algorithm.advantage, "algorithm.advantage")
    if not isinstance(advantage, Advantage):
        raise ConfigError(
            f"{algorithm.advantage!r} is a {type(advantage).__name__}.",
            where="algorithm.advantage",
            fix="make it a slime_hpc.algo.advantage.Advantage, e.g. Advantage(score)",
        )
    return advantage


def _load(registry: dict[str, str], name: str, where: str) -> Any:
    return names.load(registry.get(name, name), where=where)
