"""Random instances of the maximisation (14), for experiments that the papers do not specify."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit import ClientStats, ucb_index
from pause_jax.reward import Reward, additive_terms, cohort_problem, generalization_reward
from pause_jax.search import Problem

KINDS = ("counts", "uniform")


def draw(
    key: Array, number: int, num_clients: int, num_selected: int, reward: Reward, kind: str
) -> Problem:
    """A batch of instances with two additive terms, g and p.

    Args:
      key: of this batch.
      number: n.
      num_clients: K.
      num_selected: m.
      reward: its weights; a tiny gamma leaves BSFL's energy and still orders the list of p.
      kind: ``counts``: a bandit after T_k ~ U{50, ..., 150} choices of each client, in round
        t = 100 K / m; ucb by (13) with mean speeds from U(0, 1), g by (8) with data shares in
        proportion to U(0.5, 1.5), p = exp(-0.04 T_k). ``uniform``: independent ucb ~ U(0, 1),
        g ~ U(-1, 1), p ~ U(0, 1).

    Returns:
      Leaves [n, ...].
    """

    def one(key: Array) -> Problem:
        first, second, third = jax.random.split(key, 3)
        shape = (num_clients,)
        if kind == "uniform":
            index = jax.random.uniform(first, shape)
            g = jax.random.uniform(second, shape, minval=-1.0)
            p = jax.random.uniform(third, shape)
        else:
            counts = jax.random.randint(first, shape, 50, 151)
            speed = jax.random.uniform(second, shape)
            size = jax.random.uniform(third, shape, minval=0.5, maxval=1.5)
            round = 100 * num_clients / num_selected
            index = ucb_index(ClientStats(counts, speed), jnp.asarray(round), num_selected)
            share = size / jnp.sum(size)
            g = generalization_reward(counts, jnp.asarray(round), share, num_selected, reward.beta)
            p = jnp.exp(-0.04 * counts)
        return cohort_problem(index, reward, additive_terms(reward, g, p, num_selected))

    return jax.vmap(one)(jax.random.split(key, number))
