"""Two-point attacks that an audit uses to lower-bound a mechanism's epsilon.

For any (epsilon, delta)-LDP mechanism M and any event E,

    P[M(x0) in E] <= e^epsilon P[M(x1) in E] + delta        for neighbours x0 and x1,

so estimates of the two probabilities yield a lower bound on epsilon (Jagielski, Ullman and Oprea,
2020). The event E is "a score of the release is at least a threshold", or its complement. We fit
the score functions, choose the attack (inputs, score and event) and count how often the event
occurs. Each of these three steps uses a separate set of releases, so the count is unbiased.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.tree_util import Partial
from scipy.special import betaincinv

# Confidence level of the bounds used to rank thousands of candidate attacks. At a lower level,
# chance occurrences of rare events would decide the ranking.
CHOICE_CONFIDENCE = 0.999
THRESHOLDS = 201  # number of thresholds per score
MAX_DISCRIMINANT = 256  # maximum number of entries for estimating covariances
FITTED_NUMBERS = 2**24  # maximum number of floats per input in memory during fitting
CHUNK_NUMBERS = 2**20  # maximum number of floats drawn at once

Release = Partial  # (key, input) -> release; bound arguments are traced
Score = Callable[[np.ndarray], np.ndarray]  # releases [n, entries] -> scores [n], larger under x0
# (key, input, n, reduction of releases [chunk, entries]) -> reduction of n releases
Draw = Callable[[Array, np.ndarray, int, Callable[[np.ndarray], np.ndarray]], np.ndarray]


class Attack(NamedTuple):
    """Attack that distinguishes two inputs by whether a release's score reaches a threshold."""

    name: str  # names of the pair and the score
    inputs: tuple[np.ndarray, np.ndarray]  # x0, x1
    score: Score  # fitted to releases from this pair
    threshold: float  # in units of the score
    below: bool  # whether the event is score < threshold instead of >=
    swapped: bool  # whether the event is more likely under x1 than under x0
    bound: float  # lower bound on epsilon, estimated by ``_choose``


def low_end(hits: Any, trials: int, confidence: float) -> np.ndarray:
    """Return the lower end of the two-sided Clopper-Pearson interval, elementwise."""
    some = np.maximum(hits, 1)
    low = betaincinv(some, trials - some + 1, (1 - confidence) / 2)
    return np.where(np.asarray(hits) > 0, low, 0.0)


def high_end(hits: Any, trials: int, confidence: float) -> np.ndarray:
    """Return the upper end of the two-sided Clopper-Pearson interval, elementwise."""
    return 1 - low_end(trials - np.asarray(hits), trials, confidence)


def epsilon_bound(
    true: Any, false: Any, trials: int, delta: float, confidence: float
) -> np.ndarray:
    """Compute the lower bound ln((TPR_low - delta) / FPR_up) on epsilon, or 0 if it is negative.

    TPR_low bounds TPR = ``true`` / ``trials`` from below, and FPR_up bounds FPR = ``false`` /
    ``trials`` from above. Each bound fails with probability <= (1 - confidence) / 2.
    """
    gain = low_end(true, trials, confidence) - delta
    return np.log(np.maximum(gain / high_end(false, trials, confidence), 1.0))


