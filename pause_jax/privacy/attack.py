"""The adversary of the two-point audits: its statistics, its choice of a test, its count.

Host side: not within a trace. Source: Jagielski, Ullman, Oprea (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from scipy.stats import beta

SCORES = ("projection", "likelihood", "discriminant", "quadratic", "norm")
# Of the bounds that choose an attack. It is the best of thousands, so a lax bound would favour luck
# in a thin tail.
CHOICE_CONFIDENCE = 0.999
THRESHOLDS = 201  # tried per score
MAX_DISCRIMINANT = 256  # entries of a release up to which its covariance is estimated

Release = Callable[[Array, Array], Array]  # (key, input) -> release


class Attack(NamedTuple):
    """A test of x0 against x1. Event: score >= threshold, or its complement if ``below``."""

    score: int
    threshold: float
    below: bool
    swapped: bool  # the event is likelier under x1
    value: float  # lower bound on the half that chose it


def clopper_pearson(hits: Any, trials: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact two-sided interval of a probability from ``hits`` of ``trials``, elementwise."""
    tail, hits = (1 - confidence) / 2, np.asarray(hits)
    low = beta.ppf(tail, np.maximum(hits, 1), trials - np.maximum(hits, 1) + 1)
    high = beta.ppf(1 - tail, np.minimum(hits, trials - 1) + 1, np.maximum(trials - hits, 1))
    return np.where(hits > 0, low, 0.0), np.where(hits < trials, high, 1.0)


def epsilon_bound(
    true: Any, false: Any, trials: int, delta: float, confidence: float
) -> np.ndarray:
    """ln((TPR_low - delta) / FPR_up), at least 0: Jagielski et al. (2020).

    ``true`` and ``false`` are hits of ``trials`` each. Each rate leaves the side of its interval
    that matters with probability (1 - confidence) / 2, so both hold with the confidence.
    """
    gain = clopper_pearson(true, trials, confidence)[0] - delta
    return np.log(np.maximum(gain / clopper_pearson(false, trials, confidence)[1], 1.0))


def two_point(
    release: Release,
    pairs: dict[str, tuple[np.ndarray, np.ndarray]],
    key: Array,
    delta: float,
    samples: int,
    confidence: float,
) -> tuple[float, float, str]:
    """Lower bound, resolution and attack: choose pair, score and threshold; then count anew."""
    entries = next(iter(pairs.values()))[0].size
    pilot = max(4, min(samples // (20 * len(pairs)), 2**24 // entries))
    choosing, measuring = max(4, samples // (5 * len(pairs))), samples // 4
    chunk = max(1, min(pilot, 2**20 // entries))

    @jax.jit
    def run(key: Array, part: int, x: Array) -> Array:
        keys = jax.random.split(jax.random.fold_in(key, part), chunk)
        return jax.vmap(release, in_axes=(0, None))(keys, x)

    def draw(key: Array, x: np.ndarray, number: int, see: Callable[[np.ndarray], Any]) -> Any:
        parts = []
        for part in range(-(-number // chunk)):
            y = np.asarray(run(key, part, x), float)
            parts.append(see(y.reshape(chunk, -1)))
        return np.concatenate(parts)[:number]

    attacks = []
    for index, (name, (x0, x1)) in enumerate(pairs.items()):
        keys = jax.random.split(jax.random.fold_in(key, index), 4)
        seen0, seen1 = draw(keys[0], x0, pilot, _numbers), draw(keys[1], x1, pilot, _numbers)
        score = _scores(np.sign(x0 - x1).ravel(), seen0, seen1)
        scores0, scores1 = draw(keys[2], x0, choosing, score), draw(keys[3], x1, choosing, score)
        attacks.append((_choose(scores0, scores1, delta), name, score, (x0, x1)))
    attack, name, score, inputs = max(attacks, key=lambda entry: entry[0].value)

    hits = []
    for k, x in zip(jax.random.split(jax.random.fold_in(key, len(pairs)), 2), inputs, strict=True):
        above = draw(k, x, measuring, score)[:, attack.score] >= attack.threshold
        hits.append(int(np.sum(above != attack.below)))
    true, false = reversed(hits) if attack.swapped else hits
    lower = epsilon_bound(true, false, measuring, delta, confidence)
    resolution = epsilon_bound(measuring, 0, measuring, delta, confidence)
    return float(lower), float(resolution), f"{name}, {SCORES[attack.score]}"


def _scores(
    direction: np.ndarray, seen0: np.ndarray, seen1: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Statistics of releases [n, entries] -> [n, scores], fitted to pilot releases of x0 and x1.

    In the order of ``SCORES``: <y, x0 - x1>; the log-likelihood ratio of Laplace noise (up to its
    scale); Fisher's linear discriminant, which finds noise that cancels; the log-likelihood ratio
    of two normal laws, which finds releases that go together under one input; the L1 norm.
    """
    means = [seen.mean(axis=0) for seen in (seen0, seen1)]
    touched = direction != 0
    low, high = sorted(float((mean * direction)[touched].mean()) for mean in means)
    weights, precisions = direction, None
    if direction.size <= MAX_DISCRIMINANT:
        spreads = [np.atleast_2d(np.cov(seen, rowvar=False)) for seen in (seen0, seen1)]
        ridge = 1e-6 * np.trace(sum(spreads)) / direction.size + 1e-30
        ridge = ridge * np.eye(direction.size)
        weights = np.linalg.solve(sum(spreads) + ridge, means[0] - means[1])
        precisions = [np.linalg.inv(spread + ridge) for spread in spreads]

    def distance(y: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
        return np.einsum("ij,jk,ik->i", y - mean, precision, y - mean, optimize=True)

    def score(y: np.ndarray) -> np.ndarray:
        y = _numbers(y)
        along = y[:, touched] * direction[touched]
        clipped = np.clip(along, low, high).sum(axis=1)
        linear, size = y @ weights, np.abs(y).sum(axis=1)
        quadratic = linear
        if precisions is not None:
            near0, near1 = (distance(y, *law) for law in zip(means, precisions, strict=True))
            quadratic = near1 - near0
        return np.stack([along.sum(axis=1), clipped, linear, quadratic, size], axis=1)

    return score


def _numbers(y: np.ndarray) -> np.ndarray:
    """Releases with a number for what is none: NaN gives an input away as any output may."""
    return np.nan_to_num(y, nan=1e30, posinf=1e30, neginf=-1e30)


def _choose(scores0: np.ndarray, scores1: np.ndarray, delta: float) -> Attack:
    """The attack with the largest lower bound on these scores [n, scores] of x0 and x1."""
    best = Attack(0, 0.0, False, False, -1.0)
    for index in range(scores0.shape[1]):
        first, second = np.sort(scores0[:, index]), np.sort(scores1[:, index])
        pooled = np.sort(np.concatenate([first, second]))
        thresholds = np.unique(pooled[np.linspace(0, pooled.size - 1, THRESHOLDS).astype(int)])
        above = [first.size - np.searchsorted(part, thresholds) for part in (first, second)]
        for below in (False, True):
            hits = [first.size - x for x in above] if below else above
            for swapped in (False, True):
                true, false = hits[::-1] if swapped else hits
                values = epsilon_bound(true, false, first.size, delta, CHOICE_CONFIDENCE)
                at = int(np.argmax(values))
                if values[at] > best.value:
                    best = Attack(index, float(thresholds[at]), below, swapped, float(values[at]))
    return best
