"""Rounds of a run: the common world, bookkeeping, budgets, choices and rewards."""

import functools
import itertools

import chex
import jax
import numpy as np
import pytest

from pause_jax import Reward, SimConfig, simulate
from pause_jax.bandit import Selection
from pause_jax.learning import Digits
from pause_jax.policies import NAMED, FedCs
from pause_jax.privacy import (
    Geometric,
    PerCoordinateLaplace,
)
from pause_jax.run.rounds.state import score
from pause_jax.world.availability import OnOff
from tests.support.network import context
from tests.support.runs import (
    ASK,
    BANDIT,
    KEY,
    LEARN,
    MAY_LEAVE_EMPTY,
    WITH_REPETITION,
    K,
    M,
    T,
    bandit_run,
    chosen_sets,
    learn_run,
    world_of,
)

pytestmark = pytest.mark.slow

# Those that a round treats differently: who knows the latencies, asks, leaves slots empty or has
# more of them. Others are in test_whole_round and test_arrival, the contract of every
# policy is in test_contracts.
POLICIES = ["genie", "power_of_choice", "fedcs", "refl", "md_sampling"]

# --- the world is the same for all policies


@pytest.mark.parametrize("policy", POLICIES)
def test_only_available_clients_are_chosen_and_as_many_as_fit(policy):
    result = bandit_run(policy, 0.8)
    _, present = world_of(BANDIT.replace(availability=0.8), KEY)
    assert 0.6 < present.mean() < 0.95
    for chosen, here in zip(chosen_sets(result), present, strict=True):
        assert set(chosen) <= set(np.flatnonzero(here))
        slots = min(result.clients.shape[1], here.sum())
        if policy in MAY_LEAVE_EMPTY:
            assert len(chosen) <= slots
        elif policy in WITH_REPETITION:
            assert min(slots, 1) <= len(chosen) <= slots
        else:
            assert len(chosen) == slots


# --- bookkeeping


@pytest.mark.parametrize("policy", POLICIES)
def test_queries_cost_time_but_release_nothing_without_training(policy):
    result = bandit_run(policy, 0.8)
    assert np.all(np.asarray(result.query_seconds) > 0) == (policy in ASK)
    assert np.all(np.asarray(result.query_seconds) == 0) == (policy not in ASK)
    assert (result.queried.sum() > 0) == (policy in ASK)
    assert result.unnoised == ()


@pytest.mark.parametrize("policy", POLICIES)
def test_slots_stay_empty_with_few_available_clients(policy):
    result = bandit_run(policy, 0.05)
    chosen = chosen_sets(result)
    empty = np.asarray([not row for row in chosen])
    assert empty.any()
    assert not empty.all()
    assert np.all(np.asarray(result.clients)[empty] == -1)
    assert np.all(np.asarray(result.latency)[empty] == 0)
    assert np.all(np.diff(result.clock)[empty[1:]] == 0)
    assert np.all(np.isfinite(result.spent))
    assert np.all(np.isfinite(result.max_spent))
    for name in ("reward", "genie_reward", "regret"):
        series = np.asarray(getattr(result, name))
        np.testing.assert_array_equal(np.isnan(series), empty, err_msg=name)
    if policy not in MAY_LEAVE_EMPTY | WITH_REPETITION:
        # With fewer than m available there is no choice to regret.
        assert np.all(np.asarray(result.regret)[~empty] == 0)


def test_evaluated_rounds_include_the_last():
    result = jax.device_get(learn_run())
    np.testing.assert_array_equal(result.eval_rounds, [3, 6, 8])
    np.testing.assert_array_equal(result.eval_clock, result.clock[np.asarray([2, 5, 7])])
    chex.assert_shape([result.test_loss, result.test_accuracy], (3,))


def test_data_argument_replaces_the_configs_data_set():
    digits = Digits().load()
    mislabelled = digits.replace(y_test=(digits.y_test + 1) % 10)
    result = simulate(LEARN, KEY, mislabelled)
    usual = learn_run()
    np.testing.assert_array_equal(result.train_loss, usual.train_loss)
    assert not np.any(np.asarray(result.test_loss) == usual.test_loss)


def test_smallest_possible_network_runs():
    config = BANDIT.replace(num_clients=1, num_selected=1, num_rounds=1, eval_every=50)
    result = simulate(config, KEY, record=("counts", "regret"))
    assert (result.counts.tolist(), result.regret.tolist()) == ([1], [0.0])
    np.testing.assert_array_equal(result.eval_rounds, [1])


@pytest.mark.parametrize("policy", POLICIES)
def test_run_continues_with_all_budgets_exhausted(policy):
    result = bandit_run(policy, horizon=3.0)
    np.testing.assert_array_equal(result.counts, 3)
    # The rounds in which someone still had a budget come first; then nothing happens any more.
    played = np.any(np.asarray(result.clients) >= 0, axis=1)
    last = int(np.sum(played))
    assert played[:last].all()
    assert 3 <= last < T
    assert np.all(np.asarray(result.clock)[last:] == result.clock[last - 1])
    assert np.all(np.isnan(np.asarray(result.reward)[last:]))


