"""Rules of the plain policies, and of all that no other test holds to them with unequal data."""

import functools
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig
from pause_jax.bandit import ClientStats
from pause_jax.config import canonical, validate
from pause_jax.learning import Partition
from pause_jax.policies import (
    NAMED,
    Bsfl,
    E3cs,
    F3ast,
    FedCor,
    FedCs,
    Genie,
    HicsFl,
    Polaris,
    Policy,
    PowerOfChoice,
    Random,
    Refl,
    named,
)
from pause_jax.rng import keys as named_keys
from pause_jax.run.setup import learner_of, setup_of
from tests.reference.power_of_choice import inclusion
from tests.support.network import observation, off
from tests.support.runs import QUICK

pytestmark = pytest.mark.slow

K, M = 7, 3
SIZES = np.asarray([5, 1, 9, 3, 20, 2, 10])
# The smallest have the best data: weights by size are not those by quality.
QUALITY = np.asarray([0.75, 1.0, 0.5, 1.0, 0.25, 0.75, 0.5])
# Policies that weigh by data size and have no file of their own. All meet test_contracts.py.
BY_SIZE = ("all", "bsfl", "fastest", "genie", "pause", "random")


def test_every_policy_has_a_description():
    assert len(NAMED) >= 18
    for policy in NAMED.values():
        assert policy.name
        assert policy.summary
        assert policy.observes
        assert policy.assumes
        assert policy.reference


def build(config: SimConfig) -> Policy:
    """The policy of a config in a network with these data sizes, in a trace."""
    sizes = jnp.asarray(SIZES, jnp.int32)
    partition = Partition(
        order=jnp.zeros(0, jnp.int32),
        start=jnp.cumsum(sizes) - sizes,
        size=sizes,
        quality=jnp.asarray(QUALITY, jnp.float32),
    )
    learner = learner_of(config, None)
    streams = named_keys.streams(jax.random.key(0))
    learning = learner.init(streams)._replace(partition=partition)
    return setup_of(config, learner, learning, streams.world).policy


def network(policy: str) -> SimConfig:
    return canonical(SimConfig(num_clients=K, num_selected=M, policy=QUICK[policy], learning=None))


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0))
def played(config: SimConfig, key: Any, available: Any, latency: Any) -> Any:
    """(cohorts, their weights, the state in the end) of a run, with a row of masks per round."""
    policy = build(config)

    def play(state: Any, inputs: Any) -> Any:
        round, available, latency = inputs
        round_key = jax.random.fold_in(key, round)
        selection, _ = policy.select(round_key, state, round, available)
        seen = observation(latency[selection.clients], loss=latency[selection.clients])
        return policy.update(state, selection, seen), selection

    rounds = jnp.arange(1, available.shape[0] + 1)
    state, selection = jax.lax.scan(play, policy.init(), (rounds, available, latency))
    return *selection, state


# Ten runs each with all clients, with most, with few and with nobody; one client is never there.
PROBABILITIES, ROUNDS = (1.0, 0.7, 0.2, 0.0), 12
RUNS = 10 * len(PROBABILITIES)
CHANCES = np.repeat(PROBABILITIES, 10)[:, None, None]
MASKS = np.random.default_rng(0).random((RUNS, ROUNDS, K)) < CHANCES
MASKS[5::10, :, 4] = False


def play(config: SimConfig) -> Any:
    keys = jax.random.split(jax.random.key(0), RUNS)
    latency = jax.random.uniform(jax.random.key(1), (RUNS, ROUNDS, K), minval=0.05)
    return jax.device_get(played(canonical(config), keys, MASKS, latency))


@pytest.mark.parametrize("name", BY_SIZE)
def test_cohorts_weights_and_statistics_follow_availability_and_data(name):
    config = network(name)
    clients, weights, state = play(config)
    chex.assert_shape([clients, weights], (RUNS, ROUNDS, config.cohort_size))
    chex.assert_type([clients, weights], [np.int32, np.float32])
    assert clients.min() >= 0
    assert clients.max() < K
    assert np.all(np.diff(np.sort(clients, axis=-1), axis=-1) > 0), "a client twice in a cohort"
    present = np.take_along_axis(MASKS, clients, axis=-1)
    np.testing.assert_array_equal(weights > 0, present)
    slots = np.minimum(MASKS.sum(axis=-1), config.cohort_size)
    np.testing.assert_array_equal(present.sum(axis=-1), slots)
    size = np.where(present, SIZES[clients], 0)
    expected = size / np.maximum(size.sum(axis=-1, keepdims=True), 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    if isinstance(state, ClientStats):
        counts = ((clients[..., None] == np.arange(K)) & present[..., None]).sum(axis=(1, 2))
        np.testing.assert_array_equal(state.counts, counts)
        np.testing.assert_array_equal(state.mean_speed > 0, counts > 0)
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(state))


# --- each policy's own rule


def selecting(config: SimConfig) -> Any:
    """The policy's choice under jit, which builds it too."""
    return jax.jit(lambda *given: build(config).select(*given))


