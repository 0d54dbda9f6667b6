"""Policies for heterogeneous budgets, where clients with smaller budgets send noisier updates.

The error of a cohort's average update grows with nu_k, the expected squared norm of the noise in
client k's next release. With equal aggregation weights, sampling that is not proportional to data
size introduces bias. Related work: arXiv 2408.08642, 2505.13655, 2602.21844 and 2602.22633.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import (
    dep_round,
    equal_weights,
    inclusion_probabilities,
    top_clients,
)

BISECTION_STEPS = 60
# Lower bound on relative costs, which keeps sampling weights positive.
LEAST_COST = 1e-4


class NoiseState(NamedTuple):
    """State of :class:`NoiseSampling`."""

    counts: Int[Array, " K"]  # each client's number of participations
    square: Float[Array, " K"]  # G_k^2, estimate of the squared norm without noise
    known: Bool[Array, " K"]  # whether a release from the client has arrived


class NoiseSampling(PolicyConfig):
    """Random cohort of m clients, drawn with probabilities that balance noise against bias.

    Client k's cost c_k is G_k^2 + nu_k, divided by the data-weighted mean of this sum. nu_k is the
    expected squared norm of the noise in the next release. G_k^2 is the moving average of
    max(0, ``|release|^2 - nu_k``). Clients without releases use the mean of all known values.

    With ``biased``, q minimises sum q_k c_k + lambda sum (q_k - p_k)^2 / p_k over 0 <= q_k <= 1 / m
    with sum q = 1, where p_k is client k's share of the data. Client k is drawn with probability
    m q_k. Aggregation weights are equal, so client k's expected weight is q_k.

    With ``unbiased``, the inclusion probabilities pi_k minimise sum p_k^2 c_k / pi_k over 0 <= pi_k
    <= 1 with sum pi = m. The objective is the error of an average with weights p_k / pi_k under
    independent draws. The solution is pi_k = min(1, s p_k sqrt(c_k)) for some s. For equal p_k,
    noisier clients are drawn more often. Scaling weights to sum to one adds bias of order 1 / m.

    Attributes:
      form: objective, ``biased`` or ``unbiased``.
      bias_weight: lambda, dimensionless (unused by ``unbiased``).
      step: weight of the newest release in G_k^2.
    """

    name: ClassVar[str] = "noise_sampling"
    summary: ClassVar[str] = "probabilities that balance each client's noise against the bias"
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "released updates"
    assumes: ClassVar[str] = "data sizes, budgets"
    reference: ClassVar[str] = "derived; cf. arXiv 2602.22633"

    form: str = static(default="biased", choices=("biased", "unbiased"))
    bias_weight: float = number(default=1.0, at_least=1e-3)
    step: float = number(default=0.2, above=0, at_most=1)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        nobody = jnp.zeros(num_clients, bool)
        start = NoiseState(nobody.astype(jnp.int32), jnp.zeros(num_clients), nobody)

        def select(key: Array, state: NoiseState, round: Array, available: Array) -> Selected:
            noise = context.noise_power(state.counts)
            among = available & jnp.isfinite(noise)
            mean = jnp.sum(jnp.where(state.known, state.square, 0.0))
            mean /= jnp.maximum(jnp.sum(state.known, dtype=mean.dtype), 1.0)
            square = jnp.where(state.known, state.square, mean)
            share = share_among(context, among)
            cost = relative(jnp.where(among, square + noise, 0.0), share)
            if self.form == "unbiased":
                weight = share * jnp.sqrt(cost)
                return drawn_by(weight, share, among, m, key), no_info()
            probability = biased_probabilities(cost, share, m, self.bias_weight)
            clients = dep_round(probability, m, key)
            return equal_weights(clients, filled_slots(clients, probability)), no_info()

        def update(state: NoiseState, selection: Selection, observation: Observation) -> NoiseState:
            clients = selection.clients
            noise = context.noise_power(state.counts)[clients]
            square = jnp.maximum(jnp.sum(observation.update**2, axis=1) - noise, 0.0)
            old = state.square[clients]
            square = jnp.where(state.known[clients], old + self.step * (square - old), square)
            received = selection.active & observation.received
            return NoiseState(
                counted(state.counts, selection),
                store_active(state.square, clients, square, received),
                store_active(state.known, clients, jnp.ones_like(received), received),
            )

        return Policy(lambda: start, select, update)


class TolerantFirst(PolicyConfig):
    """Selection of the m available clients with the least noise in their next releases.

    Aggregation weights are equal. This policy is the limit of :class:`NoiseSampling` with G_k = 0
    as lambda -> 0, where each q_k is 1 / m or 0. Under the ``geometric`` schedule, each release of
    a client is noisier than the previous one, so clients take turns.
    """

    name: ClassVar[str] = "tolerant_first"
    summary: ClassVar[str] = "the m clients with the least noise"
    assumes: ClassVar[str] = "budgets"
    reference: ClassVar[str] = "derived; cf. arXiv 2602.21844"

    def build(self, context: Context) -> Policy:
        def choose(key: Array, noise: Array, among: Array) -> Selection:
            clients = top_clients(-noise, among, context.num_selected, key)
            return equal_weights(clients, among[clients])

        return by_next_noise(context, choose)


class BudgetGroups(PolicyConfig):
    """Sampling from groups of clients with similar budgets, with one sampling ratio per group.

    Groups correspond to equal intervals of the logarithm of the total budget. Group g has n_g
    available clients, a share w_g of all available clients' data, and mean noise power nu_g. Each
    client in group g is drawn with probability r_g. The r_g minimise the average's noise power, sum
    w_g^2 nu_g / (r_g n_g), subject to sum r_g n_g = m. In the solution, r_g n_g is proportional to
    w_g sqrt(nu_g) unless r_g is 1. Client weights w_g / (r_g n_g) are scaled to sum to one.

    Attributes:
      num_groups: maximum number of groups. Clients with equal budgets are in the same group.
    """

    name: ClassVar[str] = "budget_groups"
    summary: ClassVar[str] = "groups of clients with similar budgets, one sampling ratio per group"
    assumes: ClassVar[str] = "data sizes, budgets"
    reference: ClassVar[str] = "derived; cf. arXiv 2505.13655"

    num_groups: int = static(default=3, at_least=1)

    def build(self, context: Context) -> Policy:
        group = groups_of(context.budget, self.num_groups)

        def added(values: Array) -> Array:
            """Return the sum of ``values`` [K] over each client's group, float [K]."""
            return jax.ops.segment_sum(values, group, self.num_groups)[group]

        def choose(key: Array, noise: Array, among: Array) -> Selection:
            share = share_among(context, among)
            size = jnp.maximum(added(among.astype(share.dtype)), 1.0)
            each = added(share) / size
            cost = relative(added(jnp.where(among, noise, 0.0)) / size, share)
            weight = each * jnp.sqrt(cost)
            return drawn_by(weight, each, among, context.num_selected, key)

        return by_next_noise(context, choose)


