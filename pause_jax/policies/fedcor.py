"""FedCor: selection based on correlations between the clients' loss changes.

Source: Tang et al., "FedCor: correlation-based active client selection strategy for heterogeneous
federated learning", CVPR 2022, and the authors' code.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import number, static
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Query, Selected
from pause_jax.policies.choose import (
    draw_clients,
    equal_weights,
    inverse_and_log_det,
    top_clients,
)

# Standard deviation of the independent part of each loss change, as in the authors' code.
NOISE = 0.01


class FedCorState(NamedTuple):
    """FedCor state."""

    round: Int[Array, ""]  # number of past rounds
    loss: Float[Array, " K"]  # last reported loss
    answered: Bool[Array, " K"]  # clients that reported before the last round (none if greedy)
    # Ring buffers over rounds: loss changes, masks of observed clients, and round numbers.
    change: Float[Array, "window K"]
    observed: Bool[Array, "window K"]
    when: Int[Array, " window"]
    embedding: Float[Array, "F K"]  # X, with Sigma = X^T X + NOISE^2 I
    taken: Float[Array, " K"]  # number of greedy selections of each client since the last fit


class FedCor(PolicyConfig):
    """Greedy selection under a Gaussian process model of the clients' loss changes.

    Loss changes have the covariance Sigma = X^T X + 0.01^2 I. X [F, K] is fitted by maximum
    likelihood to the loss changes in rounds with random cohorts: the first ``warmup`` rounds and
    then every ``interval``-th round. (The authors' code trains the later random cohorts in addition
    to greedy cohorts, without counting the extra time.) All available clients report losses before
    and after these rounds. In other rounds, m clients are chosen one by one. Each choice maximises
    alpha^c_k sum_i p_i Sigma_ik / sqrt(Sigma_kk), where Sigma is conditioned on earlier choices,
    p_i is i's data share, and c_k counts k's greedy choices since the last fit. Weights are equal.

    Attributes:
      warmup: number of initial rounds with random cohorts.
      interval: number of rounds from one random cohort to the next, after the warm-up.
      features: F, number of rows of X.
      steps: number of Adam steps per fit.
      step_size: Adam step size.
      window: number of earlier rounds that each fit includes in addition to the last round.
      discount: per-round decay factor for the weight of each loss change in the log-likelihood.
      annealing: alpha, factor applied to a client's score after each greedy choice of that client.
      query_share: time to evaluate a sample, relative to the client's latency per training sample.
        The default assumes that a forward pass takes 1/3 as long as a training step.
    """

    name: ClassVar[str] = "fedcor"
    summary: ClassVar[str] = "greedy selection by correlations between client losses"
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
        shape = (self.features, num_clients)
        start = FedCorState(
            round=jnp.zeros((), jnp.int32),
            loss=jnp.zeros(num_clients),
            answered=jnp.zeros(num_clients, bool),
            change=jnp.zeros((self.window + 1, num_clients)),
            observed=jnp.zeros((self.window + 1, num_clients), bool),
            when=jnp.zeros(self.window + 1, jnp.int32),
            embedding=jax.random.normal(jax.random.key(0), shape) * self.features**-0.5,
            taken=jnp.zeros(num_clients),
        )

        def ask(key: Array, state: FedCorState, round: Array, available: Array) -> Any:
            return everyone, available & (self._explores(round) | self._explores(round - 1))

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
        return Policy(lambda: start, select, update, query)

    def _explores(self, round: Array) -> Array:
        """Return whether a round's cohort is random (False for round 0)."""
        later = (round > self.warmup) & (round % self.interval == 0)
        return ((round >= 1) & (round <= self.warmup)) | later

    def fitted(self, state: FedCorState, fits: Array) -> Array:
        """Fit and return X [F, K], or return the old X if ``fits`` is false or the fit diverges."""
        weight = self.discount ** (state.round - state.when).astype(jnp.float32)
        import optax  # imported here because building a config does not need it

        adam = optax.adam(self.step_size)

        def loss(embedding: Array) -> Array:
            each = jax.vmap(surprise, in_axes=(None, 0, 0))
            return jnp.sum(weight * each(embedding, state.change, state.observed))

        def step(_: Array, so_far: tuple[Array, Any]) -> tuple[Array, Any]:
            embedding, moments = so_far
            move, moments = adam.update(jax.grad(loss)(embedding), moments)
            return optax.apply_updates(embedding, move), moments

        # Skip the fit by running zero steps, because under vmap, lax.cond would run both branches.
        start = state.embedding, adam.init(state.embedding)
        new, _ = lax.fori_loop(0, jnp.where(fits, self.steps, 0), step, start)
        return jnp.where(jnp.all(jnp.isfinite(new)), new, state.embedding)


def surprise(
    embedding: Float[Array, "F K"], change: Float[Array, " K"], observed: Bool[Array, " K"]
) -> Float[Array, ""]:
    """Return the negative log-likelihood of the observed loss changes, up to a constant.

    For changes y, the result is (y^T S^-1 y + log det S) / 2 with S = X^T X + s^2 I and s = NOISE.
    F x F matrices suffice, because y^T S^-1 y = min_b ``|y - X^T b|^2 / s^2 + |b|^2``.
    """
    x = jnp.where(observed[None, :], embedding, 0.0)
    gram = x @ x.T + NOISE**2 * jnp.eye(x.shape[0])
    inverse, log_det = inverse_and_log_det(lax.stop_gradient(gram))
    # The gradient with respect to b vanishes at the minimum, so b may be treated as constant.
    b = lax.stop_gradient(inverse @ (x @ change))
    square = jnp.sum((change - b @ x) ** 2) / NOISE**2 + jnp.sum(b**2)
    # The added sum is zero, but its gradient, sum(inverse * d gram), is that of log det S.
    log_det += jnp.sum(inverse * (gram - lax.stop_gradient(gram))) - len(gram) * jnp.log(NOISE**2)
    return (square + log_det) / 2


def correlated(
    embedding: Float[Array, "F K"],
    share: Float[Array, " K"],
    weight: Float[Array, " K"],
    among: Bool[Array, " K"],
    count: int,
) -> Float[Array, " K"]:
    """Choose clients and return ranks, float [K], from ``count`` (chosen first) to 0 (not chosen).

    The greedy rule of :class:`FedCor` chooses at most ``count`` clients in ``among``, with X =
    ``embedding``, p = ``share`` and alpha^c = ``weight``.
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
        rank = jnp.where(taken, rank.at[best].set(count - step), rank)
        return jnp.where(taken, after, sigma), rank

    start = embedding.T @ embedding + NOISE**2 * jnp.eye(embedding.shape[1])
    return lax.fori_loop(0, count, choose, (start, jnp.zeros(embedding.shape[1])))[1]
