"""Index rules against slow oracles and statistics."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from pause_jax import Asynchronous, SimConfig, policies, sweep
from pause_jax.bandit import ClientStats, Selection
from pause_jax.bandit.reward import Reward
from pause_jax.policies import INDEX_RULES, KlUcb, Thompson, Ucb, UcbV, UsefulRate
from pause_jax.policies.index import bernoulli_kl
from pause_jax.world.latency import Latency
from tests.support.network import context, observation

K = 6


@pytest.fixture
def history():
    """Observed speeds of each client; the last was never tried."""
    rng = np.random.default_rng(1)
    return [rng.beta(2, 3, n) for n in (1, 3, 10, 40, 200)] + [np.array([])]


def played(rule, history):
    """The rule's state after observing the history one speed at a time."""
    index = rule.build(context([1] * K, 2))
    state, update = index.init(), jax.jit(index.update)
    for k, speeds in enumerate(history):
        for speed in speeds.astype(np.float32):
            selection = Selection(np.asarray([k]), np.ones(1, np.float32))
            state = update(state, selection, speed[None], observation([0.05 / speed]))
    return index, state


def values(index, state, round):
    """The index of each client, under jit."""
    return np.asarray(jax.jit(index.value)(jax.random.key(0), state, np.asarray(round)))


LOG = math.log(50)


@pytest.mark.parametrize(
    ("rule", "slow", "rtol"),
    [
        (Ucb(speed_weight=3.0), lambda x: 3 * x.mean() + math.sqrt(3 * LOG / len(x)), 1e-5),
        (
            UcbV(),
            lambda x: x.mean() + math.sqrt(2 * x.var() * LOG / len(x)) + 3 * LOG / len(x),
            2e-3,
        ),
        (
            UsefulRate(speed_weight=3.0),
            lambda x: 3 * len(x) / (1 / x).sum() + math.sqrt(3 * LOG / len(x)),
            1e-5,
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_index_matches_its_formula(rule, slow, rtol, history):
    index, state = played(rule, history)
    expected = [slow(x) if len(x) else math.inf for x in history]
    np.testing.assert_allclose(values(index, state, 50), expected, rtol)


def test_kl_ucb_solves_its_equation(history):
    index, state = played(KlUcb(), history)
    value = values(index, state, 50)

    def kl(p, q):
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    for k, x in enumerate(history[:-1]):
        mean, level = x.mean(), math.log(50) / len(x)
        top = 1 - 1e-9
        slow = (
            optimize.brentq(lambda q, m=mean, c=level: kl(m, q) - c, mean, top)
            if kl(mean, top) > level
            else 1.0
        )
        assert float(value[k]) == pytest.approx(slow, abs=2e-4)
    assert value[-1] == math.inf


def test_kl_is_zero_only_at_itself():
    p, kl = np.array([0.0, 0.3, 1.0]), jax.jit(bernoulli_kl)
    np.testing.assert_allclose(kl(p, p), 0, atol=1e-7)
    assert (np.asarray(kl(p, np.array([0.1, 0.4, 0.9]))) > 0).all()


def test_thompson_draws_from_its_posterior():
    index = Thompson().build(context([1] * K, 2))
    state = ClientStats(np.array([10, 0, 1, 1, 1, 1]), np.array([0.3, 0, 0.5, 0.5, 0.5, 0.5]))
    draw = jax.jit(jax.vmap(index.value, in_axes=(0, None, None)))
    draws = np.asarray(draw(jax.random.split(jax.random.key(0), 5000), state, np.asarray(5)))
    first = draws[:, 0]
    assert stats.kstest(first, stats.beta(4, 8).cdf).pvalue > 1e-3
    assert stats.kstest(first, stats.beta(3, 7).cdf).pvalue < 1e-6
    assert (draws[:, 1] == math.inf).all()


def test_stale_updates_are_less_useful_and_lost_ones_useless():
    index = UsefulRate(discount=0.7).build(context([1] * K, 3))
    selection = Selection(np.array([4, 1, 2]), np.array([0.5, 0.5, 0.0], np.float32))
    state = index.init()
    update = jax.jit(index.update)
    for stale, received in ((3, True), (0, False)):
        seen = observation([0.5, 0.25, 9.0], received=[received, True, True])
        seen = seen._replace(staleness=np.full(3, stale))
        state = update(state, selection, 0.05 / seen.latency, seen)
    value = values(index, state, 9)
    bonus = math.sqrt(4 * math.log(9) / 2)
    assert value[4] == pytest.approx(0.05 * 4**-0.7 / 1.0 + bonus, rel=1e-5)
    assert value[1] == pytest.approx(0.05 * (4**-0.7 + 1) / 0.5 + bonus, rel=1e-5)
    assert (value[[0, 2, 3, 5]] == math.inf).all()
    np.testing.assert_array_equal(index.counts(state), [0, 2, 0, 0, 2, 0])


class Erratic(Latency):
    """Even clients take 0.5 s, odd ones 0.1 or 5 s: the larger mean speed, and fewer answers."""

    name: ClassVar[str] = "erratic"

    def sample(self, key, num_clients):
        steady = jnp.arange(num_clients) % 2 == 0
        odd = jnp.where(jax.random.bernoulli(key, shape=(num_clients,)), 0.1, 5.0)
        return jnp.where(steady, 0.5, odd)

    def expected_latency(self, num_clients):
        return jnp.where(jnp.arange(num_clients) % 2 == 0, 0.5, 2.55)

    def expected_speed(self, num_clients):
        return jnp.where(jnp.arange(num_clients) % 2 == 0, 0.1, 0.255)


@pytest.mark.nightly
def test_useful_rate_yields_more_useful_updates_than_mean_speed():
    config = SimConfig(
        num_clients=20, num_selected=1, num_rounds=600, latency=Erratic(), learning=None,
        reward=Reward(alpha=0.0, gamma=0.0), clock=Asynchronous(concurrency=4, buffer=1),
        track_regret=False,
    )  # fmt: skip
    configs = {
        rule.name: config.replace(policy=policies.Pause(index=rule(speed_weight=20.0)))
        for rule in (Ucb, UsefulRate)
    }
    record = ("useful", "clock")
    runs = sweep(configs, jax.random.key(0), record=record, progress=False).isel(seed=0)
    a_second = runs.useful.sum("round") / runs.clock.isel(round=-1)
    speed, rate = (float(a_second.sel(config=rule.name)) for rule in (Ucb, UsefulRate))
    # Four slots at two answers a second make eight at most.
    assert 2 * speed < rate < 8


@pytest.fixture(scope="module")
def total_regret():
    """Total regret of each rule and of random choice: policies of one sweep share a program."""
    config = SimConfig(num_clients=20, num_rounds=400, learning=None, reward=Reward(alpha=3.0))
    configs = {
        rule.name: config.replace(policy=policies.Pause(index=rule())) for rule in INDEX_RULES
    }
    configs["random"] = config.replace(policy=policies.Random())
    runs = sweep(configs, jax.random.key(0), record=("regret",), progress=False)
    return runs.regret.isel(seed=0).sum("round")


@pytest.mark.nightly
@pytest.mark.parametrize("rule", INDEX_RULES)
def test_every_index_has_far_less_regret_than_random(rule, total_regret):
    pause, random = (total_regret.sel(config=name) for name in (rule.name, "random"))
    assert pause < 0.75 * random
