"""Power-of-Choice: candidates, ranking, ties, schedules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, simulate
from pause_jax.policies import Answer, PowerOfChoice
from tests.reference import power_of_choice as oracle
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

SIZES = np.array([5, 1, 9, 3, 20, 2, 10])
K, M, D = len(SIZES), 2, 4
FIRST = np.asarray(1)


def frequencies(draws, num_clients):
    return np.bincount(np.ravel(draws), minlength=num_clients) / len(draws)


def deviations(frequency, probability, draws):
    return np.abs(frequency - probability) / np.sqrt(probability * (1 - probability) / draws)


# --- candidates


@functools.cache
def candidates(loss):
    """Candidates of many first rounds [n, D]: as asked, or, without a query, as chosen of m = D."""
    config = PowerOfChoice(loss=loss, candidates=D)
    policy = config.build(context(SIZES, D if loss == "stale" else M))
    everyone = jnp.ones(K, bool)

    def one(key):
        if loss == "stale":
            return policy.select(key, policy.init(), FIRST, everyone)[0].clients
        return policy.query.ask(key, policy.init(), FIRST, everyone)[0]

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 8000)))


@pytest.mark.parametrize("loss", ["full", "batch", "stale"])
def test_candidates_are_drawn_by_data_size_without_replacement(loss):
    drawn = candidates(loss)
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    frequency = frequencies(drawn, K)
    assert deviations(frequency, oracle.inclusion(SIZES, D), len(drawn)).max() < 4.5
    # Negative controls: uniform candidates (FedLab), and probabilities in proportion to size.
    assert deviations(frequency, np.full(K, D / K), len(drawn)).max() > 20
    capped = np.minimum(D * SIZES / SIZES.sum(), 0.999)
    assert deviations(frequency, capped, len(drawn)).max() > 20


def test_the_first_candidate_is_drawn_in_proportion_to_size():
    first = candidates("full")[:, :1]
    share = SIZES / SIZES.sum()
    assert deviations(frequencies(first, K), share, len(first)).max() < 4.5
    assert deviations(frequencies(first, K), np.full(K, 1 / K), len(first)).max() > 20


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [6, 6, 6, 6, 6, 6, 6, 6, 6]),
        ("linear", [6, 5.5, 5, 4.5, 4, 3.5, 3, 2.5, 2]),
    ],
)
def test_schedules(schedule, expected):
    whole = context(SIZES, M, num_rounds=len(expected))
    policy = PowerOfChoice(candidates=6, schedule=schedule).build(whole)
    ask = jax.jit(policy.query.ask)
    for t, d in enumerate(expected, start=1):
        for present in (K, 3):
            asking = ask(jax.random.key(t), policy.init(), np.asarray(t), np.arange(K) < present)
            clients, asked = map(np.asarray, asking)
            # Halves may be rounded either way.
            assert abs(min(d, present) - asked.sum()) <= 0.5
            assert (clients[asked] < present).all()


# --- ranking


def test_chosen_clients_have_the_largest_losses_among_candidates():
    policy = PowerOfChoice(candidates=D).build(context(SIZES, M))
    ask, receive, select = (
        jax.jit(f) for f in (policy.query.ask, policy.query.receive, policy.select)
    )
    rng = np.random.default_rng(0)
    state, by_position, by_old_loss = policy.init(), 0, 0
    for t in range(1, 60):
        available = rng.random(K) < 0.8
        key, round = jax.random.key(t), np.asarray(t)
        loss = rng.uniform(0, 3, K).astype(np.float32)
        clients, asked = ask(key, state, round, available)
        answer = Answer(loss[np.asarray(clients)], np.ones((D, 1), np.float32))
        state = receive(state, clients, asked, answer)
        selection, _ = select(jax.random.key(100 + t), state, round, available)
        among = np.asarray(clients)[np.asarray(asked)].tolist()
        assert len(among) == min(D, available.sum())
        weights = np.asarray(selection.weights)
        chosen = set(np.asarray(selection.clients)[weights > 0].tolist())
        assert chosen == oracle.largest(among, loss, M)
        # The plain mean of those that take part.
        np.testing.assert_allclose(weights[weights > 0], 1 / max(len(chosen), 1), rtol=1e-6)
        if available.all():
            wrong = oracle.largest_by_position(among, loss, M, list(range(K)))
            by_position += chosen != wrong
        # Old answers of clients that are not asked now do not count.
        by_old_loss += chosen != oracle.largest(np.flatnonzero(available), state.loss, M)
    assert by_position >= 5
    assert by_old_loss >= 5


def test_ties_are_broken_at_random():
    policy = PowerOfChoice(candidates=K).build(context(SIZES, M))
    state = policy.init()._replace(loss=jnp.ones(K), candidates=jnp.ones(K, bool))

    def one(key):
        return policy.select(key, state, FIRST, jnp.ones(K, bool))[0].clients

    chosen = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 4000)))
    assert deviations(frequencies(chosen, K), np.full(K, M / K), len(chosen)).max() < 4.5
    by_size = oracle.inclusion(SIZES, M)
    assert deviations(frequencies(chosen, K), by_size, len(chosen)).max() > 10


def test_stale_losses_rank_unchosen_clients_first():
    policy = PowerOfChoice(loss="stale", candidates=K).build(context(SIZES, M))
    assert policy.query is None
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    rng = np.random.default_rng(1)
    state, latest, total, count = policy.init(), np.full(K, np.inf), np.zeros(K), np.zeros(K)
    differs = 0
    for t in range(1, 50):
        available = np.ones(K, bool) if t < 5 else rng.random(K) < 0.8
        selection, _ = select(jax.random.key(t), state, np.asarray(t), available)
        clients, weights = np.asarray(selection.clients), np.asarray(selection.weights)
        chosen, present = clients[weights > 0], np.flatnonzero(available)
        np.testing.assert_allclose(
            np.sort(latest[chosen]), np.sort(latest[present])[::-1][: len(chosen)][::-1]
        )
        assert len(chosen) == min(M, len(present))
        if (count > 0).all():
            # A running average, as in DanBenAmi's program, is another rule.
            differs += set(chosen) != oracle.largest(present, total / count, M)
        loss = rng.uniform(0, 3, M).astype(np.float32)
        state = update(state, selection, observation(np.ones(M), loss=loss))
        latest[chosen] = loss[weights > 0]
        total[chosen] += loss[weights > 0]
        count[chosen] += 1
    assert differs >= 5


def test_fewer_candidates_than_the_cohort_are_refused():
    config = SimConfig(num_clients=9, num_selected=4, learning=None, track_regret=False)
    for wrong in (3, 10):
        with pytest.raises(ConfigError, match=rf"candidates = {wrong}: must be >= num_selected"):
            simulate(config.replace(policy=PowerOfChoice(candidates=wrong)), jax.random.key(0))
