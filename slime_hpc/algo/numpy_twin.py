"""The algorithms again in NumPy, one answer and one token at a time: what the torch versions are checked against.

Losses and estimators come with their derivative by log-prob, written out. Answers are given as lists of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def clipped(ratio: float, advantage: float, *, clip_low: float, clip_high: float, dual_clip: float = 0.0) -> tuple[float, float]:
    """A token's loss, and d loss / d log ratio."""
    if advantage >= 0:
        return (-(1 + clip_high) * advantage, 0.0) if ratio > 1 + clip_high else (-ratio * advantage, -ratio * advantage)
    if dual_clip and ratio > dual_clip:
        return -dual_clip * advantage, 0.0
    return (-(1 - clip_low) * advantage, 0.0) if ratio < 1 - clip_low else (-ratio * advantage, -ratio * advantage)


def ppo_clip(new: Array, old: Array, advantage: Array, mask: Array, **bounds: float) -> tuple[Array, Array]:
    """An answer's losses, and the derivative of their sum over trained tokens."""
    pairs = [clipped(float(np.exp(n - o)), float(a), **bounds) for n, o, a in zip(new, old, advantage, strict=True)]
    return np.array([loss for loss, _ in pairs]), np.array([slope for _, slope in pairs]) * mask


def gspo(new: Array, old: Array, advantage: Array, mask: Array, **bounds: float) -> tuple[Array, Array]:
    """The same with one ratio: each token moves the mean log ratio by 1 / count."""
    count = max(float(mask.sum()), 1.0)
    ratio = float(np.exp(((new - old) * mask).sum() / count))
    pairs = [clipped(ratio, float(a), **bounds) for a in advantage]
    slope = sum(s for (_, s), m in zip(pairs, mask, strict=True) if m)
    return np.array([loss for loss, _ in pairs]), slope / count * mask


def cispo(new: Array, old: Array, advantage: Array, mask: Array, *, clip_low: float, clip_high: float) -> tuple[Array, Array]:
    """The same with the clipped ratio as a constant."""
    weight = np.minimum(np.maximum(np.exp(new - old), 1 - clip_low), 1 + clip_high)
    return -weight * advantage * new, -weight * advantage * mask


def sft(new: Array, old: Array, advantage: Array, mask: Array, **bounds: float) -> tuple[Array, Array]:
    """Cross-entropy and its derivative."""
    return -new, -mask


def k1(new: Array, reference: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    return new - reference, np.ones_like(new)


def k2(new: Array, reference: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    return (new - reference) ** 2 / 2, new - reference


def k3(new: Array, reference: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    ratio = np.exp(reference - new)
    return ratio - 1 - (reference - new), 1 - ratio


def low_var_kl(new: Array, reference: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    value, slope = k3(new, reference)
    return np.minimum(value, 10.0), np.where(value > 10.0, 0.0, slope)


def returns(rewards: Array, *, gamma: float) -> Array:
    """Discounted sums of an answer's rewards from each token on."""
    result, following = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * following
        result[t] = following
    return result


def gae(rewards: Array, values: Array, mask: Array, *, gamma: float, lam: float) -> tuple[Array, Array]:
    """An answer's advantages and returns, token by token from the end; masked tokens are passed over, and have 0."""
    advantage, target = np.zeros_like(values), np.zeros_like(values)
    following_value, following_advantage = 0.0, 0.0
    for t in reversed(np.flatnonzero(mask)):
        delta = rewards[t] + gamma * following_value - values[t]
        following_advantage = delta + gamma * lam * following_advantage
        following_value = values[t]
        advantage[t], target[t] = following_advantage, following_advantage + values[t]
    return advantage, target


def value_loss(value: float, old: float, target: float, *, clip: float) -> tuple[float, float]:
    """A token's value loss, and its derivative by the value."""
    bounded = old + min(max(value - old, -clip), clip) if clip else value
    if (bounded - target) ** 2 > (value - target) ** 2:
        return (bounded - target) ** 2 / 2, 0.0
    return (value - target) ** 2 / 2, value - target


def whiten(values: Sequence[Array], masks: Sequence[Array]) -> list[Array]:
    """All answers' values, with mean 0 and variance 1 over the trained tokens of all."""
    trained = np.concatenate(list(values))[np.concatenate(list(masks)) > 0]
    mean = trained.mean() if len(trained) else 0.0
    variance = trained.var(ddof=1) if len(trained) > 1 else 0.0
    return [(value - mean) / np.sqrt(variance + 1e-8) for value in values]


def log_ratios(old: Array, engine: Array, mask: Array, level: str) -> Array:
    """An answer's log of trainer / engine at a level, for each token."""
    token = old - engine
    total = float((token * mask).sum())
    chosen = {"token": token, "sequence": np.full_like(token, total), "geometric": np.full_like(token, total / max(mask.sum(), 1.0))}
    return np.minimum(np.maximum(chosen[level], -20.0), 20.0)


def importance(old: Array, engine: Array, mask: Array, *, level: str, mode: str, low: float, high: float) -> Array:
    """An answer's importance weights."""
    ratio = np.exp(log_ratios(old, engine, mask, level))
    bounded = {"truncate": np.minimum(ratio, high), "clip": np.minimum(np.maximum(ratio, low), high)}
    return bounded.get(mode, np.where((ratio < low) | (ratio > high), 0.0, ratio))
