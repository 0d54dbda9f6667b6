"""E3CS: adversarial bandit with rewards for received updates and a floor on probabilities.

Source: Huang et al., "Stochastic client selection for federated learning with volatile clients",
IEEE Internet of Things Journal 2022 (arXiv 2011.08756).
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, dep_round, inclusion_probabilities

# Lower bound on log(weight / largest weight), which keeps all weights positive in float32.
_LEAST_LOG_WEIGHT = -60.0


class E3csState(NamedTuple):
    """E3CS state."""

    round: Int[Array, ""]  # number of past rounds
    log_weight: Float[Array, " K"]


class E3cs(PolicyConfig):
    """Random cohort whose inclusion probabilities combine a floor with exponential weights.

    With K >= m available clients, client k is included with probability p_k = sigma + (m - K sigma)
    w_k / sum w. Probabilities above 1 are set to 1, and the other clients share the excess.
    DepRound draws exactly m clients. If a chosen client's update arrives and p_k < 1, the client's
    weight w_k is multiplied by exp((m - K sigma) eta / (K p_k)).

    Attributes:
      quota: sigma, lower bound on p_k, as a fraction of m / K. With quota 1, draws are uniform.
      schedule: ``constant``, or ``late`` to set sigma to 0 in the first quarter of the rounds.
        With a quota of 1, ``late`` is E3CS-inc.
      rate: eta, learning rate of the weights.
    """

    name: ClassVar[str] = "e3cs"
    summary: ClassVar[str] = "exponential weights for received updates, with a probability floor"
    observes: ClassVar[str] = "which updates arrived, availability"
    reference: ClassVar[str] = "Huang et al. 2022"
    needs_rounds: ClassVar[str] = "needs each client's selection probability in the round"

    quota: float = number(default=0.5, at_least=0, at_most=1)
    schedule: str = static(default="constant", choices=("constant", "late"))
    rate: float = number(default=0.5, above=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        start = E3csState(jnp.zeros((), jnp.int32), jnp.zeros(num_clients))

        def probabilities(state: E3csState, round: Array, available: Array) -> Array:
            quota = self._quota(round, context.num_rounds)
            return allocated(state.log_weight, available, m, quota)

        def select(key: Array, state: E3csState, round: Array, available: Array) -> Selected:
            clients = dep_round(probabilities(state, round, available), m, key)
            return by_data_size(clients, available, context), no_info()

        def update(state: E3csState, selection: Selection, observation: Observation) -> E3csState:
            clients, round = selection.clients, state.round + 1
            available = jnp.broadcast_to(observation.available, (num_clients,))
            probability = probabilities(state, round, available)[clients]
            # (m - K sigma) / K = (1 - quota) m / K.
            size = jnp.sum(available).astype(probability.dtype)
            uniform = jnp.minimum(m / jnp.maximum(size, 1), 1.0)
            step = self.rate * (1 - self._quota(round, context.num_rounds)) * uniform
            learns = selection.active & observation.received & (probability < 1)
            gain = jnp.where(learns, step / jnp.where(learns, probability, 1.0), 0.0)
            return E3csState(round, state.log_weight.at[clients].add(gain))

        return Policy(lambda: start, select, update)

    def _quota(self, round: Array, num_rounds: Array | int) -> Array:
        if self.schedule == "constant":
            return jnp.asarray(self.quota, jnp.float32)
        return jnp.where(4 * round < num_rounds, 0.0, self.quota)


def allocated(
    log_weight: Float[Array, " K"], available: Bool[Array, " K"], m: int, quota: Array
) -> Float[Array, " K"]:
    """Return each client's inclusion probability, float [K] (0 for unavailable clients).

    Probabilities sum to the smaller of m and the number of available clients. The floor is
    ``quota`` times the uniform probability.
    """
    size = jnp.sum(available).astype(log_weight.dtype)
    drawn = jnp.minimum(size, m)
    floor = quota * drawn / jnp.maximum(size, 1)
    log_weight -= jnp.max(jnp.where(available, log_weight, -jnp.inf))
    weight = jnp.exp(jnp.maximum(log_weight, _LEAST_LOG_WEIGHT))
    # Amount by which each probability exceeds the floor, in units of 1 - floor.
    total = drawn * (1 - quota) / jnp.maximum(1 - floor, 1e-6)
    above = inclusion_probabilities(weight, available, total)
    shared = (above < 1) & (size > m)
    return jnp.where(available, jnp.where(shared, floor + (1 - floor) * above, 1.0), 0.0)