# --- choices and rewards


@pytest.mark.parametrize(
    ("policy", "num_clients", "num_selected"),
    [("pause_exhaustive", 12, 4), ("bsfl", 12, 4), ("genie", 12, 4), ("pause", 60, 5)],
)
def test_first_rounds_choose_every_client_exactly_once(policy, num_clients, num_selected):
    # alpha = 100 outweighs any difference in speed in networks this small, so for the genie too.
    config = SimConfig(
        num_clients=num_clients,
        num_selected=num_selected,
        num_rounds=num_clients // num_selected,
        track_regret=False,
        policy=NAMED[policy],
        learning=None,
    )
    runs = jax.vmap(lambda key: simulate(config, key, record=("clients", "counts", "regret")))
    result = runs(jax.random.split(KEY, 40))
    assert np.all(np.asarray(result.counts) == 1)
    assert np.all(np.isnan(result.regret)), "regret is not tracked"
    if policy != "genie":
        first = {tuple(row) for row in np.asarray(result.clients[:, 0])}
        assert len(first) > 10, "ties are not broken at random"


def test_score_matches_float64_and_regret_is_signed():
    rng = np.random.default_rng(0)
    number, reward = 300, Reward(alpha=0.5, beta=1.5, gamma=0.4)
    privacy = PerCoordinateLaplace(budget=Geometric(total_epsilon=7.0, decay=0.2))
    share = rng.dirichlet(np.full(K, 2.0), number)
    mu = rng.uniform(0.05, 1, (number, K))
    rounds = rng.integers(1, 30, number)
    counts = rng.integers(0, rounds[:, None], (number, K))
    latency = 0.05 / rng.uniform(0.05, 1, (number, K))
    available = rng.random((number, K)) < 0.9
    clients = rng.permuted(np.tile(np.arange(K), (number, 1)), axis=1)[:, :M]
    weights = np.take_along_axis(available, clients, 1) * (rng.random((number, M)) < 0.8)
    expected = []
    for i in range(number):
        x = M * share[i] - counts[i] / rounds[i]
        each = (0.5 * np.sign(x) * np.abs(x) ** 1.5 + 0.4 * np.exp(-0.2 * counts[i])) / M

        def value(speed, members, each=each):
            return speed[members].min() + each[members].sum() if len(members) else np.nan

        here = np.flatnonzero(available[i])
        cohorts = [list(ks) for ks in itertools.combinations(here, min(M, len(here)))]
        genie = max(cohorts, key=functools.partial(value, mu[i]))
        if i < 100:
            clients[i] = rng.permutation([*genie, *np.setdiff1d(np.arange(K), genie)][:M])
            weights[i] = np.isin(clients[i], genie)
        cohort, speed = clients[i][weights[i] > 0], 0.05 / latency[i]
        regret = value(mu[i], genie) - value(mu[i], cohort)
        expected.append((value(speed, cohort), value(speed, genie), regret))

    def one(share, mu, counts, latency, clients, weights, available, round):
        network = context(np.ones(K), M, reward=reward, privacy=privacy)
        network = network._replace(share=share, expected_speed=mu)
        chosen = Selection(clients, weights)
        return score(network, counts, latency, chosen, available, round, with_genie=True)

    arguments = (share, mu, counts, latency, clients, 1.0 * weights, available, rounds)
    found = jax.device_get(jax.jit(jax.vmap(one))(*arguments))
    for ours, theirs in zip(found, np.transpose(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    assert np.all(found.regret[:100] == 0)
    size = (weights > 0).sum(axis=1)
    whole = size == np.minimum(M, available.sum(axis=1))
    assert np.nanmin(found.regret[whole]) >= -2e-6
    assert np.sum(found.regret[~whole] < -0.01) > 10
    assert np.sum(found.regret[~whole] > 0.01) > 10
    np.testing.assert_array_equal(np.isnan(found.regret), size == 0)


def test_query_costs_time_without_a_chosen_client():
    """FedCS asks, and no answer fits into its deadline."""
    config = BANDIT.replace(policy=FedCs(deadline=1e-4, query_seconds=0.25), num_rounds=3)
    for availability_trace, wait in ((None, 0.0), (OnOff(come=1.0, leave=1e-9, recheck=2.0), 2.0)):
        config = config.replace(availability_trace=availability_trace)
        result = simulate(config, KEY, record=("clients", "query_seconds", "latency", "clock"))
        assert (np.asarray(result.clients) < 0).all()
        np.testing.assert_allclose(result.query_seconds, 0.25)
        np.testing.assert_allclose(result.latency, 0.25 + wait)
        np.testing.assert_allclose(result.clock, (0.25 + wait) * np.arange(1, 4))