def first_cohorts(name: str) -> np.ndarray:
    """Chosen clients of 8,000 first rounds, [draws, m]."""
    keys = jax.random.split(jax.random.key(8), 8000)
    choose = jax.vmap(selecting(network(name)), in_axes=(0, None, None, None))
    return np.asarray(choose(keys, (), 1, np.ones(K, bool))[0].clients)


def members(clients: np.ndarray) -> np.ndarray:
    """Mask of the clients in each row, [draws, K]."""
    return (clients[:, :, None] == np.arange(K)).any(axis=1)


def test_random_uniform_includes_every_client_equally_often():
    clients = first_cohorts("random")
    assert off(members(clients), np.full(K, M / K)).max() < 4.5
    pairs = {tuple(sorted(row)) for row in clients}
    assert len(pairs) == 35, "every set of three is possible"


def test_random_by_data_draws_successively_by_size():
    clients = first_cohorts("random_by_data")
    assert off(members(clients[:, :1]), SIZES / SIZES.sum()).max() < 4.5
    assert off(members(clients), inclusion(SIZES, M)).max() < 4.5
    assert off(members(clients), np.full(K, M / K)).max() > 20, "the data sizes do matter"


def test_fastest_takes_available_clients_with_least_expected_latency():
    config = network("fastest")
    select = selecting(config)
    expected = np.asarray(jax.jit(lambda: config.latency.expected_latency(K))())
    for mask in itertools.product([True, False], repeat=K):
        available = np.asarray(mask)
        selection, _ = select(jax.random.key(0), (), 1, available)
        chosen = np.asarray(selection.clients)[np.asarray(selection.weights) > 0]
        order = [k for k in np.argsort(expected) if available[k]]
        assert set(chosen) == set(order[:M])


def test_genie_matches_brute_force_with_true_speeds():
    config = canonical(
        SimConfig(num_clients=K, num_selected=M, policy=Genie(), learning=None).override(
            {"reward.alpha": 2.0, "reward.gamma": 1.0, "privacy.budget.decay": 0.3}
        )
    )
    select, rng = selecting(config), np.random.default_rng(3)
    speed = np.asarray(jax.jit(lambda: config.latency.expected_speed(K))(), np.float64)
    for round in range(2, 30):
        counts = rng.integers(round, size=K)
        available = rng.random(K) < 0.8
        if available.sum() < M:
            continue
        # The observed speeds are of no use to the genie.
        stats = ClientStats(counts.astype(np.int32), rng.random(K).astype(np.float32))
        (clients, _), info = select(jax.random.key(round), stats, np.asarray(round), available)
        x = M * SIZES * QUALITY / (SIZES * QUALITY).sum() - counts / round
        each = (2.0 * np.sign(x) * x**2 + 1.0 * np.exp(-0.3 * counts)) / M
        value = {
            members: speed[list(members)].min() + each[list(members)].sum()
            for members in itertools.combinations(np.flatnonzero(available), M)
        }
        best = max(value, key=value.get)
        assert set(np.asarray(clients)) == set(best)
        np.testing.assert_allclose(info.energy, value[best], rtol=1e-4)


def test_bsfl_ignores_the_privacy_weight_and_pause_does_not():
    def cohorts(policy: str, gamma: float) -> np.ndarray:
        return play(network(policy).override({"reward.alpha": 1.0, "reward.gamma": gamma}))[0]

    np.testing.assert_array_equal(cohorts("bsfl", 0.0), cohorts("bsfl", 50.0))
    assert not np.array_equal(cohorts("pause", 0.0), cohorts("pause", 50.0))
    np.testing.assert_array_equal(cohorts("pause", 0.0), cohorts("bsfl", 0.0))


def test_policy_names_resolve_to_configs():
    assert named("random_by_data") == Random(weighting="data")
    config = Random()
    assert named(config) is config


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (E3cs(quota=1.5), r"policy.quota = 1.5: must be .*<= 1"),
        (E3cs(schedule="soon"), r"policy.schedule = 'soon': must be one of constant, late"),
        (F3ast(forgetting=1.5), r"policy.forgetting = 1.5: must be"),
        (FedCor(interval=1), r"policy.interval = 1: must be a whole number, >= 2"),
        (FedCor(discount=1.5), r"policy.discount = 1.5: must be a .*<= 1"),
        (HicsFl(clusters=0), r"policy.clusters = 0: must be a whole number, >= 1"),
        (Polaris(optimism=0.0), r"policy.optimism = 0.0: must be"),
        (Refl(memory=1.5), r"policy.memory = 1.5: must be"),
        (Bsfl(left_of="largest"), r"policy.left_of = 'largest': must be 'own' for Bsfl"),
        (FedCs(candidates=2), r"candidates = 2: must be >= num_selected"),
        (PowerOfChoice(candidates=3), r"candidates = 3: must be >= num_selected"),
        (PowerOfChoice(candidates=10), r"candidates = 10: must be >= num_selected"),
    ],
    ids=repr,
)
def test_bad_setting_is_refused(policy, words):
    with pytest.raises(ConfigError, match=words):
        validate(SimConfig(num_clients=9, num_selected=4, policy=policy, learning=None))
