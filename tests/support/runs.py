"""Small runs that several tests look at, and how to compare two results."""

import functools
from collections.abc import Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from pause_jax import Learning, Result, SimConfig, policies, simulate
from pause_jax.learning import Digits, Dirichlet, Linear
from pause_jax.policies import NAMED
from pause_jax.privacy import (
    PerCoordinateLaplace,
    Uniform,
)
from pause_jax.rng import keys
from pause_jax.run.programs import plain_steps
from pause_jax.run.rounds.state import State
from tests.reference import round_keys

KEY = jax.random.key(0)
WALKS = ("alsa", "sa_pause", "vanilla_sa")
# FedCor's defaults fit a hundred steps a round, and choose nobody by them in the first 25. Its
# program grows with the number of features. Walks have 500 steps.
QUICK = {
    **NAMED,
    "fedcor": policies.FedCor(warmup=5, steps=5, features=3, window=2),
    **{name: NAMED[name].override({"search.steps": 30}) for name in WALKS},
}
# Draws with repetition: a client that is drawn twice leaves a slot empty.
WITH_REPETITION = {"md_sampling", "clustered_size", "clustered_similarity"}
# Asks clients before it chooses.
ASK = {"power_of_choice", "cpow_d", "adapow_d", "rbcs_f", "fedcs", "fedcor", "refl", "tifl"}
# May leave slots empty although more clients are available.
MAY_LEAVE_EMPTY = {"fedcs", "tifl"}
K, M, T = 6, 4, 20

# Without learning; one compilation a policy, shared by all availabilities and horizons.
BANDIT = SimConfig(
    num_clients=K,
    num_selected=M,
    num_rounds=T,
    privacy=PerCoordinateLaplace(budget=Uniform(total_epsilon=7.0, horizon=50.0)),
    learning=None,
)
# With learning: unequal clients, some with more data than they may use, 8 rounds of which 3, 6 and
# the last are evaluated. The genie's search would double the time to compile.
LEARN = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=8,
    eval_every=3,
    track_regret=False,
    privacy=PerCoordinateLaplace(sensitivity=0.01),
    learning=Learning(
        data=Digits(num_train=240), partition=Dirichlet(), model=Linear(), max_steps=3
    ),
)


@functools.cache
def bandit_run(policy: str, availability: float = 1.0, horizon: float = 50.0) -> Result:
    """In NumPy, whose operations compile nothing."""
    config = BANDIT.replace(policy=NAMED[policy], availability=availability)
    return jax.device_get(simulate(config.override({"privacy.budget.horizon": horizon}), KEY))


@functools.cache
def learn_run(seed: int = 0, **changes: float) -> Result:
    """LEARN with some traced numbers changed: all runs share one compilation."""
    changes = {path.replace("__", "."): value for path, value in changes.items()}
    return simulate(LEARN.override(changes), jax.random.key(seed))


def initial_state(config: SimConfig, data: Any, key: jax.Array) -> State:
    """The state before round 1."""
    return plain_steps((), None, any_length=False).init(config, data, key, 0)[0]


def world_of(config: SimConfig, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """(latencies, whether present) of every client in every round, [T, K]."""
    world = keys.streams(key).world
    latency, present = [], []
    for round in range(1, config.num_rounds + 1):
        latency.append(config.latency.sample(round_keys.latency(world, round), config.num_clients))
        available = round_keys.availability(world, round)
        present.append(jax.random.bernoulli(available, config.availability, (config.num_clients,)))
    return np.asarray(latency), np.asarray(present)


def chosen_sets(result: Result) -> list[list[int]]:
    return [[int(k) for k in row if k >= 0] for row in np.asarray(result.clients)]


def lost_of(config: SimConfig, key: jax.Array) -> np.ndarray:
    """Who would be lost, [T, K]."""
    world, rounds = keys.streams(key).world, range(1, config.num_rounds + 1)
    draws = [
        jax.random.bernoulli(
            round_keys.dropout(world, t), config.dropout or 0.0, (config.num_clients,)
        )
        for t in rounds
    ]
    return np.asarray(draws)


def endings(config: SimConfig, result: Any, key: jax.Array) -> Iterator[tuple[float, list[int]]]:
    """(seconds, clients in time) of each round, client by client."""
    latency, lost = world_of(config, key)[0], lost_of(config, key)
    for t, chosen in enumerate(chosen_sets(result)):
        arrivals = sorted((latency[t, k], k) for k in chosen if not lost[t, k])
        end = max((latency[t, k] for k in chosen), default=0.0)
        if config.wait_for is not None and len(arrivals) >= config.wait_for:
            end = arrivals[config.wait_for - 1][0]
        if config.deadline is not None:
            end = min(end, config.deadline)
        yield end, [k for seconds, k in arrivals if seconds <= end]


def assert_same_bits(one, other) -> None:
    """Equal structures, shapes and dtypes, and equal bits: -0 is not 0."""
    chex.assert_trees_all_equal(one, other, strict=True)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def assert_close(one, other, *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Whole numbers equal (chex would let them differ by ``rtol``), floats close, NaN only where
    the other has it too.
    """

    def compare(path, a, b) -> None:
        name = jax.tree_util.keystr(path)
        if jnp.issubdtype(jnp.asarray(a).dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)

    jax.tree_util.tree_map_with_path(compare, one, other)