def by_next_noise(context: Context, choose: Callable[[Array, Array, Array], Selection]) -> Policy:
    """Build a policy from ``choose``, which maps (key, noise power [K], mask [K]) to a Selection.

    ``Context.noise_power`` computes the noise power. The mask marks the available clients with
    remaining budget. The state is each client's number of participations.
    """

    def select(key: Array, counts: Array, round: Array, available: Array) -> Selected:
        noise = context.noise_power(counts)
        return choose(key, noise, available & jnp.isfinite(noise)), no_info()

    def update(counts: Array, selection: Selection, observation: Observation) -> Array:
        return counted(counts, selection)

    return Policy(lambda: jnp.zeros(context.num_clients, jnp.int32), select, update)


def counted(counts: Array, selection: Selection) -> Array:
    """Return each client's number of participations after one more round, int32 [K]."""
    return counts.at[selection.clients].add(selection.active.astype(counts.dtype))


def share_among(context: Context, among: Array) -> Array:
    """Return each client's share of the data held by ``among``, float [K] (0 for other clients)."""
    size = jnp.where(among, context.data_size, 0.0)
    return size / jnp.maximum(jnp.sum(size), 1.0)


def relative(cost: Array, share: Array) -> Array:
    """Divide the costs [K] by their ``share``-weighted mean, or return ones if the mean is 0."""
    mean = jnp.sum(share * cost)
    return jnp.where(mean > 0, jnp.maximum(cost / jnp.where(mean > 0, mean, 1.0), LEAST_COST), 1.0)


