"""Policies for budgets that differ, against a general solver, their limits, and samples."""

import functools
import itertools

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from pause_jax import ConfigError, SimConfig, simulate
from pause_jax.bandit.reward import Reward
from pause_jax.policies import (
    BudgetGroups,
    NoiseSampling,
    Pause,
    Selection,
    TolerantFirst,
)
from pause_jax.policies.index import Ucb
from pause_jax.policies.privacy_aware import biased_probabilities, groups_of
from pause_jax.privacy import (
    Budgeted,
    Constant,
    Geometric,
    NoPrivacy,
    PerCoordinateLaplace,
    Table,
)
from tests.reference import privacy_aware as oracle
from tests.support.network import context, drawn, jitted, observation, off, play

K, M, DRAWS = 7, 3, 20_000
SIZES = np.asarray([4.0, 1, 3, 2, 6, 2, 5])
SHARE = SIZES / SIZES.sum()
BUDGETS = np.asarray([1.0, 4.0, 4.0, 2.0, 8.0, 1.0, 8.0])
PRIVATE = PerCoordinateLaplace(
    sensitivity=0.5, budget=Constant(total_epsilon=BUDGETS, per_release=100.0)
)
NETWORK = context(SIZES, M, privacy=PRIVATE, update_size=3)
NOISE = 2 * 3 * (0.5 / BUDGETS) ** 2
EVERYBODY = np.ones(K, bool)
FAMILY = [NoiseSampling(), NoiseSampling(form="unbiased"), TolerantFirst(), BudgetGroups()]


def relative(cost, share=SHARE):
    return cost / (share @ cost)


@functools.cache
def choice(update_size):
    """Numbers are traced, so all tests of one kind of policy and budget share a program."""

    def select(key, before, round, available):
        config, privacy, state = before
        network = NETWORK._replace(privacy=privacy, update_size=update_size)
        policy = config.build(network)
        return policy.select(key, policy.init() if state is None else state, round, available)

    return select


def drawn_by(config, privacy=PRIVATE, available=EVERYBODY, state=None, draws=DRAWS, update_size=3):
    """(whether each client was drawn, its weight), each [draws, K], in many rounds."""
    weights = drawn(choice(update_size), draws, (config, privacy, state), 1, available)
    return weights > 0, weights


probabilities = jax.jit(biased_probabilities)
groups = jax.jit(groups_of, static_argnums=1)
COSTS = st.lists(st.floats(0.0, 8.0), min_size=K, max_size=K)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(cost=COSTS, m=st.integers(1, K - 1), bias_weight=st.floats(0.02, 20.0))
def test_closed_form_matches_a_solver(cost, m, bias_weight):
    cost = np.asarray(cost)
    got = probabilities(cost, SHARE, m, bias_weight)
    q = np.asarray(got, float) / m
    assert abs(q.sum() - 1) < 1e-4
    assert ((q >= 0) & (q <= 1 / m + 1e-6)).all()

    def objective(q):
        return q @ cost + bias_weight * np.sum((q - SHARE) ** 2 / SHARE)

    best = objective(oracle.biased(cost, SHARE, m, bias_weight))
    assert objective(q) <= best + 1e-4 * (1 + abs(best))


@pytest.mark.parametrize("m", [1, 3])
def test_bias_weight_trades_data_size_for_low_cost(m):
    cost = relative(NOISE)
    by_data = probabilities(cost, SHARE, m, 1e4)
    np.testing.assert_allclose(by_data, m * SHARE, atol=1e-3)
    least = probabilities(np.array([3.0, 1, 2, 5, 4]), np.full(5, 0.2), m, 1e-3)
    np.testing.assert_allclose(least, [m > 2, 1, m > 1, 0, 0], atol=1e-5)
    equal = probabilities(np.ones(K), SHARE, 1, 1e-3)
    np.testing.assert_allclose(equal, SHARE, rtol=1e-3)


def test_all_clients_are_drawn_if_few():
    share = np.array([0.0, 0.25, 0.0, 0.75])
    probability = probabilities(np.array([9.0, 2.0, 0.0, 1.0]), share, 3, 1.0)
    np.testing.assert_allclose(probability, [0, 1, 0, 1], atol=1e-5)


