"""The adversary of the two-point audits.

Jagielski, Ullman, Oprea (2020): of an (epsilon, delta)-LDP mechanism M every set E of releases has

    P[M(x0) in E] <= e^epsilon P[M(x1) in E] + delta        for neighbours x0 and x1,

so two probabilities, estimated from releases, bound epsilon from below. E is here "a score of the
release is at least a threshold", or its complement. Three steps, each with releases of its own, so
that the count of the last owes nothing to luck in the choice:

1. fit: scores are fitted to releases of both inputs, where they need a mean or a covariance;
2. choose: of all pairs of inputs, scores, thresholds and sides, the one with the largest bound;
3. measure: count that one event, and bound its two probabilities (Clopper and Pearson).

Host side: not within a trace.
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

# Of the bounds that choose an attack. It is the best of thousands, so a lax bound would favour luck
# in a thin tail.
CHOICE_CONFIDENCE = 0.999
THRESHOLDS = 201  # tried per score
MAX_DISCRIMINANT = 256  # entries of a release up to which its covariance is estimated
FITTED_NUMBERS = 2**24  # kept in memory at once while scores are fitted, of each input
CHUNK_NUMBERS = 2**20  # drawn at once

Release = Partial  # (key, input) -> release; the numbers that it binds are traced
Score = Callable[[np.ndarray], np.ndarray]  # releases [n, entries] -> [n], large under x0
# (key, input, n, what to keep of releases [chunk, entries]) -> what was kept of n releases
Draw = Callable[[Array, np.ndarray, int, Callable[[np.ndarray], np.ndarray]], np.ndarray]


class Shares(NamedTuple):
    """Releases of one input in each step.

    Over both inputs of all pairs a tenth of all releases fits, four tenths choose; over the two
    inputs of the chosen pair half of them measures.
    """

    fit: int
    choose: int
    measure: int


class Attack(NamedTuple):
    """A pair of inputs and an event: a score of releases >= threshold, or the complement."""

    name: str  # of the pair and of the score
    inputs: tuple[np.ndarray, np.ndarray]  # x0, x1
    score: Score  # fitted to releases of that pair
    threshold: float  # in units of the score
    below: bool  # whether the event is the complement
    swapped: bool  # whether the event is likelier under x1 than under x0
    bound: float  # the lower bound on epsilon that it reached on the releases that chose it


def low_end(hits: Any, trials: int, confidence: float) -> np.ndarray:
    """Return the low end of the two-sided interval of Clopper and Pearson (1934), elementwise."""
    some = np.maximum(hits, 1)
    low = betaincinv(some, trials - some + 1, (1 - confidence) / 2)
    return np.where(np.asarray(hits) > 0, low, 0.0)


def high_end(hits: Any, trials: int, confidence: float) -> np.ndarray:
    """Return the high end of the same interval."""
    some = np.minimum(hits, trials - 1)
    high = betaincinv(some + 1, trials - some, 1 - (1 - confidence) / 2)
    return np.where(np.asarray(hits) < trials, high, 1.0)


def epsilon_bound(
    true: Any, false: Any, trials: int, delta: float, confidence: float
) -> np.ndarray:
    """Return ln((TPR_low - delta) / FPR_up), at least 0: Jagielski et al. (2020).

    Each rate leaves the side of its interval that matters with probability (1 - confidence) / 2, so
    both hold with the confidence.
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
    """Return a lower bound on epsilon from the pair of neighbours that is told apart best.

    All releases have one shape, and so have all inputs. :class:`Shares` says what becomes of the
    ``samples`` releases. Also returned are the bound of an event that always happens under one
    input and never under the other, and the attack's name.
    """
    entries = next(iter(pairs.values()))[0].size
    # However large an update is, some are needed for a mean and a spread.
    fit = max(4, min(samples // (20 * len(pairs)), FITTED_NUMBERS // entries))
    shares = Shares(fit, choose=max(4, samples // (5 * len(pairs))), measure=samples // 4)
    draw = _sampler(release, chunk=max(1, min(fit, CHUNK_NUMBERS // entries)))
    attacks = [
        _choose(draw, name, inputs, jax.random.fold_in(key, index), shares, delta)
        for index, (name, inputs) in enumerate(pairs.items())
    ]
    attack = max(attacks, key=lambda attack: attack.bound)
    hits = []
    measure_keys = jax.random.split(jax.random.fold_in(key, len(pairs)))
    for measure_key, x in zip(measure_keys, attack.inputs, strict=True):
        scores = draw(measure_key, x, shares.measure, attack.score)
        hits.append(int(np.sum((scores >= attack.threshold) != attack.below)))
    true, false = reversed(hits) if attack.swapped else hits
    lower = epsilon_bound(true, false, shares.measure, delta, confidence)
    resolution = epsilon_bound(shares.measure, 0, shares.measure, delta, confidence)
    return float(lower), float(resolution), attack.name


@functools.partial(jax.jit, static_argnums=4)
def _releases(release: Release, key: Array, part: int, x: Array, chunk: int) -> Array:
    keys = jax.random.split(jax.random.fold_in(key, part), chunk)
    return jax.vmap(release, in_axes=(0, None))(keys, x)


def _sampler(release: Release, chunk: int) -> Draw:
    """Draws releases chunk by chunk and keeps of each only what is asked for."""

    def draw(
        key: Array, x: np.ndarray, number: int, keep: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        parts = []
        for part in range(-(-number // chunk)):
            y = np.asarray(_releases(release, key, part, x, chunk), float).reshape(chunk, -1)
            # NaN gives an input away as any output may, so it gets a number.
            parts.append(keep(np.nan_to_num(y, nan=1e30, posinf=1e30, neginf=-1e30)))
        return np.concatenate(parts)[:number]

    return draw


def _choose(
    draw: Draw,
    name: str,
    inputs: tuple[np.ndarray, np.ndarray],
    key: Array,
    shares: Shares,
    delta: float,
) -> Attack:
    """The attack on one pair of inputs with the largest bound, on releases that are then spent."""
    x0, x1 = inputs
    keys = jax.random.split(key, 4)
    seen0 = draw(keys[0], x0, shares.fit, lambda y: y)
    seen1 = draw(keys[1], x1, shares.fit, lambda y: y)
    scores = _fit(np.sign(x0 - x1).ravel(), seen0, seen1)

    def every_score(y: np.ndarray) -> np.ndarray:
        return np.stack([score(y) for score in scores.values()], axis=1)

    scores0 = draw(keys[2], x0, shares.choose, every_score)
    scores1 = draw(keys[3], x1, shares.choose, every_score)
    attacks = []
    for column, (kind, score) in enumerate(scores.items()):
        for event in _best_events(scores0[:, column], scores1[:, column], delta):
            attacks.append(Attack(f"{name}, {kind}", inputs, score, *event))
    return max(attacks, key=lambda attack: attack.bound)


def _best_events(
    scores0: np.ndarray, scores1: np.ndarray, delta: float
) -> list[tuple[float, bool, bool, float]]:
    """Return (threshold, below, swapped, bound) of the best event of each side and direction."""
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
    """Return scores by name, each the best test against some kind of noise, or of fault."""
    mean0, mean1 = seen0.mean(axis=0), seen1.mean(axis=0)
    touched = direction != 0

    def along(y: np.ndarray) -> np.ndarray:
        return y[:, touched] * direction[touched]

    # Where the inputs lie after the mechanism's clip, along each entry.
    low, high = sorted(float(along(mean[None]).mean()) for mean in (mean0, mean1))

    def projection(y: np.ndarray) -> np.ndarray:
        """<y, sign(x0 - x1)>."""
        return along(y).sum(axis=1)

    def likelihood(y: np.ndarray) -> np.ndarray:
        """The likelihood ratio of Laplace noise.

        Its logarithm, (|y - low| - |y - high|) / scale in an entry, is linear in y between the two
        and constant outside, so that to sum clipped entries gives the same tests.
        """
        return np.clip(along(y), low, high).sum(axis=1)

    def size(y: np.ndarray) -> np.ndarray:
        """The L1 norm."""
        return np.abs(y).sum(axis=1)

    scores: dict[str, Score] = {"projection": projection, "likelihood": likelihood}
    if direction.size <= MAX_DISCRIMINANT:
        scores |= _discriminants(seen0, seen1)
    return scores | {"norm": size}


def _discriminants(seen0: np.ndarray, seen1: np.ndarray) -> dict[str, Score]:
    """The two tests of releases [n, entries] that use how their entries vary together."""
    mean0, mean1 = seen0.mean(axis=0), seen1.mean(axis=0)
    spread0, spread1 = (np.atleast_2d(np.cov(seen, rowvar=False)) for seen in (seen0, seen1))
    # Where the noise of entries cancels, a covariance is singular: the ridge lets it be inverted,
    # and a combination of entries without noise still outweighs the others a million times.
    entries = mean0.size
    ridge = 1e-6 * np.trace(spread0 + spread1) / entries + 1e-30
    ridge = ridge * np.eye(entries)
    weights = np.linalg.solve(spread0 + spread1 + ridge, mean0 - mean1)
    precision0, precision1 = (np.linalg.inv(spread + ridge) for spread in (spread0, spread1))

    def linear(y: np.ndarray) -> np.ndarray:
        """Fisher's discriminant: finds noise that cancels, as of two entries that share it."""
        return y @ weights

    def quadratic(y: np.ndarray) -> np.ndarray:
        """The likelihood ratio of two normal laws: finds entries that go together under one."""
        return _distance(y, mean1, precision1) - _distance(y, mean0, precision0)

    return {"discriminant": linear, "quadratic": quadratic}


def _distance(y: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distance of releases [n, entries] from a law."""
    return np.einsum("ij,jk,ik->i", y - mean, precision, y - mean, optimize=True)
