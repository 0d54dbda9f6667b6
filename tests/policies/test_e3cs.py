"""E3CS against a slow oracle, against published errors, and in the long run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.policies import E3cs, Random
from pause_jax.policies.choose import draw_clients
from pause_jax.policies.e3cs import allocated
from tests.policies.test_dep_round import off
from tests.reference import e3cs as oracle
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

K, M, ROUNDS = 8, 3, 150
SIZES = [1, 2, 2, 3, 4, 5, 8, 9]
RELIABLE = np.array([0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0, 1.0])
CONFIG = E3cs(quota=0.3, rate=1.0)
BUGS = ["cut", "everyone", "unweighted", "full"]


@functools.cache
def played(config=CONFIG):
    """(available, chosen, arrived [K], state before) of every round of our run."""
    policy = config.build(context(SIZES, M))
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    rng, state, rounds = np.random.default_rng(0), policy.init(), []
    for t in range(1, ROUNDS + 1):
        available = rng.random(K) < (0.3 if t % 10 == 0 else 0.85)
        available[t % K] = True
        arrived = rng.random(K) < RELIABLE
        selection, _ = select(jax.random.key(t), state, np.asarray(t), available)
        clients = np.asarray(selection.clients)
        chosen = clients[np.asarray(selection.weights) > 0].tolist()
        rounds.append((available, chosen, arrived, state))
        seen = observation(np.ones(M), received=arrived[clients])
        state = update(state, selection, seen._replace(available=available))
    return tuple(rounds)


def test_last_round_without_a_floor_updates_without_it():
    """Of 100 rounds the first 24 have no floor."""
    states = []
    for config in (E3cs(quota=0.3, schedule="late"), E3cs(quota=0.0)):
        policy = config.build(context(SIZES, M))
        before = policy.init()._replace(round=jnp.int32(23))
        available = np.ones(K, bool)
        selection, _ = policy.select(jax.random.key(0), before, jnp.int32(24), available)
        seen = observation(np.ones(M))._replace(available=available)
        states.append(policy.update(before, selection, seen).log_weight)
    assert np.any(states[0] != 0)
    np.testing.assert_array_equal(*states)


def replay(bug="", config=CONFIG):
    """The oracle before each round of our run, having learned from our choices."""
    slow = oracle.E3cs(K, M, config.quota, config.rate, bug)
    for available, chosen, arrived, state in played(config):
        yield slow, available, chosen, state
        slow.update(available, chosen, arrived)


allocation = jax.jit(allocated, static_argnums=2)


def test_weights_and_probabilities_match_the_oracle():
    full, few = 0, 0
    for slow, available, chosen, state in replay():
        np.testing.assert_allclose(state.log_weight, slow.log_weight, rtol=1e-4, atol=1e-5)
        p, over = slow.probabilities(available)
        ours = allocation(state.log_weight, available, M, CONFIG.quota)
        np.testing.assert_allclose(ours, p, atol=1e-5)
        np.testing.assert_allclose(p.sum(), min(M, available.sum()))
        assert len(chosen) == min(M, available.sum())
        assert set(np.flatnonzero(p == 1)) <= set(chosen) <= set(np.flatnonzero(p > 0))
        full, few = full + over.any(), few + (available.sum() <= M)
    # The run is not trivial: some clients reach 1, and in some rounds m are not there.
    assert full > 20
    assert few > 0


@pytest.mark.parametrize("bug", BUGS)
def test_oracle_mutants_give_different_probabilities(bug):
    runs = zip(replay(), replay(bug), strict=True)
    gaps = [
        np.abs(right.probabilities(here)[0] - wrong.probabilities(here)[0]).max()
        for (right, here, *_), (wrong, *_) in runs
    ]
    assert max(gaps) > 0.05


def test_draws_have_the_exact_probabilities_unlike_sequential_draws():
    steps = [(slow.probabilities(here)[0], here, state) for slow, here, _, state in replay()]
    p, available, state = steps[-2]
    policy, draws = CONFIG.build(context(SIZES, M)), 20_000

    def members(choose):
        clients = jax.jit(jax.vmap(choose))(jax.random.split(jax.random.key(5), draws))
        found = np.zeros((draws, K), int)
        np.add.at(found, (np.arange(draws)[:, None], np.asarray(clients)), 1)
        return found

    here = jnp.asarray(available)
    ours = members(lambda key: policy.select(key, state, jnp.asarray(ROUNDS), here)[0].clients)
    assert off(ours, p).max() < 4.5
    # Negative control: the public copy draws in proportion to p without replacement.
    assert off(members(lambda key: draw_clients(jnp.asarray(p), here, M, key)), p).max() > 10


def test_full_quota_is_uniform_and_late_schedule_waits_a_quarter():
    here = np.array([True] * 6 + [False] * 2)
    uneven = np.linspace(0.0, 9.0, K)
    np.testing.assert_allclose(allocation(uneven, here, M, 1.0), np.where(here, 0.5, 0), rtol=1e-6)
    # Without a floor the heaviest are always in, however light the others are.
    heavy = allocation(np.array([0.0, 500.0, 500.0, 0, 0, 0, 0, 0]), here, M, 0.0)
    np.testing.assert_allclose(heavy, [0.25, 1, 1, 0.25, 0.25, 0.25, 0, 0], rtol=1e-5)
    late = jax.jit(E3cs(quota=1.0, schedule="late")._quota, static_argnums=1)
    quotas = [float(late(np.asarray(t), 100)) for t in (1, 24, 25, 100)]
    assert quotas == [0, 0, 1, 1]


LONG = SimConfig(
    num_clients=20,
    num_selected=5,
    num_rounds=1500,
    learning=None,
    track_regret=False,
    deadline=0.12,
)


def test_returning_clients_are_preferred_and_the_floor_holds():
    def run(policy):
        record = ("in_time", "counts")
        result = simulate(LONG.replace(policy=policy), jax.random.key(0), record=record)
        arrived = np.asarray(result.in_time)[500:].mean()
        return arrived, np.asarray(result.counts) / LONG.num_rounds

    random, _ = run(Random())
    greedy, rare = run(E3cs(quota=0.0))
    fair, often = run(E3cs(quota=0.5))
    assert greedy > 1.3 * random
    assert random < fair < greedy
    floor = 0.5 * 5 / 20
    assert often.min() > floor - 4 * (floor / LONG.num_rounds) ** 0.5
    assert rare.min() < floor / 2
