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
    Answer,
    E3cs,
    F3ast,
    FedCor,
    Genie,
    HicsFl,
    Info,
    Polaris,
    Policy,
    Random,
    Selection,
    named,
)
from pause_jax.rng import keys as named_keys
from pause_jax.run.setup import learner_of, setup_of
from tests.support.network import observation
from tests.support.runs import MAY_LEAVE_EMPTY, QUICK, WITH_REPETITION

pytestmark = pytest.mark.slow

K, M = 7, 3
SIZES = np.asarray([5, 1, 9, 3, 20, 2, 10])
# The smallest have the best data: weights by size are not those by quality.
QUALITY = np.asarray([0.75, 1.0, 0.5, 1.0, 0.25, 0.75, 0.5])
# They differ in their states, in what they ask and in how they fill a cohort; test_contracts.py and
# test_rounds.py hold all to the same rules, with equal data.
POLICIES = (
    *("all", "bsfl", "clustered_size", "cs_ucb_q", "e3cs", "fastest", "fedcor", "fedcs", "genie"),
    *("greedyfed", "hics_fl", "md_sampling", "noise_sampling", "oort", "pause", "pause_ucb_v"),
    *("power_of_choice", "random", "rbcs_f", "refl", "round_robin"),
)


def build(config: SimConfig, sizes: jax.Array) -> Policy:
    """The policy of a config in a network with the given data sizes, in a trace."""
    partition = Partition(
        order=jnp.zeros(0, jnp.int32),
        start=jnp.cumsum(sizes) - sizes,
        size=sizes,
        quality=jnp.asarray(QUALITY, jnp.float32),
    )
    learner = learner_of(config, None)
    learning = learner.init(named_keys.streams(jax.random.key(0)))
    return setup_of(config, learner, learning._replace(partition=partition)).policy


def network(policy: str) -> SimConfig:
    return canonical(SimConfig(num_clients=K, num_selected=M, policy=QUICK[policy], learning=None))


def ask(policy: Policy, key: Any, state: Any, round: Any, available: Any) -> Any:
    """The state after the policy's query; losses grow with the client's number."""
    if policy.query is None:
        return state
    clients, asked = policy.query.ask(key, state, round, available)
    chex.assert_type([clients, asked], [jnp.int32, bool])
    chex.assert_equal_shape([clients, asked])
    answer = Answer(loss=1.0 + clients, features=jnp.ones((clients.shape[0], 1)))
    return policy.query.receive(state, clients, asked, answer)


class Harness:
    """A policy's functions under jit and vmap, over config numbers, data sizes and keys.

    ``play`` starts from ``init``, plays rounds with the given masks and returns what was chosen.
    """

    def __init__(self, policy: str):
        self.name = policy
        self.config = network(policy)
        self.cohort = self.config.cohort_size
        self._play = jax.jit(jax.vmap(self._one, in_axes=(None, None, 0, 0, 0)))

    def _one(
        self, config: SimConfig, sizes: Any, key: Any, available: Any, latency: Any
    ) -> tuple[Selection, Info, Any]:
        policy = build(config, sizes)

        def play(state: Any, inputs: Any) -> Any:
            round, available, latency = inputs
            round_key = jax.random.fold_in(key, round)
            heard = ask(policy, jax.random.fold_in(round_key, 1), state, round, available)
            selection, info = policy.select(round_key, heard, round, available)
            seen = observation(latency[selection.clients], loss=latency[selection.clients])
            new = policy.update(heard, selection, seen)
            chex.assert_trees_all_equal_shapes_and_dtypes(new, state)
            return new, (selection, info)

        rounds = jnp.arange(1, available.shape[0] + 1)
        start = policy.init()
        state, (selection, info) = jax.lax.scan(play, start, (rounds, available, latency))
        return selection, info, state

    def play(self, available, *, config=None):
        """``available`` is bool [runs, rounds, K]."""
        runs, rounds, _ = available.shape
        keys = jax.random.split(jax.random.key(0), runs)
        latency = jax.random.uniform(jax.random.key(1), (runs, rounds, K), minval=0.05)
        played = self._play(
            self.config if config is None else canonical(config),
            np.asarray(SIZES, np.int32),
            keys,
            available,
            latency,
        )
        return jax.device_get(played)

    @functools.cached_property
    def plain(self):
        """What is chosen at each availability: several tests look at it."""
        return functools.cache(lambda probability: self.play(masks(probability)))


