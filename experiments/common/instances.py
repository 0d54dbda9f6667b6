"""Instances of the maximisation (14), random or from a bandit-only run."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax import SimConfig
from pause_jax.bandit import ClientStats, ucb_index
from pause_jax.bandit.reward import Reward, additive_terms, cohort_problem, problem_of
from pause_jax.bandit.search import Problem
from pause_jax.run.preflight import prepare
from pause_jax.run.programs import plain_steps
from pause_jax.run.rounds.loop import advance
from pause_jax.run.rounds.state import State

KINDS = ("counts", "uniform")
SPEED_WEIGHT = 3.0  # zeta of the authors' large network


@functools.partial(jax.jit, static_argnames=("number", "num_clients", "num_selected", "kind"))
def draw(
    key: Array, number: int, num_clients: int, num_selected: int, reward: Reward, kind: str
) -> Problem:
    """Draw a batch of instances with two additive terms, g and p.

    Args:
      key: random key of the batch.
      number: number of instances, n.
      num_clients: K.
      num_selected: m.
      reward: weights of the reward; a tiny gamma keeps BSFL's energy but orders the list of p.
      kind: ``counts``: a bandit after T_k ~ U{50, ..., 150} choices of each client, in round
        t = 100 K / m; ucb by (13) with mean speeds from U(0, 1), g by (8) with data shares in
        proportion to U(0.5, 1.5), p = exp(-0.04 T_k). ``uniform``: independent ucb ~ U(0, 1),
        g ~ U(-1, 1), p ~ U(0, 1).

    Returns:
      Problems, leaves [n, ...].
    """

    def one(key: Array) -> Problem:
        first, second, third = jax.random.split(key, 3)
        shape = (num_clients,)
        if kind == "uniform":
            index = jax.random.uniform(first, shape)
            g = jax.random.uniform(second, shape, minval=-1.0)
            p = jax.random.uniform(third, shape)
            return cohort_problem(index, reward, additive_terms(reward, g, p, num_selected))
        counts = jax.random.randint(first, shape, 50, 151)
        speed = jax.random.uniform(second, shape)
        size = jax.random.uniform(third, shape, minval=0.5, maxval=1.5)
        round = jnp.asarray(100 * num_clients / num_selected)
        index = ucb_index(ClientStats(counts, speed), round, num_selected)
        share, p = size / jnp.sum(size), jnp.exp(-0.04 * counts)
        return problem_of(index, reward, counts, round, share, p, num_selected)

    return jax.vmap(one)(jax.random.split(key, number))


def from_run(config: SimConfig, key: Array, rounds: Array) -> Problem:
    """Return PAUSE's problems in ``rounds`` [R] of a bandit-only run, leaves [R, ...]."""
    config, _ = prepare(config)
    m, num_clients = config.cohort_size, config.num_clients
    run_key, size_key = jax.random.split(key)
    state, _ = plain_steps((), None, any_length=False).init(config, None, run_key, 0)
    # Data sizes as in the authors' large network: Dirichlet(2) shares of 60,000 samples.
    drawn = 60_000 * jax.random.dirichlet(size_key, jnp.full(num_clients, 2.0))
    size = jnp.maximum(jnp.round(drawn), 1).astype(jnp.int32)
    partition = state.learning.partition._replace(size=size)
    state = state._replace(learning=state.learning._replace(partition=partition))

    def play(state: State, round: Array) -> tuple[State, ClientStats]:
        return advance(config, None, state, round[None], ())[0], state.policy

    def problem(stats: ClientStats, round: Array) -> Problem:
        index = ucb_index(stats, round, m, speed_weight=SPEED_WEIGHT)
        share, p = partition.share, config.privacy.budget.remaining(stats.counts)
        return problem_of(index, config.reward, stats.counts, round, share, p, m)

    _, stats = lax.scan(play, state, jnp.arange(1, config.num_rounds + 1))
    before = jax.tree.map(lambda leaf: leaf[rounds - 1], stats)
    return jax.vmap(problem)(before, rounds)
