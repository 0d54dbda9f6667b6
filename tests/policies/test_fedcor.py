"""FedCor: the Gaussian process and the choice against whole matrices, what is asked and charged."""

import functools
import itertools

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.policies import Answer, FedCor, Selection
from pause_jax.policies.choose import inverse_and_log_det
from pause_jax.policies.fedcor import correlated, surprise
from tests.reference import fedcor as oracle
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M, F = 7, 3, 4
SIZES = np.array([5, 1, 9, 3, 20, 2, 10])
SHARE = SIZES / SIZES.sum()
EVERYONE = np.ones(K, bool)
SMALL = FedCor(warmup=4, interval=3, features=F, steps=6, window=4)


def embeddings(rng):
    return rng.standard_normal((F, K)).astype(np.float32) / 2


# --- the Gaussian process


def test_likelihood_and_gradient_match_the_full_matrix():
    value, slope = jax.jit(surprise), jax.jit(jax.grad(surprise))
    rng = np.random.default_rng(0)
    for _ in range(10):
        x, observed = embeddings(rng), rng.random(K) < 0.8
        change = np.where(observed, 0.02 * rng.standard_normal(K), 0).astype(np.float32)
        other = embeddings(rng)
        # Up to a constant.
        ours = float(value(x, change, observed) - value(other, change, observed))
        slow = oracle.surprise(x.astype(float), change, observed)
        slow -= oracle.surprise(other.astype(float), change, observed)
        np.testing.assert_allclose(ours, slow, rtol=1e-3, atol=1e-2)
        exact = oracle.gradient(x.astype(float), change, observed)
        np.testing.assert_allclose(
            slope(x, change, observed), exact, rtol=1e-2, atol=1e-3 * np.abs(exact).max()
        )


def test_clients_are_chosen_greedily():
    choose, rng = jax.jit(correlated, static_argnums=4), np.random.default_rng(2)
    without, by_share = 0, 0
    for _ in range(40):
        x, among = embeddings(rng), rng.random(K) < 0.8
        weight = 0.9 ** rng.integers(0, 4, K)
        rank = np.asarray(choose(x, SHARE, weight, among, M))
        found = np.argsort(-rank)[: (rank > 0).sum()].tolist()
        who = np.flatnonzero(among).tolist()
        assert found == oracle.chosen(x.astype(float), SHARE, weight, who, M)
        sigma = oracle.covariance(x.astype(float))
        gain = np.where(among, weight * (SHARE @ sigma) / np.sqrt(np.diag(sigma)), -np.inf)
        without += set(found) != set(np.argsort(-gain)[: len(found)])
        by_share += set(found) != set(sorted(who, key=lambda k: -SHARE[k])[:M])
    # Negative controls: no conditioning, and the largest clients.
    assert min(without, by_share) >= 10


# --- a run, played by hand

# Warm-up of 4 rounds, then every third.
AT_RANDOM = {1, 2, 3, 4, 6, 9, 12}
AWAY = {3: 2, 8: 4}  # the client that is away in a round
SILENT = 10  # the round in which nobody reports its loss
LOSS = np.random.default_rng(3).uniform(0, 1, (12, K)).astype(np.float32)


@functools.cache
def policy(config=SMALL):
    return jitted(config.build(context(SIZES, M)))


def answer(t, clients):
    reported = np.full(K, t != SILENT)
    return Answer(np.where(reported, LOSS[t - 1], np.float32(np.nan)), np.ones((K, 1)), reported)


@functools.cache
def played():
    available = [np.arange(K) != AWAY.get(t) for t in range(1, 13)]
    return tuple(play(policy(), available, lambda *_: observation(np.ones(M)), answer))


def test_all_clients_are_asked_only_around_random_rounds():
    for each in played():
        asks = each.round in AT_RANDOM or each.round - 1 in AT_RANDOM
        np.testing.assert_array_equal(each.asked, each.available & asks)