@functools.cache
def harness_of(policy: str) -> Harness:
    return Harness(policy)


@pytest.fixture(params=POLICIES)
def harness(request) -> Harness:
    return harness_of(request.param)


RUNS, ROUNDS = 10, 12


def masks(probability: float) -> np.ndarray:
    return np.random.default_rng(0).random((RUNS, ROUNDS, K)) < probability


@pytest.mark.parametrize("probability", [1.0, 0.7, 0.2, 0.0])
def test_selection_honours_the_contract(harness, probability):
    available = masks(probability)
    (clients, weights), info, _ = harness.plain(probability)
    chex.assert_shape([clients, weights], (RUNS, ROUNDS, harness.cohort))
    chex.assert_type([clients, weights], [np.int32, np.float32])
    chex.assert_shape(info, (RUNS, ROUNDS))
    assert clients.min() >= 0
    assert clients.max() < K
    assert np.all(np.diff(np.sort(clients, axis=-1), axis=-1) > 0), "a client twice in a cohort"
    assert np.all(weights >= 0)
    present = np.take_along_axis(available, clients, axis=-1)
    anyone = available.any(axis=-1)
    assert not np.any((weights > 0) & ~present), "an absent client takes part"
    if harness.name in MAY_LEAVE_EMPTY:
        anyone = (weights > 0).any(axis=-1)
    elif harness.name in WITH_REPETITION:
        np.testing.assert_array_equal((weights > 0).any(axis=-1), anyone)
    else:
        np.testing.assert_array_equal(weights > 0, present)
        slots = np.minimum(available.sum(axis=-1), harness.cohort)
        np.testing.assert_array_equal(present.sum(axis=-1), slots)
    total = weights.sum(axis=-1, dtype=np.float64)
    np.testing.assert_allclose(total, np.where(anyone, 1, 0), rtol=1e-5)


