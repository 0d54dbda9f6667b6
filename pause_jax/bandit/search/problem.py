"""The problem that every search here solves, and what a search reports.

Maximise over sets S of m available clients:  min over S of index + sum over S of weight.
Equation (14) of PAUSE, (10) for the genie, (17) of BSFL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pause_jax.bandit.protocol import Info
from pause_jax.base.checks import behind
from pause_jax.base.struct import Config

if TYPE_CHECKING:
    from jaxtyping import Float


class Problem(NamedTuple):
    """One round's maximisation.

    Attributes:
      index: float [K], may hold +inf (untried) or -inf.
      terms: float [L, K], finite additive terms; their sum over L is the weight.
      energy_range: scalar, bound on the energy difference of two cohorts (Lemma 1 plus one).
    """

    index: Float[Array, " K"]  # type: ignore[assignment]  # shadows tuple.index, which nobody needs
    terms: Float[Array, "L K"]
    energy_range: Float[Array, ""]

    @property
    def weight(self) -> Array:
        """What a client adds to the energy, float [K]."""
        return jnp.sum(self.terms, axis=0)


class Search(Config):
    """A search: a config object that is called within the trace."""

    def __call__(
        self, key: Array, problem: Problem, num_selected: int, available: Array
    ) -> tuple[Array, Info]:
        """Return (int [m] distinct clients, ascending; diagnostics)."""
        raise NotImplementedError


def optimal_info(energy: Array) -> Info:
    """Diagnostics of a search that finds the optimum, from its energy: the gap is 0."""
    return Info(energy, jnp.zeros_like(energy), jnp.full_like(energy, jnp.nan))


def check_problem(index: Array, weight: Array, num_selected: int) -> None:
    """Raise ValueError unless index and weight are [K] and 1 <= num_selected <= K, and no number
    that is known is NaN; inside of a ``jit`` none is.
    """
    if index.ndim != 1 or weight.shape != index.shape or not 1 <= num_selected <= len(index):
        raise ValueError(
            f"index {index.shape}, weight {weight.shape}, num_selected = {num_selected}: "
            "index and weight must be [K] with 1 <= num_selected <= K."
        )
    for name, values in (("index", index), ("weight", weight)):
        known = behind(values)
        if not isinstance(known, jax.core.Tracer) and (wrong := np.isnan(np.asarray(known))).any():
            raise ValueError(f"{name}{np.argwhere(wrong)[0].tolist()} is NaN: must be a number.")


def set_energy(index: Array, weight: Array, clients: Array, available: Array) -> Array:
    """Return the energy of a set, -inf if no member is available.

    Unavailable members only fill up the slots and do not count. ``clients`` must ascend, so that
    equal sets get equal bits.
    """
    counted = available[clients]
    slowest = jnp.min(jnp.where(counted, index[clients], jnp.inf))
    added = jnp.sum(jnp.where(counted, weight[clients], 0.0))
    return jnp.where(jnp.any(counted), slowest + added, -jnp.inf)


def ordered(value: Array, available: Array, key: Array | None) -> Array:
    """Return the available clients by descending value, then the others, int32 [K].

    Ties, and the order of the others, are random by the key, or by client number without one.
    """
    number = jnp.arange(value.shape[0], dtype=jnp.int32)
    bits = () if key is None else (jax.random.bits(key, value.shape),)
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    keys = (_falling(value, available),) if floating else (~available, -value)
    return lax.sort((*keys, *bits, number), num_keys=len(keys) + len(bits))[-1]


def _falling(value: Array, available: Array) -> Array:
    """Unsigned integers that rise as the floats fall: XLA sorts them twice as fast on a CPU.

    The largest of them, which no number has, puts unavailable clients last.
    """
    width = jnp.finfo(value.dtype).bits
    bits = lax.bitcast_convert_type(jnp.where(value == 0, 0.0, -value), f"uint{width}")
    sign = jnp.asarray(1 << (width - 1), bits.dtype)
    rising = jnp.where(bits < sign, bits | sign, ~bits)
    return jnp.where(available, rising, ~jnp.zeros_like(rising))


def shuffled(num_clients: int, available: Array, key: Array | None) -> Array:
    """An order of the clients, available ones first; random within each part if there is a key.

    Searching in this order breaks ties at random instead of by client number.
    """
    return ordered(jnp.zeros(num_clients), available, key)