def filled_slots(clients: Array, probability: Array) -> Array:
    """Return the mask, bool [m], of the slots that ``dep_round`` filled with drawn clients."""
    places = jnp.arange(clients.size, dtype=probability.dtype)
    return (places + 0.5 < jnp.sum(probability)) & (probability[clients] > 0)


def biased_probabilities(
    cost: Float[Array, " K"],
    share: Float[Array, " K"],
    num_selected: int,
    bias_weight: Array | float,
) -> Float[Array, " K"]:
    """Return inclusion probabilities m q_k for :class:`NoiseSampling`, float [K], summing to m.

    By the Karush-Kuhn-Tucker conditions, q_k = p_k (1 - (c_k - tau) / (2 lambda)), clipped to [0, 1
    / m]. Bisection finds the tau for which q sums to one. The share p_k is 0 for a client that
    cannot be drawn. If fewer than m clients can be drawn, m is reduced to that number.
    """
    among = share > 0
    count = jnp.clip(jnp.sum(among, dtype=share.dtype), 1.0, num_selected)

    def at(tau: Array) -> Array:
        return jnp.clip(share * (1 - (cost - tau) / (2 * bias_weight)), 0.0, 1 / count)

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        short = jnp.sum(at(middle)) < 1
        return jnp.where(short, middle, low), jnp.where(short, high, middle)

    # All q are 0 at tau = ``low``, and all q are 1 / m at tau = ``high``.
    low = jnp.min(cost) - 2 * bias_weight
    high = jnp.max(cost + 2 * bias_weight * (1 / (count * jnp.where(among, share, 1.0)) - 1))
    return count * at(jax.lax.fori_loop(0, BISECTION_STEPS, halve, (low, high))[1])


def drawn_by(
    weight: Float[Array, " K"],
    share: Float[Array, " K"],
    among: Bool[Array, " K"],
    num_selected: int,
    key: Array,
) -> Selection:
    """Draw m clients from ``among`` with inclusion probabilities pi = min(1, c ``weight``).

    ``weight`` must be positive. Aggregation weights are share / pi, scaled to sum to one.
    """
    count = jnp.minimum(num_selected, jnp.sum(among, dtype=weight.dtype))
    probability = inclusion_probabilities(weight, among, count)
    clients = dep_round(probability, num_selected, key)
    each = share[clients] / jnp.where(probability > 0, probability, 1.0)[clients]
    each = jnp.where(filled_slots(clients, probability), each, 0.0)
    return Selection(clients, each / jnp.maximum(jnp.sum(each), jnp.finfo(each.dtype).tiny))


def groups_of(budget: Array, num_groups: int) -> Array:
    """Return each client's group, int32 [K]. Groups are intervals of equal width in log budget.

    All clients are in group 0 if all budgets are equal or all are infinite.
    """
    log = jnp.log(jnp.where(jnp.isfinite(budget), budget, 1.0))
    least, most = jnp.min(log), jnp.max(log)
    # Without the two margins, rounding could put clients with equal budgets in different groups.
    place = num_groups * (log - least) / jnp.maximum(most - least, 1e-5)
    return jnp.minimum(place + 1e-4, num_groups - 1).astype(jnp.int32)
