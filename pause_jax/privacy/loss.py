"""How a mechanism's releases compose: the law of the privacy loss of each, given its epsilon.

A mechanism names the law of its own (``Mechanism.privacy_loss``); ``analysis.ledger`` adds up.
n releases of one client; numbers have the shape [n].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Float


class LaplaceLoss(NamedTuple):
    """Laplace noise of scale (distance of two inputs) / eps_i.

    Many coordinates with that L1 distance in all are no worse than one.

    Attributes:
      epsilon: float [n], eps_i > 0.
    """

    epsilon: Float[Array, " n"]


class GaussianLoss(NamedTuple):
    """Normal noise.

    Attributes:
      multiplier: float [n], sigma_i over the L2 distance of two inputs, > 0.
    """

    multiplier: Float[Array, " n"]


class WorstLoss(NamedTuple):
    """Any (eps_i, delta)-LDP mechanism: none loses more than randomised response.

    Kairouz, Oh and Viswanath 2015.

    Attributes:
      epsilon: float [n], eps_i > 0.
      delta: of each release, a scalar; 0 for a pure mechanism.
    """

    epsilon: Float[Array, " n"]
    delta: Float[Array, ""] | float = 0.0


class NoGuarantee(NamedTuple):
    """Nothing is promised: one release may tell all."""


PrivacyLoss = LaplaceLoss | GaussianLoss | WorstLoss | NoGuarantee
