"""FedCor: the Gaussian process and the choice against whole matrices, what is asked and charged."""

import functools

import jax
import numpy as np
import pytest

from pause_jax import presets, simulate
from pause_jax.learning import Linear
from pause_jax.policies import Answer, FedCor, Selection
from pause_jax.policies.fedcor import correlated, surprise
from pause_jax.privacy import NoPrivacy
from tests.reference import fedcor as oracle
from tests.support.network import context, observation

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


@functools.cache
def compiled(config):
    """(init, ask, receive, select, update) of a policy, under jit."""
    policy = config.build(context(SIZES, M))
    query = policy.query
    return tuple(
        map(jax.jit, (policy.init, query.ask, query.receive, policy.select, policy.update))
    )


def played(config, rounds, rng, available=lambda t: EVERYONE, lost=()):
    """[(asked, cohort, state before the choice, loss)] of each round, with losses at random.

    ``lost`` are rounds in which nobody reports its loss.
    """
    init, ask, receive, select, update = compiled(config)
    state, seen = init(), []
    for t in range(1, rounds + 1):
        here, key, round = available(t), jax.random.key(t), np.asarray(t)
        clients, asked = ask(key, state, round, here)
        loss = rng.uniform(0, 1, K).astype(np.float32)
        reported = np.full(K, t not in lost)
        answer = Answer(np.where(reported, loss, np.float32(np.nan)), np.ones((K, 1)), reported)
        state = receive(state, clients, asked, answer)
        selection, _ = select(key, state, round, here)
        seen.append((np.asarray(asked), selection, state, loss))
        state = update(state, selection, observation(np.ones(M)))
    return seen


# Warm-up of 4 rounds, then every third.
AT_RANDOM = {1, 2, 3, 4, 6, 9, 12}


def test_all_clients_are_asked_only_around_random_rounds():
    seen = played(SMALL, 12, np.random.default_rng(3))
    for t, (asked, *_) in enumerate(seen, start=1):
        assert asked.all() == asked.any() == (t in AT_RANDOM or t - 1 in AT_RANDOM), t


def test_fit_to_loss_changes_matches_the_oracle():
    rng = np.random.default_rng(4)
    # Client 2 is away in round 3, so two of its changes are not known; nobody reports in round 10.
    away = np.arange(K) == 2
    seen = played(SMALL, 10, rng, lambda t: ~away if t == 3 else EVERYONE, lost=(10,))
    init, *_ = compiled(SMALL)
    x, data = np.asarray(init().embedding, float), []
    for t in range(2, 11):
        (_, _, before, old), (_, _, state, loss) = seen[t - 2], seen[t - 1]
        assert before.round == t - 2
        if t - 1 in AT_RANDOM and t != 10:
            observed = ~away if t in (3, 4) else EVERYONE
            data.append((t, np.where(observed, loss - old, 0.0), observed))
            recent = [(0.8 ** (t - s), y, who) for s, y, who in data if t - s <= SMALL.window]
            x = oracle.fitted(x, recent, SMALL.steps, 0.01)
        np.testing.assert_allclose(state.embedding, x, atol=2e-3)
        x = np.asarray(state.embedding, float)
    assert len(data) == 5


def test_fit_finds_correlated_clients():
    """The losses of clients 0 to 3 move together, each other loss alone."""
    rng = np.random.default_rng(6)
    config = FedCor(warmup=30, features=F, window=30, discount=1.0)
    init, _, receive, select, update = compiled(config)
    state, loss = init(), np.ones(K)
    for _ in range(19):
        change = 0.3 * rng.standard_normal(K)
        change[:4] = 0.3 * rng.standard_normal() + 0.02 * rng.standard_normal(4)
        loss = loss + change
        answer = Answer(loss.astype(np.float32), np.ones((K, 1)), EVERYONE)
        state = receive(state, np.arange(K), EVERYONE, answer)
        nobody = Selection(np.arange(M), np.zeros(M, np.float32))
        state = update(state, nobody, observation(np.ones(M)))
    sigma = oracle.covariance(np.asarray(state.embedding, float))
    scale = np.sqrt(np.diag(sigma))
    correlation = np.abs(sigma / scale[:, None] / scale)
    assert correlation[:4, :4].min() > 0.9
    assert correlation[:4, 4:].max() < 0.8
    selection, _ = select(jax.random.key(0), state, np.asarray(31), EVERYONE)
    assert (np.asarray(selection.clients) < 4).sum() == 1


def test_rounds_after_the_random_ones_match_the_oracle():
    rng = np.random.default_rng(5)
    here = np.arange(K) != 4
    seen = played(SMALL, 12, rng, lambda t: here if t == 8 else EVERYONE)
    taken, planned = np.zeros(K), 0
    for t, (_, selection, state, _) in enumerate(seen, start=1):
        if t - 1 in AT_RANDOM:
            taken[:] = 0
        np.testing.assert_array_equal(state.taken, taken)
        np.testing.assert_allclose(selection.weights, 1 / M, rtol=1e-6)
        who = np.flatnonzero(here if t == 8 else EVERYONE).tolist()
        x = np.asarray(state.embedding, float)
        slow = oracle.chosen(x, SHARE, 0.9**taken, who, M)
        if t in AT_RANDOM:
            planned += set(slow) == set(selection.clients.tolist())
        else:
            assert selection.clients.tolist() == slow
            taken[slow] += 1
    assert planned <= 3


def test_random_rounds_choose_all_clients_equally_often():
    init, _, _, select, _ = compiled(SMALL)
    choose = jax.jit(jax.vmap(select, in_axes=(0, None, None, None)))
    keys = jax.random.split(jax.random.key(0), 3000)
    drawn = np.asarray(choose(keys, init(), np.asarray(1), EVERYONE)[0].clients)
    found = np.bincount(drawn.ravel(), minlength=K) / len(drawn)
    assert np.abs(found - M / K).max() < 4.5 * (M / K * (1 - M / K) / len(drawn)) ** 0.5
    assert np.abs(found - np.minimum(M * SHARE, 1)).max() > 0.2


def test_queries_cost_time_and_release_losses():
    config = presets.digits_small().replace(num_rounds=9, policy=SMALL, track_regret=False)
    config = config.override({"learning.model": Linear()}).replace(privacy=NoPrivacy())
    run = simulate(config, jax.random.key(0), record=("queried", "query_seconds"))
    asks = np.array([t in AT_RANDOM or t - 1 in AT_RANDOM for t in range(1, 10)])
    seconds = np.asarray(run.query_seconds)
    assert ((seconds > 0) == asks).all()
    assert (np.asarray(run.queried) == asks.sum()).all()
    assert run.unnoised == ("the loss of each asked client",)
