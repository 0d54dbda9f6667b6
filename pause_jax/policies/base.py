"""What a selection policy is.

A policy is three pure functions written for one run and never batched; its config builds them
within the trace, so every number in the config can be swept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.privacy import Mechanism
from pause_jax.reward import Reward
from pause_jax.search.problem import ordered
from pause_jax.struct import Config, ConfigError

if TYPE_CHECKING:
    from pause_jax.config import SimConfig


class Selection(NamedTuple):
    """The cohort of a round.

    Attributes:
      clients: int32 [m], distinct client numbers.
      weights: float [m], aggregation weights, equation (2). A weight of 0 marks an empty slot: its
        client does not take part (fewer than m were available).
    """

    clients: Array
    weights: Array


class Observation(NamedTuple):
    """What the chosen clients returned, in the order of ``Selection.clients``.

    A policy that reads a loss learns more about the data than the mechanism protects: it says so in
    ``PolicyConfig.releases``. Without learning both losses are 1 and updates have no entries.

    Attributes:
      latency: float [m], seconds.
      loss: float [m], mean over the local steps of the mini-batch loss.
      square_loss: float [m], mean over the samples used of the squared loss, at the moving weights.
      update: float [m, d], what the server received of each update: flat, clipped and noised.
    """

    latency: Array
    loss: Array
    square_loss: Array
    update: Array


class Answer(NamedTuple):
    """What asked clients answer, in the order of ``ask``'s clients.

    Attributes:
      loss: float [d], mean loss of the current global model on local data, if ``wants`` is
        ``loss``; 1 without learning.
      features: float [d, F], what the latency model shows of the coming round (see
        ``Latency.features``).
    """

    loss: Array
    features: Array


class Query(NamedTuple):
    """A question to some clients before the choice. Its time is charged to the round.

    Attributes:
      ask: (key, state, round, available [K]) -> (int32 [d] distinct clients, bool [d] whether each
        is asked).
      hear: (state, clients [d], asked [d], Answer) -> state, which ``select`` then reads.
      wants: ``loss`` or ``features``: what must be computed for the answer.
      batch_size: samples of a mini-batch that a loss is computed on; None for all local data.
      seconds: (latency of the round [K]) -> float [K], seconds until each client's answer; the
        round waits for the slowest.
    """

    ask: Callable[[Array, Any, Array, Array], tuple[Array, Array]]
    hear: Callable[[Any, Array, Array, Answer], Any]
    wants: str
    batch_size: int | None
    seconds: Callable[[Array], Array]


class Info(NamedTuple):
    """Diagnostics of a selection; NaN where a policy has no such thing. Never fed back."""

    energy: Array
    optimality_gap: Array
    acceptance_rate: Array


class Policy(NamedTuple):
    """A selection policy.

    Attributes:
      init: () -> state.
      select: (key, state, round, available [K]) -> (Selection, Info).
      update: (state, Selection, Observation) -> state; reads only what the chosen returned.
      query: what it asks clients before it selects; None for most policies.
    """

    init: Callable[[], Any]
    select: Callable[[Array, Any, Array, Array], tuple[Selection, Info]]
    update: Callable[[Any, Selection, Observation], Any]
    query: Query | None = None


class Context(NamedTuple):
    """What a policy may know of the network when it is built.

    Attributes:
      num_clients: K.
      num_selected: m, size of this policy's cohort.
      num_rounds: T, length of the run.
      update_size: d, parameters of the model; 0 without learning.
      num_features: F, entries of a client's latency features.
      data_size: float [K], samples of each client, |D_k|.
      local_samples: float [K], samples that a client trains on in a round, at most |D_k|.
      share: float [K], quality-weighted share of the data; sums to one.
      reward: weights of the reward.
      privacy: the mechanism; a policy may read its schedule, not its releases.
      min_latency: tau_min, seconds.
      expected_speed: float [K], mu_k. For the genie only.
      expected_latency: float [K], E[tau_k], seconds. For policies that assume it known.
    """

    num_clients: int
    num_selected: int
    num_rounds: int
    update_size: int
    num_features: int
    data_size: Array
    local_samples: Array
    share: Array
    reward: Reward
    privacy: Mechanism
    min_latency: Array
    expected_speed: Array
    expected_latency: Array


class PolicyConfig(Config):
    """Base of every policy's config.

    Attributes:
      observes: what it reads of the chosen clients after a round.
      assumes: what it takes as known beforehand.
      reference: where the rule comes from.
    """

    observes: ClassVar[str] = "nothing"
    assumes: ClassVar[str] = "nothing"
    reference: ClassVar[str] = ""

    @property
    def releases(self) -> tuple[str, ...]:
        """What clients must send for it without noise, besides sizes and latencies."""
        return ()

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        """Clients chosen a round."""
        return num_selected

    def build(self, context: Context) -> Policy:
        """The three functions, for one network."""
        raise NotImplementedError(f"{type(self).__name__} has no build(context) -> Policy.")


def check_selected(selected: Any, num_selected: int) -> tuple[Selection, Info]:
    """What ``select`` returned, if its form is right; values are known in the run only.

    Raises:
      TypeError: if it is not (Selection, Info) with m integer clients and m weights.
    """
    if not (
        isinstance(selected, tuple)
        and len(selected) == 2
        and isinstance(selected[0], Selection)
        and isinstance(selected[1], Info)
    ):
        raise TypeError(
            f"select returned {type(selected).__name__}: must be (Selection, Info), for example "
            "by_data_size(clients, available, context), no_info()."
        )
    clients, weights = selected[0]
    integers = jnp.issubdtype(jnp.result_type(clients), jnp.integer)
    if (
        jnp.shape(clients) != (num_selected,)
        or jnp.shape(weights) != (num_selected,)
        or not integers
    ):
        raise TypeError(
            f"select chose clients {jnp.shape(clients)} {jnp.result_type(clients)}, weights "
            f"{jnp.shape(weights)}: must be integers [{num_selected}] and weights of that "
            "shape; a weight of 0 marks an empty slot."
        )
    return selected


def no_info() -> Info:
    """Diagnostics of a policy that has none."""
    nan = jnp.asarray(jnp.nan)
    return Info(nan, nan, nan)


def by_data_size(clients: Array, available: Array, context: Context) -> Selection:
    """A selection with FedAvg weights |D_k| / sum |D_j|, (2); slots of absent clients are empty."""
    size = jnp.where(available[clients], context.data_size[clients], 0.0)
    total = jnp.sum(size)
    return Selection(clients, size / jnp.where(total > 0, total, 1.0))


def top_clients(score: Array, available: Array, num_selected: int, key: Array) -> Array:
    """The m available clients of highest score, ties at random; absent ones only fill up."""
    return ordered(score, available, key)[:num_selected]


def draw_clients(weight: Array, among: Array, count: int, key: Array) -> Array:
    """``count`` clients without replacement, each draw in proportion to weight among those left.

    Args:
      weight: float [K], >= 0; clients of weight 0 come after all others.
      among: bool [K], who can be drawn; the others only fill up.
      count: how many (static).
      key: of this draw.

    Returns:
      int32 [count] distinct clients, in the order of the draws.
    """
    # Gumbel top-k: the largest log w + Gumbel are draws without replacement.
    score_key, tie_key = jax.random.split(key)
    score = jnp.log(weight) + jax.random.gumbel(score_key, weight.shape)
    return top_clients(score, among, count, tie_key)


def equal_weights(clients: Array, active: Array) -> Selection:
    """A selection whose active slots all weigh the same; the others are empty."""
    weights = active / jnp.maximum(jnp.sum(active), 1)
    return Selection(clients, weights.astype(jnp.float32))


def num_candidates(candidates: int | None, context: Context) -> int:
    """How many clients are candidates: as configured, or 2 m and at most K."""
    if candidates is None:
        return min(2 * context.num_selected, context.num_clients)
    return candidates


def check_candidates(path: str, candidates: int | None, config: SimConfig) -> None:
    """Raise ConfigError unless m <= candidates <= K."""
    m, num_clients = config.num_selected, config.num_clients
    if candidates is not None and not m <= candidates <= num_clients:
        raise ConfigError(
            f"{path}.candidates = {candidates}: must be >= num_selected = {m} and <= "
            f"num_clients = {num_clients}. Leave it out for twice num_selected."
        )


def from_draws(draws: Array, drawn: Array, context: Context) -> Selection:
    """A selection from m draws with repetition, each of weight 1/m: repeats add up.

    Args:
      draws: int [m], clients.
      drawn: bool [m], False for a draw that found nobody.
      context: the network.

    Returns:
      Distinct clients; slots that repeats have freed are empty. Weights sum to one.
    """
    weight = jnp.zeros(context.num_clients).at[draws].add(drawn.astype(jnp.float32))
    weights, clients = jax.lax.top_k(weight, context.num_selected)
    return Selection(clients, weights / jnp.maximum(jnp.sum(weights), 1.0))


def stateless(select: Callable[[Array, Array], Selection]) -> Policy:
    """A policy that learns nothing, from ``(key, available) -> Selection``."""

    def full_select(
        key: Array, state: tuple[()], round: Array, available: Array
    ) -> tuple[Selection, Info]:
        return select(key, available), no_info()

    return Policy(lambda: (), full_select, lambda state, selection, observation: state)