@pytest.mark.parametrize("policy", ["pause", "bsfl", "genie", "random", "fastest", "all"])
def test_weights_are_proportional_to_data_of_participants(policy):
    available = masks(0.5)
    (clients, weights), *_ = harness_of(policy).play(available)
    size = np.where(np.take_along_axis(available, clients, axis=-1), SIZES[clients], 0)
    expected = size / np.maximum(size.sum(axis=-1, keepdims=True), 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_state_changes_only_for_chosen_clients(harness):
    available = masks(0.3)
    available[:, :, 4] = False
    (clients, weights), _, state = harness.play(available)
    if isinstance(state, ClientStats):
        counts = np.zeros((RUNS, K), int)
        for run in range(RUNS):
            took_part = clients[run][weights[run] > 0]
            counts[run] = np.bincount(took_part, minlength=K)
        np.testing.assert_array_equal(state.counts, counts)
        assert np.all(state.mean_speed[counts == 0] == 0)
        assert np.all(state.mean_speed[counts > 0] > 0)
    for leaf in jax.tree.leaves(state):
        assert not np.any(np.isnan(leaf))


# --- each policy's own rule


def first_round(name: str, draws: int, sizes: np.ndarray = SIZES) -> np.ndarray:
    """Chosen clients of the first round, [draws, m], for as many keys."""
    config = network(name)

    @jax.jit
    def choose(keys: jax.Array, sizes: Any) -> jax.Array:
        policy, everyone = build(config, sizes), jnp.ones(K, bool)

        def one(key: jax.Array) -> jax.Array:
            return policy.select(key, policy.init(), jnp.asarray(1), everyone)[0].clients

        return jax.vmap(one)(keys)

    keys = jax.random.split(jax.random.key(8), draws)
    return np.asarray(choose(keys, np.asarray(sizes, np.int32)))


def assert_frequencies(clients: np.ndarray, probability: np.ndarray, draws: int) -> None:
    """Each client's frequency is within 4.5 standard deviations of its probability."""
    frequency = np.bincount(clients.ravel(), minlength=K) / draws
    deviation = np.sqrt(probability * (1 - probability) / draws)
    assert np.all(np.abs(frequency - probability) < 4.5 * deviation), (frequency, probability)


def sequential_draws(weight: np.ndarray, m: int) -> np.ndarray:
    """Probability of each client to be drawn, one after the other, each among those left."""
    inclusion = np.zeros(len(weight))
    for order in itertools.permutations(range(len(weight)), m):
        left, probability = float(weight.sum()), 1.0
        for client in order:
            probability *= weight[client] / left
            left -= weight[client]
        inclusion[list(order)] += probability
    return inclusion


def test_random_uniform_includes_every_client_equally_often():
    draws = 8000
    clients = first_round("random", draws)
    assert_frequencies(clients, np.full(K, M / K), draws)
    pairs = {tuple(sorted(row)) for row in clients}
    assert len(pairs) == 35, "every set of three is possible"


def test_random_by_data_draws_successively_by_size():
    draws = 8000
    clients = first_round("random_by_data", draws)
    assert_frequencies(clients[:, :1], SIZES / SIZES.sum(), draws)
    inclusion = sequential_draws(SIZES, M)
    np.testing.assert_allclose(inclusion.sum(), M)
    assert_frequencies(clients, inclusion, draws)
    # The data sizes do matter.
    with pytest.raises(AssertionError):
        assert_frequencies(clients, np.full(K, M / K), draws)


def selecting(config: SimConfig) -> Any:
    """The policy's choice under jit, which builds it too."""
    sizes = np.asarray(SIZES, np.int32)
    return jax.jit(lambda *given: build(config, jnp.asarray(sizes)).select(*given))


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
        harness = harness_of(policy)
        config = harness.config.override({"reward.alpha": 1.0, "reward.gamma": gamma})
        return harness.play(np.ones((RUNS, ROUNDS, K), bool), config=config)[0].clients

    np.testing.assert_array_equal(cohorts("bsfl", 0.0), cohorts("bsfl", 50.0))
    assert not np.array_equal(cohorts("pause", 0.0), cohorts("pause", 50.0))
    np.testing.assert_array_equal(cohorts("pause", 0.0), cohorts("bsfl", 0.0))


def test_policy_names_resolve_to_configs():
    assert named("random_by_data") == Random(weighting="data")
    config = Random()
    assert named(config) is config
    with pytest.raises(ConfigError, match="pause_exhaustive"):
        named("nope")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (E3cs(quota=1.5), r"policy.quota = 1.5: must be .*<= 1"),
        (E3cs(rate=0.0), r"policy.rate = 0.0: must be .*> 0"),
        (E3cs(schedule="soon"), r"policy.schedule = 'soon': must be one of constant, late"),
        (F3ast(forgetting=0.0), r"policy.forgetting = 0.0: must be"),
        (F3ast(forgetting=1.5), r"policy.forgetting = 1.5: must be"),
        (FedCor(interval=1), r"policy.interval = 1: must be a whole number, >= 2"),
        (FedCor(warmup=0), r"policy.warmup = 0: must be a whole number, >= 1"),
        (FedCor(discount=1.5), r"policy.discount = 1.5: must be a .*<= 1"),
        (FedCor(annealing=0.0), r"policy.annealing = 0.0: must be a .*> 0"),
        (HicsFl(clusters=0), r"policy.clusters = 0: must be a whole number, >= 1"),
        (HicsFl(temperature=0.0), r"policy.temperature = 0.0: must be a .*> 0"),
        (Polaris(size_weight=0.0), r"policy.size_weight = 0.0: must be"),
        (Polaris(staleness_weight=-1.0), r"policy.staleness_weight = -1.0: must be"),
        (Polaris(optimism=0.0), r"policy.optimism = 0.0: must be"),
    ],
    ids=repr,
)
def test_bad_setting_is_refused(policy, words):
    with pytest.raises(ConfigError, match=words):
        validate(SimConfig(policy=policy, learning=None))
