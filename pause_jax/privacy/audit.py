"""Empirical audits: lower bounds on a mechanism's true epsilon.

An audit computes the lower bound from attacks on the mechanism. A bound above the claimed epsilon
refutes the claim, but no audit can prove it. Source: Jagielski, Ullman and Oprea (2020).
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

LARGE = 1e6  # magnitude of worst-case entries, far above any sensible clipping bound
MIN_SAMPLES = 1000


class Audit(NamedTuple):
    """Result of auditing the epsilon and delta claimed for a single release."""

    mechanism: str
    unit: str  # unit that the mechanism's epsilon protects
    claim: str  # unit of the audited claim, ``coordinate`` or ``update``
    epsilon: float
    delta: float
    lower_bound: float  # lower bound on the true epsilon
    confidence: float  # probability that the lower bound holds
    resolution: float  # largest possible bound, about ln(samples / 15) at delta 0, confidence 0.95
    samples: int  # total number of releases
    attack: str  # names of the inputs and the score in the strongest attack

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds the claimed epsilon."""
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
    """Audit a mechanism with two-point attacks on worst-case pairs of updates.

    Args:
      mechanism: mechanism to audit, whose ``delta`` is part of the claim. Audit Gaussian noise at
        delta 0.1, because events that distinguish inputs are too rare at delta 1e-5.
      key: random key. Results are reproducible for a given key.
      epsilon: claimed epsilon of a single release.
      claim: unit of the claim, ``coordinate`` (neighbours differ in one coordinate) or ``update``
        (neighbours are any two updates). The default is the mechanism's ``unit``.
      dimension: d, number of coordinates of an update.
      samples: total number of releases, half to find the attack and half to measure it.
      confidence: confidence level of the lower bound, > 0 and < 1.

    Raises:
      ConfigError: if the claim, epsilon, dimension, number of samples or confidence is invalid.
    """
    name = label(mechanism)
    claim = mechanism.unit if claim is None else claim
    if claim not in UNITS:
        raise ConfigError(
            f"claim = {claim!r} for mechanism {name}: must be one of {', '.join(UNITS)}. Pass "
            "claim if the mechanism has no unit."
        )
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon = {epsilon}: must be finite and > 0.")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence = {confidence}: must be > 0 and < 1 (0.95 is 95 %).")
    if samples < MIN_SAMPLES:
        raise ConfigError(
            f"samples = {samples}: must be >= {MIN_SAMPLES}, because fewer samples give no useful "
            "bound."
        )
    if dimension < 1:
        raise ConfigError(f"dimension = {dimension}: must be >= 1.")

    release = Partial(_privatized, mechanism, np.float32(epsilon))
    delta, pairs = float(mechanism.delta), _neighbours(claim, dimension)
    lower, resolution, attack = two_point(release, pairs, key, delta, samples, confidence)
    names = (name, mechanism.unit, claim)
    return Audit(*names, epsilon, delta, lower, confidence, resolution, samples, attack)


def _privatized(mechanism: Mechanism, epsilon: Array, key: Array, update: Array) -> Array:
    return mechanism.privatize(key, update, epsilon)


def _neighbours(claim: str, dimension: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Build the worst-case pairs of updates [d] for a claim, keyed by name."""
    axis = np.zeros(dimension, np.float32)
    axis[0] = LARGE
    full = np.full(dimension, LARGE, np.float32)
    pairs = {"+-e_1": (axis, -axis), "0 or e_1": (np.zeros_like(axis), axis)}
    if claim == "update":
        # Only this pair reveals clipping that is too weak for dense updates.
        return pairs | {"+-(1, .., 1)": (full, -full)}
    # Norm clipping also changes the other coordinates, but the claim covers a single coordinate.
    return pairs | {
        "+-e_1, other coordinates large": (full, full - 2 * axis),
        "first coordinate 0 or huge, other coordinates large": (full - axis, full + 1e4 * axis),
    }