def test_fit_to_loss_changes_matches_the_oracle():
    x, data, everyone = np.asarray(policy().init().embedding, float), [], np.ones(K, bool)
    for before, now in itertools.pairwise(played()[:10]):
        t = now.round
        assert before.state.round == t - 2
        if t - 1 in AT_RANDOM and t != SILENT:
            # Both changes of client 2, who is away in round 3, are unknown.
            observed = np.arange(K) != 2 if t in (3, 4) else everyone
            data.append((t, np.where(observed, LOSS[t - 1] - LOSS[t - 2], 0.0), observed))
            recent = [(0.8 ** (t - s), y, who) for s, y, who in data if t - s <= SMALL.window]
            x = oracle.fitted(x, recent, SMALL.steps, 0.01)
        np.testing.assert_allclose(now.state.embedding, x, atol=2e-3)
        x = np.asarray(now.state.embedding, float)
    assert len(data) == 5


def test_fit_finds_correlated_clients():
    """The losses of clients 0 to 3 move together, each other loss alone."""
    rng = np.random.default_rng(6)
    config = FedCor(warmup=30, features=F, window=30, discount=1.0)
    init, select, update, query = policy(config)
    state, loss, nobody = init(), np.ones(K), Selection(np.arange(M), np.zeros(M, np.float32))
    for _ in range(19):
        change = 0.3 * rng.standard_normal(K)
        change[:4] = 0.3 * rng.standard_normal() + 0.02 * rng.standard_normal(4)
        loss = loss + change
        answer = Answer(loss.astype(np.float32), np.ones((K, 1)), EVERYONE)
        state = query.receive(state, np.arange(K), EVERYONE, answer)
        state = update(state, nobody, observation(np.ones(M)))
    sigma = oracle.covariance(np.asarray(state.embedding, float))
    scale = np.sqrt(np.diag(sigma))
    correlation = np.abs(sigma / scale[:, None] / scale)
    assert correlation[:4, :4].min() > 0.9
    assert correlation[:4, 4:].max() < 0.8
    selection, _ = select(jax.random.key(0), state, np.asarray(31), EVERYONE)
    assert (np.asarray(selection.clients) < 4).sum() == 1


def test_rounds_after_the_random_ones_match_the_oracle():
    taken, planned = np.zeros(K), 0
    for t, here, selection, _, state, *_ in played():
        if t - 1 in AT_RANDOM and t != SILENT:
            taken[:] = 0
        np.testing.assert_array_equal(state.taken, taken)
        np.testing.assert_allclose(selection.weights, 1 / M, rtol=1e-6)
        x = np.asarray(state.embedding, float)
        slow = oracle.chosen(x, SHARE, 0.9**taken, np.flatnonzero(here).tolist(), M)
        if t in AT_RANDOM:
            planned += set(slow) == set(selection.clients.tolist())
        else:
            assert selection.clients.tolist() == slow
            taken[slow] += 1
    assert planned <= 3


def test_random_rounds_choose_all_clients_equally_often():
    members = drawn(policy().select, 3000, policy().init(), 1, EVERYONE) > 0
    assert off(members, np.full(K, M / K)).max() < 4.5
    assert np.abs(members.mean(axis=0) - np.minimum(M * SHARE, 1)).max() > 0.2


def test_queries_cost_time_and_release_losses():
    config = SimConfig(num_rounds=9, policy=SMALL, learning=None, track_regret=False)
    run = simulate(config, jax.random.key(0), record=("queried", "query_seconds"))
    asks = np.array([t in AT_RANDOM or t - 1 in AT_RANDOM for t in range(1, 10)])
    seconds = np.asarray(run.query_seconds)
    assert ((seconds > 0) == asks).all()
    assert (np.asarray(run.queried) == asks.sum()).all()
    assert SMALL.releases == ("the loss of each queried client",)


@pytest.mark.parametrize("size", [1, 2, 15])
def test_inverse_and_determinant_match_numpy(size):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(20, size, size + 2))
    matrices = root @ root.swapaxes(1, 2) + 0.1 * np.eye(size)
    with jax.enable_x64(True):
        inverse, log_det = jax.jit(inverse_and_log_det)(matrices)
    np.testing.assert_allclose(inverse, np.linalg.inv(matrices), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrices)[1], rtol=1e-8)