@pytest.mark.slow
def test_clients_are_drawn_with_the_solvers_probabilities():
    chosen, weights = drawn_by(NoiseSampling(bias_weight=0.4))
    expected = M * oracle.biased(relative(NOISE), SHARE, M, 0.4)
    assert expected.min() < 1e-6, "the noisiest are left out"
    assert off(chosen, expected).max() < 4.5
    assert off(chosen, M * SHARE).max() > 20, "negative control: by data size alone"
    np.testing.assert_allclose(weights.mean(axis=0), chosen.mean(axis=0) / M, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(chosen.sum(axis=1), M)

    chosen, weights = drawn_by(NoiseSampling(form="unbiased"))
    expected = oracle.unbiased(NOISE, SHARE, M)
    assert off(chosen, expected).max() < 4.5
    assert off(chosen, oracle.unbiased(1 / NOISE, SHARE, M)).max() > 20
    # The noisiest of equal data is drawn more often, and weighs less for it.
    assert expected[5] > expected[3]
    ratio = np.where(chosen, SHARE / expected, 0.0)
    np.testing.assert_allclose(weights, ratio / ratio.sum(axis=1, keepdims=True), atol=2e-5)


@pytest.mark.slow
def test_groups_are_sampled_at_the_solvers_ratios():
    chosen, weights = drawn_by(BudgetGroups())
    group = np.asarray(groups(BUDGETS, 3))
    np.testing.assert_array_equal(group, [0, 2, 2, 1, 2, 0, 2])
    size = np.bincount(group)
    share = np.bincount(group, SHARE)
    noise = np.bincount(group, NOISE) / size
    ratio = oracle.ratios(noise, share, size.astype(float), M)
    assert off(chosen, ratio[group]).max() < 4.5
    assert off(chosen, np.full(K, M / K)).max() > 20, "negative control: at random"
    each = np.where(chosen, (share / (ratio * size))[group], 0.0)
    np.testing.assert_allclose(weights, each / each.sum(axis=1, keepdims=True), atol=2e-5)


def test_groups_are_intervals_of_the_log_budget():
    np.testing.assert_array_equal(groups(np.full(4, 3.0), 3), 0)
    np.testing.assert_array_equal(groups(np.full(4, np.inf), 3), 0)
    np.testing.assert_array_equal(groups(np.array([10.0, 50, 200, 10]), 3), [0, 1, 2, 0])
    np.testing.assert_array_equal(groups(np.array([1.0, 2, 4, 8, 16]), 2), [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(groups(np.array([1.0, 9.0]), 1), 0)


def test_tolerant_first_takes_least_noise_with_random_ties():
    chosen, weights = drawn_by(TolerantFirst(), draws=2000)
    # Clients 4 and 6 have most; 1 and 2 tie for the last place.
    np.testing.assert_allclose(chosen.mean(axis=0), [0, 0.5, 0.5, 0, 1, 0, 1], atol=0.06)
    np.testing.assert_allclose(weights[chosen > 0], 1 / M, rtol=1e-6)
    # Releases so far make the next one noisier.
    fading = Geometric(total_epsilon=BUDGETS, decay=0.5)
    counts = np.array([0, 0, 0, 0, 9, 0, 0], np.int32)
    chosen, _ = drawn_by(TolerantFirst(), PRIVATE.replace(budget=fading), state=counts, draws=5)
    np.testing.assert_array_equal(chosen, [[0, 1, 1, 0, 0, 0, 1]] * 5)


@pytest.mark.slow
@pytest.mark.parametrize("config", FAMILY, ids=lambda c: f"{c.name}-{getattr(c, 'form', '')}")
def test_absent_and_spent_clients_are_not_chosen(config):
    ended = Table(total_epsilon=BUDGETS, shares=(0.5, 0.5))
    privacy = PRIVATE.replace(budget=ended)
    available = np.array([True, True, False, True, True, False, True])
    state = counts = np.array([0, 2, 0, 1, 0, 0, 2], np.int32)  # 1 and 6 are spent
    if isinstance(config, NoiseSampling):
        state = config.build(NETWORK._replace(privacy=privacy)).init()._replace(counts=counts)
    chosen, weights = drawn_by(config, privacy, available, state, draws=200)
    np.testing.assert_array_equal(chosen, [[1, 0, 0, 1, 1, 0, 0]] * 200)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    chosen, weights = drawn_by(config, privacy, ~EVERYBODY, state, draws=200)
    np.testing.assert_array_equal(weights, 0)


@pytest.mark.slow
@pytest.mark.parametrize("config", FAMILY[:2], ids=["biased", "unbiased"])
def test_update_norms_match_the_oracle(config):
    config = config.replace(step=0.3)
    fading = Geometric(total_epsilon=BUDGETS, decay=0.5)
    privacy = PRIVATE.replace(budget=fading)
    policy = jitted(config.build(NETWORK._replace(privacy=privacy)))
    rng = np.random.default_rng(0)

    def noise_power(k, n):
        epsilon = BUDGETS[k] * (np.exp(0.5) - 1) * np.exp(-0.5 * (n + 1))
        return 2 * 3 * (0.5 / epsilon) ** 2

    def observe(t, selection):
        updates, received = rng.normal(size=(M, 3)) * 3, rng.random(M) < 0.7
        return observation(np.ones(M), update=updates, received=received)

    account = oracle.Account(K, noise_power, 0.3)
    for each in play(policy, [EVERYBODY] * 7, observe):
        state, square = each.state, account.square
        np.testing.assert_array_equal(state.counts, account.counts)
        np.testing.assert_array_equal(state.known, [s is not None for s in square])
        np.testing.assert_allclose(state.square, [s or 0.0 for s in square], rtol=1e-4, atol=1e-5)
        if each.round < 7:
            account.tell(each.selection.clients, each.seen.update, each.seen.received)
    cost = np.asarray(account.costs())
    chosen, _ = drawn_by(config, privacy, state=state, draws=4000)
    if config.form == "biased":
        expected = M * oracle.biased(relative(cost), SHARE, M, 1.0)
    else:
        expected = oracle.unbiased(cost, SHARE, M)
    assert off(chosen, expected).max() < 4.5


@pytest.mark.slow
def test_equal_budgets_without_learning_draw_by_data():
    equal = PRIVATE.replace(budget=Constant(total_epsilon=9.0, per_release=3.0))
    for config in (NoiseSampling(), NoiseSampling(form="unbiased"), BudgetGroups()):
        chosen, _ = drawn_by(config, equal, update_size=0)
        expected = np.full(K, M / K) if config.name == "budget_groups" else M * SHARE
        assert off(chosen, expected).max() < 4.5, config
    # Without privacy nobody is noisy.
    chosen, _ = drawn_by(NoiseSampling(), NoPrivacy(), update_size=0)
    assert off(chosen, M * SHARE).max() < 4.5


class Silent(Budgeted):
    """A mechanism that does not say how noisy it is."""

    unit = "update"

    def privatize(self, key, update, epsilon):
        return update


def test_mechanism_without_noise_power_is_refused():
    config = SimConfig(learning=None, policy=TolerantFirst(), privacy=Silent(), num_rounds=2)
    with pytest.raises(ConfigError, match="Silent: has no noise_power"):
        simulate(config, jax.random.key(0))


def left_by_hand(left_of, times):
    """What is left of a budget that falls by e^-0.1 each time, as a share."""
    factor = BUDGETS / BUDGETS.max() if left_of == "largest" else 1.0
    return factor * np.exp(-0.1 * times)


@pytest.mark.slow
@pytest.mark.parametrize("left_of", ["own", "largest"])
def test_pause_divides_the_remaining_budget_by_own_or_largest(left_of):
    """All clients are equally fast, so that the index is the same for the same participations."""
    privacy = PerCoordinateLaplace(budget=Geometric(total_epsilon=BUDGETS, decay=0.1))
    reward = Reward(alpha=0.3, gamma=2.0)
    policy = Pause(left_of=left_of).build(context(SIZES, M, privacy=privacy, reward=reward))
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    state, times, told_apart = policy.init(), np.zeros(K), 0
    seen = observation(np.full(M, 0.1))
    every = [np.asarray(cohort) for cohort in itertools.combinations(range(K), M)]
    for number in range(1, 31):
        if number <= 3:  # first everybody once
            clients = np.array([(3 * number + i) % K for i in range(M)], np.int32)
            chosen = Selection(clients, np.full(M, 1 / M, np.float32))
        else:
            chosen, _ = select(jax.random.key(number), state, np.asarray(number), EVERYBODY)
            x = M * SHARE - times / number
            g, index = np.sign(x) * x**2, 0.5 + np.sqrt((M + 1) * np.log(number) / times)

            def energy(cohort, left, g=g, index=index):
                return index[cohort].min() + (0.3 * g + 2.0 * left)[cohort].mean()

            best = {
                each: max(energy(c, left_by_hand(each, times)) for c in every)
                for each in ("own", "largest")
            }
            got = np.asarray(chosen.clients)
            assert energy(got, left_by_hand(left_of, times)) > best[left_of] - 1e-4
            other = "largest" if left_of == "own" else "own"
            told_apart += energy(got, left_by_hand(other, times)) < best[other] - 1e-3
        times[np.asarray(chosen.clients)] += 1
        state = update(state, chosen, seen)
    assert told_apart > 10


@pytest.mark.parametrize("budget", [Geometric(), None])
def test_left_of_has_no_effect_with_equal_or_no_budgets(budget):
    privacy = NoPrivacy() if budget is None else PerCoordinateLaplace(budget=budget)
    network = context(SIZES, M, privacy=privacy)
    chosen = [
        jax.jit(Pause(left_of=each).build(network).select)(
            jax.random.key(0), state_after_all(network), np.asarray(9), EVERYBODY
        )[0].clients
        for each in ("own", "largest")
    ]  # fmt: skip
    np.testing.assert_array_equal(*chosen)


def state_after_all(network):
    """Of an index whose clients took part 1, 2, ... K times."""
    stats = Ucb().build(network).init()
    return stats._replace(counts=np.arange(1, K + 1, dtype=stats.counts.dtype))
