"""FedCS against a slow oracle: order, deadline, who can be a candidate, cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.policies import Answer, FedCs
from pause_jax.policies.fedcs import greedy
from tests.reference import fedcs as oracle
from tests.support.network import context, off

pytestmark = pytest.mark.slow

K = 8


@functools.cache
def compiled():
    return jax.jit(greedy, static_argnums=3)


def instances(count=120):
    """Random (update, upload, usable, most, deadline); some with slow updates, some uploads."""
    rng = np.random.default_rng(0)
    for i in range(count):
        update = rng.uniform(0.05, 2.0, K) * (0.3 if i % 3 == 0 else 1)
        upload = rng.uniform(0.05, 0.5, K)
        usable = rng.random(K) < 0.8
        yield update, upload, usable, (2, 4, K)[i % 3], rng.uniform(0.1, 3.0)


def ours(update, upload, usable, most, deadline):
    mask = compiled()(update, upload, usable, most, deadline)
    return set(np.flatnonzero(mask).tolist())


def test_accepted_clients_match_the_oracle():
    sizes, plain = set(), 0
    for update, upload, usable, most, deadline in instances():
        candidates = np.flatnonzero(usable).tolist()
        slow = oracle.greedy(candidates, update, upload, deadline, most=most)
        accepted = ours(update, upload, usable, most, deadline)
        assert accepted == set(slow)
        if accepted:
            assert oracle.schedule(slow, update, upload) < deadline + 1e-6
        sizes.add(len(accepted))
        if most == K:
            # Negative control: in order of total times, without the overlap.
            plain += accepted != set(oracle.smallest_first(candidates, update, upload, deadline))
    assert sizes >= {0, 1, 2, 3, 4, 5}
    assert plain >= 3


def test_hand_made_instance():
    # Client 0 is accepted first (1.1 s); 1's update then overlaps with 0's upload: 1.1 + 0.2.
    update, upload = np.array([1.0, 1.1, 5.0, 0.9]), np.array([0.1, 0.2, 0.1, 0.8])
    everyone = np.ones(4, bool)
    assert ours(update, upload, everyone, 4, 1.2) == {0}
    assert ours(update, upload, everyone, 4, 1.35) == {0, 1}
    # 2 is next by none of the rules; 3 adds 0.8 and 2 adds 3.8.
    assert ours(update, upload, everyone, 4, 2.2) == {0, 1, 3}
    assert ours(update, upload, everyone, 4, 6.0) == {0, 1, 2, 3}
    # The deadline itself is too late.
    assert ours(np.array([0.5]), np.array([0.25]), np.ones(1, bool), 1, 0.75) == set()


# --- the policy


M, SPEED = 3, np.linspace(0.05, 0.6, K)
CONFIG = FedCs(candidates=5, deadline=0.9, upload_share=0.5)


@functools.cache
def rounds(deadline, probability):
    """(available, asked, chosen by slot or -1, weights) of many single rounds."""
    keys = jax.random.split(jax.random.key(0), 6000)
    return jax.device_get(many(CONFIG.replace(deadline=deadline), probability, keys))


@jax.jit
def many(config, probability, keys):
    speed = jnp.asarray(SPEED, jnp.float32)
    policy = config.build(context(1 + np.arange(K), M, expected_latency=speed))

    def one(key):
        ask_key, select_key, present_key = jax.random.split(key, 3)
        available = jax.random.bernoulli(present_key, probability, (K,))
        clients, asked = policy.query.ask(ask_key, policy.init(), jnp.asarray(1), available)
        state = policy.query.receive(
            policy.init(), clients, asked, Answer(jnp.ones(5), jnp.ones((5, 1)))
        )
        selection, _ = policy.select(select_key, state, jnp.asarray(1), available)
        asked_mask = jnp.zeros(K, bool).at[clients].set(asked)
        chosen = jnp.where(selection.active, selection.clients, -1)
        return available, asked_mask, chosen, selection.weights

    return jax.vmap(one)(keys)


@pytest.mark.parametrize("deadline", [0.25, 0.4, 0.8, 4.9])
def test_policy_matches_the_oracle_on_its_candidates(deadline):
    played = (each[:400] for each in rounds(deadline, 0.7))
    for available, asked, chosen, weights in zip(*played, strict=True):
        assert not (asked & ~available).any()
        assert asked.sum() == min(5, available.sum())
        taken = chosen[chosen >= 0].tolist()
        candidates, half = np.flatnonzero(asked).tolist(), 0.5 * SPEED
        slow = oracle.greedy(candidates, half, half, deadline, most=M)
        assert set(taken) == set(slow)
        if slow:
            assert oracle.schedule(slow, half, half) < deadline
            share = (1.0 + chosen[chosen >= 0]) / (1.0 + chosen[chosen >= 0]).sum()
            np.testing.assert_allclose(weights[chosen >= 0], share, rtol=1e-5)
        else:
            np.testing.assert_array_equal(weights, 0)


def test_cohorts_vary_and_a_late_deadline_fills_them():
    sizes = {d: (rounds(d, 0.7)[2] >= 0).sum(axis=1) for d in (0.25, 0.4, 4.9)}
    assert set(sizes[0.25].tolist()) >= {0, 1}
    assert set(sizes[0.4].tolist()) >= {1, 2, 3}
    present = rounds(4.9, 0.7)[0].sum(axis=1)
    np.testing.assert_array_equal(sizes[4.9], np.minimum(present, M))


def test_candidates_are_uniform_among_the_available():
    _, asked, chosen, _ = rounds(0.8, 1.0)
    assert off(asked, np.full(K, 5 / K)).max() < 4.5
    # Negative control: who is chosen of them is far from uniform.
    taken = (chosen[..., None] == np.arange(K)).any(axis=1)
    assert off(taken, np.full(K, taken.mean())).max() > 20


def test_resource_requests_cost_time():
    config = SimConfig(
        num_clients=K, num_selected=M, num_rounds=20, learning=None, track_regret=False
    )
    record = ("queried", "query_seconds")
    policy = FedCs(query_seconds=0.03)
    result = simulate(config.replace(policy=policy), jax.random.key(0), record=record)
    np.testing.assert_allclose(result.query_seconds, 0.03, rtol=1e-6)
    assert np.asarray(result.queried).sum() == 20 * 2 * M
    assert result.unnoised == ()
