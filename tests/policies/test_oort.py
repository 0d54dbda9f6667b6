"""Oort against a slow oracle: scores, pools, draws, pacer, and the squared loss of training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pause_jax.learning import Classification, Digits, Linear, Partition
from pause_jax.learning.client import Keys, LocalTraining, Slot, train_locally
from pause_jax.learning.learner import trained_part
from pause_jax.learning.work import LocalWork
from pause_jax.policies import Oort
from tests.reference import oort as oracle
from tests.reference.power_of_choice import inclusion, softmax_losses
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M = 24, 4
SIZES = 2 + np.random.default_rng(5).permutation(K)
CONFIG = Oort(clip=0.8, threshold=40.0, pacer_step=5, exploration_decay=0.9)
# Clients train on half of their data.
PRIOR = (SIZES / 2).astype(np.float32)
NETWORK = context(SIZES, M, local_samples=jax.device_put(PRIOR))
scores_of, paced = jax.jit(CONFIG.scores), jax.jit(CONFIG.paced)


def counts(t, m=M, config=CONFIG):
    """(exploited, explored) of round t if there are enough of both."""
    share = max(config.exploration * config.exploration_decay ** (t - 1), config.exploration_min)
    return int(m * (1 - share) + 1e-9), m - int(m * (1 - share) + 1e-9)


def slow_oort():
    return oracle.Oort(
        PRIOR.tolist(),
        np.asarray(NETWORK.expected_latency, float).tolist(),
        clip=CONFIG.clip,
        penalty=CONFIG.penalty,
        threshold=CONFIG.threshold,
        step=CONFIG.pacer_step,
        delta=CONFIG.pacer_delta,
    )


@functools.cache
def compiled():
    return jitted(CONFIG.build(NETWORK))


@functools.cache
def played():
    """A run of 60 rounds in which utilities jump now and then, so that the pacer moves."""
    rng, t = np.random.default_rng(0), np.arange(1, 61)
    available = rng.random((60, K)) < 0.7
    available[t[:, None] - 1, (t[:, None] + np.arange(4)) % K] = True

    def observe(t, selection):
        square = rng.uniform(0.5, 2.0, M) * (400 if (t - 1) // 5 % 4 == 3 else 1)
        return observation(rng.uniform(0.05, 1.0, M), square_loss=square)

    return tuple(play(compiled(), available, observe))


def replay():
    """(round, available clients, the oracle before it) of our run."""
    slow = slow_oort()
    for each in played():
        yield each, np.flatnonzero(each.available), slow
        slow.update(each.chosen, each.seen.latency.tolist(), each.seen.square_loss.tolist())


def test_scores_match_the_oracle():
    thresholds = []
    for each, eligible, slow in replay():
        t, state = each.round, each.state
        exploit, explore = map(np.asarray, scores_of(state, PRIOR, np.asarray(t), each.available))
        for k, value in slow.exploit_scores(t, eligible).items():
            np.testing.assert_allclose(exploit[k], value, rtol=2e-4, atol=2e-5)
        for k, value in slow.explore_scores(eligible).items():
            np.testing.assert_allclose(explore[k], value, rtol=1e-5)
        assert float(state.threshold) == slow.threshold
        thresholds.append(slow.threshold)
    # The pacer moved both ways.
    assert (np.diff(thresholds) > 0).any()
    assert (np.diff(thresholds) < 0).any()


def test_numbers_and_pools_of_exploited_and_explored_clients():
    both = 0
    for each, eligible, slow in replay():
        chosen = each.chosen
        exploit = slow.exploit_scores(each.round, eligible) if slow.last else {}
        explore = slow.explore_scores(eligible)
        planned, _ = counts(each.round)
        num_explore = min(len(explore), M - planned)
        num_exploit = min(len(exploit), M - num_explore)
        exploited = [k for k in chosen if k in slow.last]
        explored = [k for k in chosen if k not in slow.last]
        assert set(chosen) <= set(eligible)
        assert len(set(chosen)) == M
        if num_exploit + num_explore < M:
            continue
        assert (len(exploited), len(explored)) == (num_exploit, num_explore)
        if num_exploit:
            cutoff = CONFIG.cutoff * sorted(exploit.values())[-num_exploit]
            assert all(exploit[k] >= cutoff - 1e-4 for k in exploited)
        if num_explore:
            worst = sorted(explore.values())[-min(5 * num_explore, len(explore))]
            assert all(explore[k] >= worst - 1e-6 for k in explored)
        both += num_exploit > 0 and num_explore > 0
    assert both >= 5


def test_shares_of_exploration():
    config = Oort()
    policy = config.build(context(np.ones(100), 20))
    select = jax.jit(policy.select)
    # Half of the clients have been seen; all durations and utilities are alike.
    state = policy.init()._replace(
        last_round=(np.arange(100) % 2).astype(np.int32), utility=np.ones(100, np.float32)
    )
    for t in (1, 2, 5, 10, 20, 28, 29, 30, 60):
        selection, _ = select(jax.random.key(t), state, np.asarray(t), np.ones(100, bool))
        exploited = int((np.asarray(selection.clients) % 2).sum())
        assert (exploited, 20 - exploited) == counts(t, 20, config)
    assert counts(1, 20, config) == (2, 18)
    assert counts(60, 20, config) == (16, 4)


# --- draws within a pool


def choice(key, before, round, available):
    """A cohort of three; tests of other numbers share the program."""
    config, state = before
    return config.build(NETWORK._replace(num_selected=3)).select(key, state, round, available)


def members(state, t, **changes):
    """Who is chosen in many draws, [draws, K]."""
    return drawn(choice, 8000, (CONFIG.replace(**changes), state), t, np.ones(K, bool)) > 0


def test_exploited_clients_are_drawn_by_score_above_the_cutoff():
    state = CONFIG.build(NETWORK).init()
    last = 1 + np.arange(K) % 5
    utility = np.linspace(2, 30, K)[np.random.default_rng(3).permutation(K)]
    state = state._replace(last_round=last.astype(np.int32), utility=utility.astype(np.float32))
    slow = slow_oort()
    slow.last = dict(enumerate(last.tolist()))
    slow.utility = dict(enumerate(utility.tolist()))
    score = np.array(list(slow.exploit_scores(9, range(K)).values()))
    # All have been seen, so all three are exploited.
    pool = np.flatnonzero(score >= 0.3 * np.sort(score)[-3])
    assert 4 <= len(pool) < K
    found = members(state, 9, cutoff=0.3)
    probability = np.zeros(K)
    probability[pool] = inclusion(score[pool], 3)
    assert off(found, probability).max() < 4.5
    # Negative controls: uniform within the pool, and draws from all clients.
    uniform = np.zeros(K)
    uniform[pool] = 3 / len(pool)
    assert off(found, uniform).max() > 20
    assert off(found, inclusion(score, 3)).max() > 20


def test_explored_clients_are_drawn_by_prior_within_the_window():
    state = CONFIG.build(NETWORK).init()
    prior = np.array(list(slow_oort().explore_scores(range(K)).values()))
    found = members(state, 1, exploration=1.0, window=2.75)
    pool = np.argsort(-prior)[:9]  # 8.25, rounded up
    probability = np.zeros(K)
    probability[pool] = inclusion(prior[pool], 3)
    assert off(found, probability).max() < 4.5
    assert off(found, inclusion(prior, 3)).max() > 20


# --- pacer


@pytest.mark.parametrize(
    ("before", "now", "start", "expected"),
    [
        (10.0, 10.5, 40, 45),
        (10.0, 9.5, 40, 45),
        (10.0, 10.0, 98, 100),
        (10.0, 10.0, 100, 100),
        (10.0, 13.0, 40, 40),
        (10.0, 5.0, 40, 40),
        (10.0, 59.0, 40, 40),
        (10.0, 61.0, 40, 35),
        (10.0, 61.0, 7, 5),
        (10.0, 61.0, 5, 5),
        (0.0, 1.0, 40, 35),
        (0.0, 0.0, 40, 45),
    ],
)
def test_pacer(before, now, start, expected):
    history = np.array([before] * 5 + [now] * 5, np.float32)
    for round, moves in [(4, False), (5, False), (9, False), (10, True), (13, False), (15, True)]:
        after = paced(np.float32(start), history, np.asarray(round))
        assert float(after) == (expected if moves else start)


# --- squared loss


@functools.cache
def squares():
    """(learning rate -> squared losses that training reports, those of each sample before it)."""
    data, network, sizes = Digits().load(), Linear().network(10), [23, 40, 7, 64]
    start = np.cumsum([0, *sizes[:-1]])
    order = np.random.default_rng(0).permutation(len(data.y_train))
    parts = (np.asarray(each, np.int32) for each in (order, start, sizes))
    partition = Partition(*jax.device_put((*parts, np.ones(4, np.float32))))
    inputs = data.to_input(data.x_train)
    variables = jax.jit(network.init)(jax.random.key(1), inputs[:1])

    @jax.jit
    def reported(learning_rate):
        training = LocalTraining(
            *(network, Classification(), optax.sgd(learning_rate), data),
            *(LocalWork(10, 5, 1.0, None), 64, False, False),
        )
        opt_state = training.optimizer.init(trained_part(variables))

        beside = training.work.steps(partition.size)

        def one(client):
            key = jax.random.fold_in(jax.random.key(2), client)
            slot, steps = Slot(client, opt_state), training.work.steps(partition.size[client])
            return train_locally(
                training, variables, partition, slot, steps, Keys(key, key), beside
            )

        return jax.vmap(one)(jnp.arange(4))[2].square

    layer, each = variables["params"]["output"], []
    x, y = np.asarray(inputs).reshape(len(order), -1), np.asarray(data.y_train)
    for first, size in zip(start, sizes, strict=True):
        rows = order[first : first + size]
        each.append(softmax_losses(layer["kernel"], layer["bias"], x[rows], y[rows]) ** 2)
    return reported, each


def test_square_loss_is_the_mean_over_all_samples_used():
    reported, each = squares()
    ours = np.asarray(reported(0.0))
    # Batches of 10 do not divide 23, 40 and 7.
    np.testing.assert_allclose(ours[:3], [v.mean() for v in each[:3]], rtol=1e-4)
    # The last client uses 50 of 64 samples, a window of its data.
    windows = [np.roll(each[3], -s)[:50].mean() for s in range(64)]
    assert np.abs(np.array(windows) - ours[3]).min() < 1e-4
    # Negative control: the last batch alone (FedScale), here 3 of 23 samples, is far off.
    triples = np.abs(np.lib.stride_tricks.sliding_window_view(each[0], 3).mean(axis=1) - ours[0])
    assert np.median(triples) > 0.1
    # At a learning rate that moves the weights the losses on the way are smaller.
    assert np.median(np.asarray(reported(0.05)) / ours) < 0.98


def test_diverged_client_does_not_break_selection():
    available = [np.arange(K) % 8 != t % 8 for t in range(1, 40)]

    def diverged(t, selection):
        return observation(np.ones(M), square_loss=[np.nan, np.inf, 1.0][t % 3])

    for each in play(compiled(), available, diverged):
        assert each.available[each.selection.clients].all()
        assert len(set(each.chosen)) == M
