"""Power-of-Choice: candidates, ranking, ties, schedules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.policies import Answer, PowerOfChoice, Selection
from tests.reference import power_of_choice as oracle
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

SIZES = np.array([5, 1, 9, 3, 20, 2, 10])
K, M, D = len(SIZES), 2, 4
EVERYONE = np.ones(K, bool)


# --- candidates


@functools.cache
def candidates(loss):
    """Ranks of candidates in many first rounds [n, K], 0 of others: as asked, or, without a query,
    as chosen of m = D.
    """
    config = PowerOfChoice(loss=loss, candidates=D)
    policy = config.build(context(SIZES, D if loss == "stale" else M))

    def ask(key, state, round, available):
        if loss == "stale":
            clients = policy.select(key, state, round, available)[0].clients
        else:
            clients = policy.query.ask(key, state, round, available)[0]
        return Selection(clients, 1.0 + jnp.arange(D)), None

    return drawn(ask, 8000, policy.init(), 1, EVERYONE)


@pytest.mark.parametrize("loss", ["full", "stale"])
def test_candidates_are_drawn_by_data_size_without_replacement(loss):
    members = candidates(loss) > 0
    np.testing.assert_array_equal(members.sum(axis=1), D)
    assert off(members, oracle.inclusion(SIZES, D)).max() < 4.5
    # Negative controls: uniform candidates (FedLab), and probabilities in proportion to size.
    assert off(members, np.full(K, D / K)).max() > 20
    assert off(members, np.minimum(D * SIZES / SIZES.sum(), 0.999)).max() > 20


def test_the_first_candidate_is_drawn_in_proportion_to_size():
    first = candidates("full") == 1
    assert off(first, SIZES / SIZES.sum()).max() < 4.5
    assert off(first, np.full(K, 1 / K)).max() > 20


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
    policy = jitted(PowerOfChoice(candidates=D).build(context(SIZES, M)))
    rng = np.random.default_rng(0)
    losses = rng.uniform(0, 3, (60, K)).astype(np.float32)
    by_position, by_old_loss = 0, 0

    def answer(t, clients):
        asking.append(clients)
        return Answer(losses[t, clients], np.ones((D, 1), np.float32))

    asking: list[np.ndarray] = []
    available = rng.random((59, K)) < 0.8
    for each in play(policy, available, lambda *_: observation(np.ones(M)), answer):
        loss, among = losses[each.round], asking[-1][each.asked].tolist()
        assert len(among) == min(D, each.available.sum())
        chosen, active = set(each.chosen), each.selection.active
        assert chosen == oracle.largest(among, loss, M)
        # The plain mean of those that take part.
        np.testing.assert_allclose(
            each.selection.weights[active], 1 / max(len(chosen), 1), rtol=1e-6
        )
        if each.available.all():
            by_position += chosen != oracle.largest_by_position(among, loss, M, list(range(K)))
        # Old answers of clients that are not asked now do not count.
        present, known = np.flatnonzero(each.available), np.asarray(each.state.loss)
        by_old_loss += chosen != oracle.largest(present, known, M)
    assert by_position >= 5
    assert by_old_loss >= 5


def test_ties_are_broken_at_random():
    policy = PowerOfChoice(candidates=K).build(context(SIZES, M))
    state = policy.init()._replace(loss=jnp.ones(K), candidates=EVERYONE)
    members = drawn(policy.select, 4000, state, 1, EVERYONE) > 0
    assert off(members, np.full(K, M / K)).max() < 4.5
    assert off(members, oracle.inclusion(SIZES, M)).max() > 10


def test_stale_losses_rank_unchosen_clients_first():
    policy = PowerOfChoice(loss="stale", candidates=K).build(context(SIZES, M))
    assert policy.query is None
    rng = np.random.default_rng(1)
    latest, total, count = np.full(K, np.inf), np.zeros(K), np.zeros(K)
    differs, available = 0, rng.random((49, K)) < 0.8
    available[:4] = True

    def observe(t, selection):
        return observation(np.ones(M), loss=rng.uniform(0, 3, M))

    for each in play(jitted(policy), available, observe):
        chosen, present = each.chosen, np.flatnonzero(each.available)
        np.testing.assert_allclose(
            np.sort(latest[chosen]), np.sort(latest[present])[::-1][: len(chosen)][::-1]
        )
        assert len(chosen) == min(M, len(present))
        if (count > 0).all():
            # A running average, as in DanBenAmi's program, is another rule.
            differs += set(chosen) != oracle.largest(present, total / count, M)
        latest[chosen] = each.seen.loss[each.selection.active]
        total[chosen] += latest[chosen]
        count[chosen] += 1
    assert differs >= 5
