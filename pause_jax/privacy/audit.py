"""Empirical audits: lower bounds on the epsilon that a mechanism really has.

An audit plays the adversary. It can show that a claimed epsilon is wrong (a lower bound above it);
it never proves one right. Every bound holds with the stated confidence: what the adversary does is
chosen on one part of the releases and counted on another. Host side: not within a trace.

Source: Jagielski, Ullman, Oprea (2020).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jax import Array
from jax.tree_util import Partial

from pause_jax.base.registry import label
from pause_jax.base.struct import ConfigError
from pause_jax.privacy.attack import two_point
from pause_jax.privacy.mechanisms import UNITS, Mechanism

LARGE = 1e6  # entries of the worst-case updates: far beyond any sensible clip
MIN_SAMPLES = 1000


class Audit(NamedTuple):
    """What an audit found.

    Attributes:
      mechanism: its name.
      unit: what its own epsilon protects.
      claim: what the claimed epsilon is held against: ``coordinate`` or ``update``.
      epsilon: claimed.
      delta: claimed.
      lower_bound: the true epsilon is at least this, with the confidence below.
      confidence: probability that the lower bound holds.
      resolution: largest lower bound that can be shown: about ln(samples / 15).
      samples: releases drawn.
      attack: inputs and score of the strongest attack.
    """

    mechanism: str
    unit: str
    claim: str
    epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    resolution: float
    samples: int
    attack: str

    @property
    def violated(self) -> bool:
        """Whether the lower bound is above the claim."""
        return self.lower_bound > self.epsilon


def audit(
    mechanism: Mechanism,
    key: Array,
    *,
    epsilon: float,
    claim: str | None = None,
    dimension: int = 16,
    samples: int = 200_000,
    confidence: float = 0.95,
) -> Audit:
    """Two-point audit of a mechanism on the worst pairs of updates of a claim.

    Args:
      mechanism: its ``delta`` is part of the claim. Gaussian noise is best audited at a delta of
        0.1: at 1e-5 the telling events are too rare.
      key: of the whole audit; the same key gives the same result.
      epsilon: claimed, of one release.
      claim: ``coordinate`` (neighbours differ in one coordinate) or ``update`` (in all of them);
        the mechanism's own unit by default.
      dimension: d, coordinates of an update.
      samples: releases in all; half of them choose the attack and half measure it.
      confidence: of the lower bound.

    Returns:
      What was found; every epsilon is of one release, per unit of the claim.

    Raises:
      ConfigError: for a claim, epsilon, dimension or number of samples that cannot be audited.
    """
    name = label(mechanism)
    claim = mechanism.unit if claim is None else claim
    if claim not in UNITS:
        raise ConfigError(
            f"claim = {claim!r} of mechanism {name}: must be one of {', '.join(UNITS)}. "
            "Name one for a mechanism that claims nothing itself."
        )
    _check(epsilon, samples, confidence, dimension)

    release = Partial(_privatized, mechanism, np.float32(epsilon))
    delta, pairs = float(mechanism.delta), _neighbours(claim, dimension)
    lower, resolution, attack = two_point(release, pairs, key, delta, samples, confidence)
    names = (name, mechanism.unit, claim)
    return Audit(*names, epsilon, delta, lower, confidence, resolution, samples, attack)


def _privatized(mechanism: Mechanism, epsilon: Array, key: Array, update: Array) -> Array:
    return mechanism.privatize(key, update, epsilon)


def _neighbours(claim: str, dimension: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The worst pairs of updates [d] of a claim, by name."""
    axis = np.zeros(dimension, np.float32)
    axis[0] = LARGE
    full = np.full(dimension, LARGE, np.float32)
    pairs = {"+-e_1": (axis, -axis), "0 or e_1": (np.zeros_like(axis), axis)}
    if claim == "update":
        # A clip that is too wide on dense updates only shows here.
        return pairs | {"+-(1, .., 1)": (full, -full)}
    # A clip to a norm moves the other coordinates too, though the claim is about one.
    return pairs | {
        "+-e_1 among large": (full, full - 2 * axis),
        "0 or huge e_1 among large": (full - axis, full + 1e4 * axis),
    }


def _check(epsilon: float, samples: int, confidence: float, dimension: int) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon = {epsilon}: must be finite and > 0.")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence = {confidence}: must be > 0 and < 1 (0.95 is 95 %).")
    if samples < MIN_SAMPLES:
        raise ConfigError(f"samples = {samples}: must be >= {MIN_SAMPLES}; fewer show nothing.")
    if dimension < 1:
        raise ConfigError(f"dimension = {dimension}: must be >= 1.")
