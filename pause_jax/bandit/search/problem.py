"""Maximisation problem solved in each round, base class for searches, and search helpers.

The problem is to find the set of m available clients that maximises ``min index + sum weight``.
See Eq. (14) of PAUSE and Eq. (17) of BSFL, or Eq. (10) of PAUSE for the genie.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from pause_jax.bandit.protocol import Info
from pause_jax.base.checks import behind
from pause_jax.base.struct import Config


class Problem(NamedTuple):
    """Maximisation problem for a single round.

    Attributes:
      index: float [K], may contain +inf (for untried clients) or -inf.
      terms: float [L, K], finite additive terms. The sum of a client's L terms is its weight.
      energy_range: scalar, one plus the bound in Lemma 1 on the energy difference between cohorts.
    """

    index: Float[Array, " K"]  # type: ignore[assignment]  # shadows tuple.index, which is unused
    terms: Float[Array, "L K"]
    energy_range: Float[Array, ""]

    @property
    def weight(self) -> Array:
        """Additive contribution of each client to the energy, float [K]."""
        return jnp.sum(self.terms, axis=0)


class Search(Config):
    """Base class for search configs. A search is called during tracing."""

    def __call__(
        self, key: Array, problem: Problem, num_selected: int, available: Array
    ) -> tuple[Array, Info]:
        """Return the selected clients, int [m], distinct and ascending, and the diagnostics."""
        raise NotImplementedError


def optimal_info(energy: Array) -> Info:
    """Return the diagnostics of an exact search, with an optimality gap of 0."""
    return Info(energy, jnp.zeros_like(energy), jnp.full_like(energy, jnp.nan))


def check_problem(index: Array, weight: Array, num_selected: int) -> None:
    """Raise ValueError if the shapes disagree, m is out of range, or an untraced value is NaN."""
    if index.ndim != 1 or weight.shape != index.shape or not 1 <= num_selected <= len(index):
        raise ValueError(
            f"index {index.shape}, weight {weight.shape}, num_selected = {num_selected}: index "
            "and weight must have the same shape [K], and num_selected must be >= 1 and <= K."
        )
    for name, values in (("index", index), ("weight", weight)):
        known = behind(values)
        if not isinstance(known, jax.core.Tracer) and (wrong := np.isnan(np.asarray(known))).any():
            raise ValueError(f"{name}{np.argwhere(wrong)[0].tolist()} is NaN: must be a number.")


def set_energy(index: Array, weight: Array, clients: Array, available: Array) -> Array:
    """Compute the energy of a set, or return -inf if no member is available.

    Unavailable members do not affect the energy. ``clients`` must be in ascending order, because a
    float sum depends on the order of its terms.
    """
    counted = available[clients]
    slowest = jnp.min(jnp.where(counted, index[clients], jnp.inf))
    added = jnp.sum(jnp.where(counted, weight[clients], 0.0))
    return jnp.where(jnp.any(counted), slowest + added, -jnp.inf)


def ordered(value: Array, available: Array, key: Array | None) -> Array:
    """Return the available clients by descending value, then the unavailable clients, int32 [K].

    Ties are broken at random, or by client number if ``key`` is None. For float values,
    all unavailable clients are treated as tied.
    """
    number = jnp.arange(value.shape[0], dtype=jnp.int32)
    bits = () if key is None else (jax.random.bits(key, value.shape),)
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    keys = (_falling(value, available),) if floating else (~available, -value)
    return lax.sort((*keys, *bits, number), num_keys=len(keys) + len(bits))[-1]


def _falling(value: Array, available: Array) -> Array:
    """Map floats to integers that sort in reverse order, with unavailable clients last.

    On CPUs, XLA sorts integers twice as fast as floats.
    """
    width = jnp.finfo(value.dtype).bits
    bits = lax.bitcast_convert_type(jnp.where(value == 0, 0.0, -value), f"uint{width}")
    sign = jnp.asarray(1 << (width - 1), bits.dtype)
    rising = jnp.where(bits < sign, bits | sign, ~bits)
    return jnp.where(available, rising, ~jnp.zeros_like(rising))


def shuffled(num_clients: int, available: Array, key: Array | None) -> Array:
    """Return the clients in random order (by number if ``key`` is None), available clients first.

    A search that visits clients in this order breaks ties at random, not by client number.
    """
    return ordered(jnp.zeros(num_clients), available, key)
