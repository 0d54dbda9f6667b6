"""REFL against a slow oracle, against errors, and beside chance on a fleet that comes and goes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.policies import Refl, Selection
from pause_jax.world.availability import Diurnal, Intervals
from pause_jax.world.latency import LogNormal
from tests.reference import refl as oracle
from tests.run.test_arrival import available
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M, ROUNDS, PERIOD = 16, 4, 80, 40.0
SIZES = np.arange(1, K + 1)
CONFIG = Refl(memory=0.4)
# Client k is present from 2.5 k on, for 10 to 34 seconds of every 40.
START, STRETCH = 2.5 * np.arange(K), np.linspace(10, 34, K)


def present(time):
    return (time - START) % PERIOD < STRETCH


def forecast(clock, ahead):
    return ((clock + ahead - START) % PERIOD < STRETCH).astype(jnp.float32)


NETWORK = context(SIZES, M, forecast=forecast)


@functools.cache
def played():
    clock, rng = 0.0, np.random.default_rng(0)

    def observe(t, selection):
        nonlocal clock
        active, fate = selection.active, rng.random(M)
        late, lost = active & (fate < 0.3), active & (fate > 0.85)
        latency = rng.uniform(0.5, 5.0, M).astype(np.float32)
        clock = float(np.float32(clock + (latency[active].max() if active.any() else 1.0)))
        seen = observation(latency, received=active & ~late & ~lost)
        return seen._replace(late=late, clock=np.float32(clock))

    # Its question asks for no answer.
    policy = CONFIG.build(NETWORK)._replace(query=None)
    available = (present(clock) for _ in range(ROUNDS))
    return tuple(play(jitted(policy), available, observe))


def replay():
    """(oracle, available, our cohort) of each round."""
    slow = oracle.Refl(M, CONFIG.memory, float(np.mean(NETWORK.expected_latency)))
    for each in played():
        yield slow, each.available, each.chosen
        active, seen = each.selection.active, each.seen
        lasted = seen.latency[active].max() if active.any() else None
        slow.update(lasted, seen.late.sum(), float(seen.clock))


def test_cohorts_match_the_oracle():
    sizes = set()
    for slow, here, cohort in replay():
        priority = slow.priority(present)
        left = np.setdiff1d(np.flatnonzero(here), cohort)
        assert len(cohort) == slow.target(here)
        assert here[cohort].all()
        if len(left) and cohort:
            assert priority[cohort].max() <= priority[left].min()
        sizes.add(len(cohort))
    assert sizes >= {1, 2, 3, 4}


def test_equal_clients_are_drawn_uniformly():
    policy = CONFIG.build(NETWORK)
    unseen = Selection(np.arange(M), np.zeros(M, np.float32))
    state = jax.jit(policy.update)(policy.init(), unseen, observation(np.ones(M)))
    alone, everyone = CONFIG.build(context(SIZES, M)), np.ones(K, bool)
    for built, before in ((policy, state), (alone, alone.init())):
        members = drawn(built.select, 4000, before, 1, everyone) > 0
        assert off(members, np.full(K, M / K)).max() < 4.5


FLEET = SimConfig(
    num_clients=40, num_selected=4, num_rounds=300, policy=Refl(), learning=None,
    track_regret=False, latency=LogNormal(), availability_trace=Diurnal(period=60.0, share=0.5),
)  # fmt: skip


def test_clients_about_to_leave_are_chosen_and_reports_cost_time():
    record = ("clients", "clock", "latency", "queried", "query_seconds", available)
    result = jax.device_get(simulate(FLEET, jax.random.key(0), record=record))
    begins, chosen = np.append(0.0, result.clock[:-1]), result.clients
    place = np.arange(FLEET.num_clients) * 0.6180339887498949 % 1
    # Who is away a slot later, [T, K].
    away = ((begins[:, None] + 2 * result.latency.mean()) / 60 - place) % 1 >= 0.5
    ours = np.take_along_axis(away, chosen, axis=1)[100:][chosen[100:] >= 0].mean()
    random = away[100:][result.available[100:]].mean()
    assert ours > 3 * random
    np.testing.assert_allclose(result.query_seconds, 0.01, rtol=1e-6)
    np.testing.assert_array_equal(result.queried, result.available.sum(axis=0))


def test_pending_stragglers_reduce_the_cohort():
    rules = {"deadline": 0.15, "availability_trace": None}
    record = ("clients", "in_time")
    due = FLEET.replace(stale_updates="next", **rules)
    result = simulate(due, jax.random.key(0), record=record)
    active = np.asarray(result.clients) >= 0
    late = (active & ~np.asarray(result.in_time)).sum(axis=1)
    assert late.max() > 1
    np.testing.assert_array_equal(active.sum(axis=1)[1:], np.maximum(4 - late[:-1], 1))
    # Lost ones never come.
    never = FLEET.replace(stale_updates="lost", **rules)
    lost = simulate(never, jax.random.key(0), record=record)
    assert (np.asarray(lost.clients) >= 0).all()


def test_policy_runs_on_intervals():
    trace = Intervals.of([[(0.0, 5.0 + k)] for k in range(40)], period=60.0)
    config = FLEET.replace(availability_trace=trace, num_rounds=3)
    shapes = jax.eval_shape(lambda key: simulate(config, key), jax.random.key(0))
    assert shapes.clients.shape == (3, 4)