def two_point(
    release: Release,
    pairs: dict[str, tuple[np.ndarray, np.ndarray]],
    key: Array,
    delta: float,
    samples: int,
    confidence: float,
) -> tuple[float, float, str]:
    """Compute a lower bound on epsilon from the most distinguishable pair of neighbours.

    All inputs must have the same shape, and all releases must have the same shape. Of the
    ``samples`` releases, half are used to measure the attack's success, four tenths to choose the
    attack, and at most a tenth to fit the scores. Returns the lower bound, the bound that a perfect
    attack would reach with the same number of releases, and the name of the attack.
    """
    entries = next(iter(pairs.values()))[0].size
    # Estimating a mean and a covariance requires at least a few releases, even for large updates.
    fit = max(4, min(samples // (20 * len(pairs)), FITTED_NUMBERS // entries))
    choose, measure = max(4, samples // (5 * len(pairs))), samples // 4
    draw = _sampler(release, chunk=max(1, min(fit, CHUNK_NUMBERS // entries)))
    attacks = [
        _choose(draw, name, inputs, jax.random.fold_in(key, index), fit, choose, delta)
        for index, (name, inputs) in enumerate(pairs.items())
    ]
    attack = max(attacks, key=lambda attack: attack.bound)
    hits = []
    measure_keys = jax.random.split(jax.random.fold_in(key, len(pairs)))
    for measure_key, x in zip(measure_keys, attack.inputs, strict=True):
        scores = draw(measure_key, x, measure, attack.score)
        hits.append(int(np.sum((scores >= attack.threshold) != attack.below)))
    true, false = reversed(hits) if attack.swapped else hits
    lower = epsilon_bound(true, false, measure, delta, confidence)
    resolution = epsilon_bound(measure, 0, measure, delta, confidence)
    return float(lower), float(resolution), attack.name


@functools.partial(jax.jit, static_argnums=4)
def _releases(release: Release, key: Array, part: int, x: Array, chunk: int) -> Array:
    keys = jax.random.split(jax.random.fold_in(key, part), chunk)
    return jax.vmap(release, in_axes=(0, None))(keys, x)


def _sampler(release: Release, chunk: int) -> Draw:
    """Build a function that draws releases in chunks and reduces each chunk to save memory."""

    def draw(
        key: Array, x: np.ndarray, number: int, keep: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        parts = []
        for part in range(-(-number // chunk)):
            y = np.asarray(_releases(release, key, part, x, chunk), float).reshape(chunk, -1)
            # A NaN may reveal the input, so replace it with a number that the scores can use.
            parts.append(keep(np.nan_to_num(y, nan=1e30, posinf=1e30, neginf=-1e30)))
        return np.concatenate(parts)[:number]

    return draw


def _choose(
    draw: Draw,
    name: str,
    inputs: tuple[np.ndarray, np.ndarray],
    key: Array,
    fit: int,
    choose: int,
    delta: float,
) -> Attack:
    """Fit score functions to releases, and return the attack that is best on new releases."""
    x0, x1 = inputs
    keys = jax.random.split(key, 4)
    seen0 = draw(keys[0], x0, fit, lambda y: y)
    seen1 = draw(keys[1], x1, fit, lambda y: y)
    scores = _fit(np.sign(x0 - x1).ravel(), seen0, seen1)

    def every_score(y: np.ndarray) -> np.ndarray:
        return np.stack([score(y) for score in scores.values()], axis=1)

    scores0 = draw(keys[2], x0, choose, every_score)
    scores1 = draw(keys[3], x1, choose, every_score)
    attacks = []
    for column, (kind, score) in enumerate(scores.items()):
        for event in _best_events(scores0[:, column], scores1[:, column], delta):
            attacks.append(Attack(f"{name}, {kind}", inputs, score, *event))
    return max(attacks, key=lambda attack: attack.bound)


def _best_events(
    scores0: np.ndarray, scores1: np.ndarray, delta: float
) -> list[tuple[float, bool, bool, float]]:
    """Return (threshold, below, swapped, bound) of the best event for each side and direction."""
    n = scores0.size
    pooled = np.sort(np.concatenate([scores0, scores1]))
    thresholds = np.unique(pooled[np.linspace(0, pooled.size - 1, THRESHOLDS).astype(int)])
    above0, above1 = (n - np.searchsorted(np.sort(s), thresholds) for s in (scores0, scores1))
    events = []
    for below, hits0, hits1 in ((False, above0, above1), (True, n - above0, n - above1)):
        for swapped, true, false in ((False, hits0, hits1), (True, hits1, hits0)):
            bounds = epsilon_bound(true, false, n, delta, CHOICE_CONFIDENCE)
            at = int(np.argmax(bounds))
            events.append((float(thresholds[at]), below, swapped, float(bounds[at])))
    return events


def _fit(direction: np.ndarray, seen0: np.ndarray, seen1: np.ndarray) -> dict[str, Score]:
    """Return fitted score functions by name. Each score detects one type of noise or fault."""
    mean0, mean1 = seen0.mean(axis=0), seen1.mean(axis=0)
    touched = direction != 0

    def along(y: np.ndarray) -> np.ndarray:
        return y[:, touched] * direction[touched]

    # Mean entry of each input after clipping, estimated from releases.
    low, high = sorted(float(along(mean[None]).mean()) for mean in (mean0, mean1))

    def projection(y: np.ndarray) -> np.ndarray:
        return along(y).sum(axis=1)

    def likelihood(y: np.ndarray) -> np.ndarray:
        """Return a score equivalent to the likelihood ratio under Laplace noise."""
        # The log ratio of an entry is linear in y between low and high and constant outside.
        return np.clip(along(y), low, high).sum(axis=1)

    def size(y: np.ndarray) -> np.ndarray:
        return np.abs(y).sum(axis=1)

    scores: dict[str, Score] = {"projection": projection, "likelihood": likelihood}
    if direction.size <= MAX_DISCRIMINANT:
        scores |= _discriminants(seen0, seen1)
    return scores | {"norm": size}


def _discriminants(seen0: np.ndarray, seen1: np.ndarray) -> dict[str, Score]:
    """Fit a linear and a quadratic discriminant to releases [n, entries] of two inputs."""
    mean0, mean1 = seen0.mean(axis=0), seen1.mean(axis=0)
    spread0, spread1 = (np.atleast_2d(np.cov(seen, rowvar=False)) for seen in (seen0, seen1))
    # If noise cancels in a combination of entries, the covariance is singular. With the ridge term,
    # the covariance is invertible, and a noise-free combination has 10^6 times the usual weight.
    entries = mean0.size
    ridge = 1e-6 * np.trace(spread0 + spread1) / entries + 1e-30
    ridge = ridge * np.eye(entries)
    weights = np.linalg.solve(spread0 + spread1 + ridge, mean0 - mean1)
    precision0, precision1 = (np.linalg.inv(spread + ridge) for spread in (spread0, spread1))

    def linear(y: np.ndarray) -> np.ndarray:
        """Return Fisher's linear discriminant, which detects noise shared by several entries."""
        return y @ weights

    def quadratic(y: np.ndarray) -> np.ndarray:
        """Return the quadratic discriminant, which detects differences in correlations."""
        return _distance(y, mean1, precision1) - _distance(y, mean0, precision0)

    return {"discriminant": linear, "quadratic": quadratic}


def _distance(y: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Compute the squared Mahalanobis distances of releases [n, entries] from ``mean``."""
    return np.einsum("ij,jk,ik->i", y - mean, precision, y - mean, optimize=True)
