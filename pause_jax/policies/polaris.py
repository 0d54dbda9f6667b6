"""Polaris: sampling probabilities that balance large updates against stale ones.

Source: Kang and Li, "Polaris: accelerating asynchronous federated learning with client selection",
IEEE Transactions on Cloud Computing 2024, and, for the objective, the authors' code in Plato.
Our probabilities sum to one, whereas the Plato code applies this constraint to their logarithms.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import number
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, draw_clients, mask_of

# Number of bisection steps for log delta, sufficient for float32 precision.
_HALVINGS = 40


class PolarisState(NamedTuple):
    """Polaris state."""

    bound: Float[Array, " K"]  # G_k: norm of the last received update, or an estimate
    staleness: Float[Array, " K"]  # s_k: 0.01, 0.1 or 1.1 (see ``Polaris``)
    explored: Bool[Array, " K"]  # whether the server has received an update


class Polaris(PolicyConfig):
    """Sampling without replacement with probabilities q_k that minimise sum(a_k / q_k + b_k q_k).

    The terms a_k = beta p_k^2 G_k^2 and b_k = gamma p_k^2 s_k^2 G_k measure the effects of update
    size and of staleness. The solution is q_k = sqrt(a_k / (b_k + tau)). Bisection finds the tau
    for which q sums to one. p_k is client k's share of the data. G_k is the norm of the last
    received update, noise included. For unexplored clients, G_k is initially 0.5, and then
    ``optimism`` times the mean norm in the last round. s_k is 0.01 at first, 0.1 after a timely
    update, and 1.1 after a late update (``stale_updates="next"``).

    With an asynchronous server, this policy ignores staleness. It also ignores the norms of late
    updates, because policies do not observe these updates.

    Attributes:
      size_weight: beta, weight of the update-size terms a_k.
      staleness_weight: gamma, weight of the staleness terms b_k.
      optimism: alpha, factor that multiplies the mean norm for unexplored clients.
    """

    name: ClassVar[str] = "polaris"
    summary: ClassVar[str] = "random draws that favour clients with large and timely updates"
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "norms of noised updates, lateness"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Kang and Li 2024"

    size_weight: float = number(default=1.0, above=0)
    staleness_weight: float = number(default=1.0, at_least=0)
    optimism: float = number(default=10.0, above=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        # Use K p_k instead of p_k. Scaling a and b by a common factor does not change q.
        share = num_clients * context.data_size / jnp.sum(context.data_size)
        every = jnp.ones(num_clients)
        start = PolarisState(0.5 * every, 0.01 * every, jnp.zeros(num_clients, bool))

        def select(key: Array, state: PolarisState, round: Array, available: Array) -> Selected:
            scaled = share**2 * state.bound
            size = self.size_weight * scaled * state.bound
            stale = self.staleness_weight * scaled * state.staleness**2
            chance = optimal_chances(size, stale, available)
            clients = draw_clients(chance, available, m, key)
            return by_data_size(clients, available, context), no_info()

        def update(
            state: PolarisState, selection: Selection, observation: Observation
        ) -> PolarisState:
            clients, active = selection.clients, selection.active
            received, late = active & observation.received, active & observation.late
            norm = jnp.linalg.norm(observation.update, axis=1)
            explored = state.explored | mask_of(clients, received, num_clients)
            total = jnp.sum(jnp.where(received, norm, 0.0))
            expected = self.optimism * total / jnp.maximum(jnp.sum(received), 1).astype(norm.dtype)
            # A norm of 0, as in runs without learning, carries no information.
            bound = jnp.where(~explored & (expected > 0), expected, state.bound)
            stale = 0.1 + late.astype(norm.dtype)
            return PolarisState(
                bound=store_active(bound, clients, norm, received & (norm > 0)),
                staleness=store_active(state.staleness, clients, stale, received | late),
                explored=explored,
            )

        return Policy(lambda: start, select, update)


def optimal_chances(
    size: Float[Array, " K"], stale: Float[Array, " K"], among: Bool[Array, " K"]
) -> Float[Array, " K"]:
    """Return the q that minimises sum(size / q + stale q) and sums to one (0 outside ``among``).

    With delta = tau + min(stale) > 0, q = sqrt(size / (stale - min(stale) + delta)) decreases in
    delta. Because no q exceeds 1, delta is at least the ``size`` of the client with the
    lowest ``stale``. At delta = (sum of sqrt(size))^2, the sum of q is at most 1.
    """
    size = jnp.where(among, size, 0.0)
    above = jnp.where(among, stale - jnp.min(jnp.where(among, stale, jnp.inf)), 0.0)

    def chances(log_delta: Array) -> Array:
        delta = jnp.maximum(jnp.exp(log_delta), jnp.finfo(size.dtype).tiny)  # exp may underflow
        return jnp.sqrt(size / (above + delta))

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        too_much = jnp.sum(chances(middle)) > 1
        return jnp.where(too_much, middle, low), jnp.where(too_much, high, middle)

    lowest = jnp.log(jnp.max(jnp.where(above == 0, size, 0.0)))
    bracket = lowest, 2 * jnp.log(jnp.sum(jnp.sqrt(size)))
    chance = chances(lax.fori_loop(0, _HALVINGS, halve, bracket)[1])
    total = jnp.sum(chance)
    return chance / jnp.where(total > 0, total, 1.0)
