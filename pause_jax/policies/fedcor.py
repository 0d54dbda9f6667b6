"""FedCor: the clients whose training lowers the losses of all, by how losses move together.

Source: Tang et al., "FedCor: correlation-based active client selection strategy for heterogeneous
federated learning", CVPR 2022, and its program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import number, static
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Query, Selected
from pause_jax.policies.choose import draw_clients, equal_weights, top_clients

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# Standard deviation of a loss change that no other client's explains, as in the program.
NOISE = 0.01


class FedCorState(NamedTuple):
    """State of FedCor."""

    round: Int[Array, ""]  # rounds so far
    loss: Float[Array, " K"]  # the latest answers
    answered: Bool[Array, " K"]  # who gave them in the last round, and it was one at random
    # The last observed loss changes, by round modulo their number; whose they are, and of when.
    change: Float[Array, "window K"]
    observed: Bool[Array, "window K"]
    when: Int[Array, " window"]
    embedding: Float[Array, "F K"]  # X
    taken: Float[Array, " K"]  # choices of each client since the last fit


class FedCor(PolicyConfig):
    """Greedy choice under a Gaussian process of the clients' loss changes.

    Changes have the covariance Sigma = X^T X + 0.01^2 I, and X [F, K] maximises the likelihood of
    the changes after cohorts drawn at random: all of the first ``warmup`` rounds, then every
    ``interval``-th. All clients are asked for their loss before and after these rounds, which costs
    time and releases losses. Else k* = argmax alpha^c_k sum_i p_i Sigma_ik / sqrt(Sigma_kk) is
    chosen m times, each time conditioning Sigma on it; c_k are its choices since the last fit. The
    mean of the chosen is plain.

    The program trains its later random cohorts beside the chosen ones, and charges nothing; here
    such a cohort is a round. X starts at the same random numbers in every run.

    Attributes:
      warmup: rounds at random at the start.
      interval: rounds from one random cohort to the next after it.
      features: F.
      steps: steps of Adam a fit.
      step_size: of Adam.
      window: changes of so many rounds before the last are fitted too.
      discount: factor of a change's likelihood for each round that it is older.
      annealing: alpha.
      query_share: an answer takes this share of a client's latency of the round. The default counts
        the forward pass as a third of training.
    """

    name: ClassVar[str] = "fedcor"
    summary: ClassVar[str] = "greedy by the correlations of the clients' losses"
    reads: ClassVar[tuple[str, ...]] = ("answer.loss",)
    observes: ClassVar[str] = "loss"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Tang et al. 2022"
    alone: ClassVar[bool] = True

    warmup: int = static(default=25, at_least=1)
    interval: int = static(default=5, at_least=2)
    features: int = static(default=15, at_least=1)
    steps: int = static(default=100, at_least=1)
    step_size: float = number(default=0.01, above=0)
    window: int = static(default=10, at_least=0)
    discount: float = number(default=0.8, above=0, at_most=1)
    annealing: float = number(default=0.9, above=0, at_most=1)
    query_share: float = number(default=1 / 3, at_least=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        everyone, uniform = jnp.arange(num_clients, dtype=jnp.int32), jnp.ones(num_clients)
        share = context.data_size / jnp.sum(context.data_size)

        def ask(key: Array, state: FedCorState, round: Array, available: Array) -> Any:
            asks = self._explores(round) | self._explores(round - 1)
            return everyone, available & asks

        def receive(
            state: FedCorState, clients: Array, asked: Array, answer: Answer
        ) -> FedCorState:
            answered = asked & answer.reported & jnp.isfinite(answer.loss)
            both = answered & state.answered
            loss = jnp.where(answered, answer.loss, state.loss)
            place = state.round % (self.window + 1)
            state = state._replace(
                loss=loss,
                answered=answered & self._explores(state.round + 1),
                change=state.change.at[place].set(jnp.where(both, loss - state.loss, 0.0)),
                observed=state.observed.at[place].set(both),
                when=state.when.at[place].set(state.round),
            )
            fits = jnp.any(both)
            return state._replace(
                embedding=self.fitted(state, fits),
                taken=jnp.where(fits, 0.0, state.taken),
            )

        def select(key: Array, state: FedCorState, round: Array, available: Array) -> Selected:
            draw_key, tie_key = jax.random.split(key)
            drawn = draw_clients(uniform, available, m, draw_key)
            weight = self.annealing**state.taken
            rank = correlated(state.embedding, share, weight, available, m)
            chosen = top_clients(rank, available, m, tie_key)
            clients = jnp.where(self._explores(round), drawn, chosen)
            return equal_weights(clients, available[clients]), no_info()

        def update(
            state: FedCorState, selection: Selection, observation: Observation
        ) -> FedCorState:
            planned = selection.active & ~self._explores(state.round + 1)
            return state._replace(
                round=state.round + 1,
                taken=state.taken.at[selection.clients].add(planned),
            )

        part = self.query_share * context.data_size / context.local_samples
        query = Query(ask, receive, "loss", None, lambda latency: part * latency)
        return Policy(lambda: self._start(num_clients), select, update, query)

    def _start(self, num_clients: int) -> FedCorState:
        """The state before round 1."""
        rows = (self.window + 1, num_clients)
        shape = (self.features, num_clients)
        return FedCorState(
            round=jnp.zeros((), jnp.int32),
            loss=jnp.zeros(num_clients),
            answered=jnp.zeros(num_clients, bool),
            change=jnp.zeros(rows),
            observed=jnp.zeros(rows, bool),
            when=jnp.zeros(self.window + 1, jnp.int32),
            embedding=jax.random.normal(jax.random.key(0), shape) * self.features**-0.5,
            taken=jnp.zeros(num_clients),
        )

    def _explores(self, round: Array) -> Array:
        """Whether the cohort of round t is drawn at random; False for round 0."""
        later = (round > self.warmup) & (round % self.interval == 0)
        return ((round >= 1) & (round <= self.warmup)) | later

    def fitted(self, state: FedCorState, fits: Array) -> Array:
        """X [F, K] after a fit to the changes that are kept; as it was unless ``fits``."""
        weight = self.discount ** (state.round - state.when).astype(jnp.float32)
        import optax  # a config needs none of it

        adam = optax.adam(self.step_size)

        def loss(embedding: Array) -> Array:
            each = jax.vmap(surprise, in_axes=(None, 0, 0))
            return jnp.sum(weight * each(embedding, state.change, state.observed))

        def step(_: Array, so_far: tuple[Array, Any]) -> tuple[Array, Any]:
            embedding, moments = so_far
            move, moments = adam.update(jax.grad(loss)(embedding), moments)
            return optax.apply_updates(embedding, move), moments

        # A traced number of steps: none where nothing is fitted, also under vmap.
        start = state.embedding, adam.init(state.embedding)
        new, _ = lax.fori_loop(0, jnp.where(fits, self.steps, 0), step, start)
        return jnp.where(jnp.all(jnp.isfinite(new)), new, state.embedding)


def surprise(
    embedding: Float[Array, "F K"], change: Float[Array, " K"], observed: Bool[Array, " K"]
) -> Float[Array, ""]:
    """Return minus the log-likelihood of the observed clients' loss changes, up to a constant.

    With X and y: (y^T S^-1 y + log det S) / 2 of S = X^T X + s^2 I among the observed, through
    F x F matrices: y^T S^-1 y = ``|y - X^T b|^2 / s^2 + |b|^2`` at the b that minimises it.
    """
    x = jnp.where(observed[None, :], embedding, 0.0)
    gram = x @ x.T + NOISE**2 * jnp.eye(x.shape[0])
    # Its gradient is zero at the minimum, so b may be taken for a constant.
    b = lax.stop_gradient(jnp.linalg.solve(gram, x @ change))
    square = jnp.sum((change - b @ x) ** 2) / NOISE**2 + jnp.sum(b**2)
    # log det S up to a constant.
    return (square + jnp.linalg.slogdet(gram / NOISE**2)[1]) / 2


def correlated(
    embedding: Float[Array, "F K"],
    share: Float[Array, " K"],
    weight: Float[Array, " K"],
    among: Bool[Array, " K"],
    count: int,
) -> Float[Array, " K"]:
    """Return the rank of each client in the greedy choice: ``count`` for the first, 0 if not in it.

    At most ``count`` clients of ``among`` are chosen, by X, p and the weights alpha^c.
    """

    def choose(step: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        sigma, rank = so_far
        left = among & (rank == 0)
        deviation = jnp.sqrt(jnp.maximum(jnp.diagonal(sigma), NOISE**2))
        gain = jnp.where(left, weight * (share @ sigma) / deviation, -jnp.inf)
        best = jnp.argmax(gain)
        scaled = sigma[best] / deviation[best]
        after = sigma - scaled[:, None] * scaled[None, :]
        taken = left[best]
        return jnp.where(taken, after, sigma), jnp.where(
            taken, rank.at[best].set(count - step), rank
        )

    start = embedding.T @ embedding + NOISE**2 * jnp.eye(embedding.shape[1])
    return lax.fori_loop(0, count, choose, (start, jnp.zeros(embedding.shape[1])))[1]
