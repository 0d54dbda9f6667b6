"""When a round ends, who is lost on the way, and what becomes of updates that are late."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, Learning, Result, SimConfig, quantity, simulate
from pause_jax.bandit import Observation
from pause_jax.learning import Dataset, Digits, FedAvgM, Linear, Natural
from pause_jax.policies import NAMED, All, Policy, Random, RoundRobin, named
from pause_jax.privacy import NoPrivacy, PerCoordinateLaplace, Uniform
from pause_jax.run.rounds.round import arrival_of
from pause_jax.world.latency import LogNormal, Traces
from tests.deploy.test_selector import PLAIN
from tests.reference import refl as oracle
from tests.support.runs import assert_close, chosen_sets, endings, lost_of

pytestmark = pytest.mark.slow

KEY = jax.random.key(5)
BASE = SimConfig(
    num_clients=9, num_selected=5, num_rounds=25, learning=None, latency=LogNormal(),
    policy=Random(), privacy=NoPrivacy(), track_regret=False,
)  # fmt: skip
# One program serves a deadline and dropouts: the other one of them never bites.
RULES = {
    "deadline": {"deadline": 0.4, "dropout": 0.0},
    "wait_for": {"wait_for": 2},
    "dropout": {"deadline": 1e6, "dropout": 0.3},
    "all": {"deadline": 0.4, "wait_for": 3, "dropout": 0.3, "availability": 0.6},
}


@pytest.mark.parametrize("rule", RULES)
def test_round_ends_by_its_rule_and_averages_arrivals(rule):
    config = BASE.replace(**RULES[rule])
    result = simulate(config, KEY, record=("clients", "in_time", "latency", "clock", "counts"))
    seconds, in_time = zip(*endings(config, result, KEY), strict=True)
    np.testing.assert_allclose(result.latency, seconds, rtol=1e-6)
    np.testing.assert_allclose(result.clock, np.cumsum(seconds), rtol=1e-5)
    ours = [
        sorted(np.asarray(row)[np.asarray(here)].tolist())
        for row, here in zip(result.clients, result.in_time, strict=True)
    ]
    assert ours == [sorted(row) for row in in_time]
    missed = np.asarray(result.clients >= 0) & ~np.asarray(result.in_time)
    assert missed.any(), "the rule was never needed"
    assert np.asarray(result.in_time).any()
    # Who was chosen took part, whatever became of the update.
    everyone = np.bincount([k for row in chosen_sets(result) for k in row], minlength=9)
    np.testing.assert_array_equal(result.counts, everyone)


def test_policy_observes_nothing_for_an_empty_slot():
    seconds, ending = np.asarray([3.0, 1.0, 7.0], np.float32), jax.jit(arrival_of)

    def observed(*active):
        return ending(SimConfig(), seconds, np.asarray(active), np.asarray(active)).observed

    assert observed(True, True, False).tolist() == [3.0, 1.0, 3.0]
    assert observed(False, False, False).tolist() == [1.0, 1.0, 1.0]


LEARN = BASE.replace(
    num_clients=6, num_selected=3, num_rounds=6, eval_every=1, policy=RoundRobin(),
    learning=Learning(
        data=Digits(num_train=60), model=Linear(), batch_size=5, max_steps=2, optimizer="sgd",
        learning_rate=0.1,
    ),
)  # fmt: skip
# One program serves the two tests of who sends what.
SENT = ("clients", "in_time", "test_loss", "downloaded", "uploaded")


@pytest.mark.nightly
def test_policies_that_read_losses_run_with_lost_updates():
    """Of the others, those that differ in kind meet such rules in test_selector.

    Power-of-choice meets silent clients in test_when_spent. `refl` meets them in its own tests.
    """
    rules = {"deadline": 0.3, "dropout": 0.4, "stale_updates": "next"}
    power_of_choice = {"power_of_choice", "cpow_d", "rpow_d", "adapow_d"}
    for name in set(NAMED) - {*PLAIN, *power_of_choice, "refl"}:
        learning = LEARN.learning if NAMED[name].releases else None
        config = LEARN.replace(policy=NAMED[name], learning=learning, **rules)
        result = simulate(config, KEY, record=("first_nonfinite_round", "clock"))
        assert result.first_nonfinite_round == 0, name
        assert np.isfinite(result.clock).all(), name


def test_round_without_arrivals_leaves_the_model_unchanged():
    result = simulate(LEARN.replace(deadline=1e6, dropout=1.0), KEY, record=SENT)
    assert not np.asarray(result.in_time).any()
    assert len(set(np.asarray(result.test_loss).tolist())) == 1
    assert len(set(np.asarray(all_in_time().test_loss).tolist())) > 1


@functools.cache
def all_in_time() -> Result:
    return simulate(LEARN.replace(deadline=1e6, dropout=0.0), KEY, record=SENT)


class Listening(RoundRobin):
    """Remembers the last observation."""

    reads = ("loss", "square_loss", "update")

    def build(self, context):
        inner, m = super().build(context), context.num_selected

        def init():
            nothing, update = jnp.zeros(m), jnp.zeros((m, context.update_size))
            present, clock = jnp.zeros(context.num_clients) > 0, jnp.zeros(())
            seen = (nothing, nothing, nothing, update, nothing > 0, present, nothing > 0, clock)
            return inner.init(), Observation(*seen)

        def update(state, selection, observation):
            return inner.update(state[0], selection, observation), observation

        def select(key, state, round, available):
            return inner.select(key, state[0], round, available)

        return Policy(init, select, update)


def heard(field, *dims):
    """The quantity of one field of the last observation."""

    def value(r):
        return getattr(r.after.policy[1], field)

    value.__name__ = f"heard_{field}"
    return quantity("round", *dims)(value)


@quantity("round", "client")
def available(r):
    return r.available


OBSERVED = (
    *("clients", "in_time", "clock"),
    *(available, heard("available", "client"), heard("late", "slot"), heard("clock")),
    *(heard("loss", "slot"), heard("square_loss", "slot"), heard("update", "slot", "entry")),
    heard("latency", "slot"),
)


@pytest.mark.parametrize("late", ["lost", "next"])
def test_policy_observes_availability_lateness_time_and_arrivals(late):
    config = LEARN.replace(
        policy=Listening(), deadline=0.3, dropout=0.3, stale_updates=late, availability=0.7
    )
    result = simulate(config, KEY, record=OBSERVED)
    np.testing.assert_array_equal(result.heard_available, result.available)
    np.testing.assert_array_equal(result.heard_clock, result.clock)
    in_time = np.asarray(result.in_time)
    is_late = np.asarray(result.heard_late)
    chosen = np.asarray(result.clients) >= 0
    assert in_time.any()
    assert not (is_late & in_time).any()
    # Some of those that miss the round are late, and others are lost.
    assert is_late.any() == (late == "next")
    assert (chosen & ~in_time & ~is_late).any()
    # Of a client that is late, the server knows only how long it waited.
    seconds = np.diff(np.asarray(result.clock), prepend=0.0)
    np.testing.assert_allclose(np.max(result.heard_latency, axis=1), seconds, rtol=1e-5)
    for losses in (result.heard_loss, result.heard_square_loss):
        np.testing.assert_array_equal(np.isnan(losses), chosen & ~in_time)
    np.testing.assert_array_equal(np.any(np.asarray(result.heard_update) != 0, axis=2), in_time)


def test_server_momentum_waits_for_an_update():
    """One round trains, and then every budget is spent: a model that moves on moves by momentum."""
    config = LEARN.replace(
        num_selected=6,
        privacy=PerCoordinateLaplace(budget=Uniform(horizon=1.0)),
        learning=LEARN.learning.replace(server=FedAvgM(momentum=0.9)),
    )
    result = simulate(config.replace(when_spent="drop"), KEY, record=("test_loss",))
    loss = np.asarray(result.test_loss)
    assert len(set(loss.tolist())) == 1


@quantity("round", "client")
def steps_of_moments(r):
    """Local steps that each client's Adam state has seen."""
    (count,) = (x for x in jax.tree.leaves(r.after.learning.clients) if x.dtype == jnp.int32)
    return count


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ({"deadline": 0.5, "dropout": 0.0, "stale_updates": "lost"}, [3, 0]),
        ({"deadline": 1e6, "dropout": 1.0, "stale_updates": "lost"}, [0, 0]),
        ({"deadline": 0.5, "dropout": 0.0, "stale_updates": "next"}, [3, 3]),
        ({"deadline": 0.5, "dropout": 1.0, "stale_updates": "next"}, [0, 0]),
    ],
)
def test_client_state_advances_with_received_updates(rule, steps):
    config, data = pair(optimizer="adam", keep_optimizer_state=True, **rule)
    run = simulate(config.replace(num_rounds=3), KEY, data, record=(steps_of_moments,))
    assert run.steps_of_moments[-1].tolist() == steps


def test_stale_updates_change_nothing_without_late_updates():
    held = simulate(LEARN.replace(deadline=1e6, stale_updates="next"), KEY, record=("test_loss",))
    assert_close(held.variables, all_in_time().variables, rtol=1e-5, atol=1e-7)


# --- two clients, one always late, by hand: half the squared error, one full-batch step of SGD

RATE = 0.1
FAST_X, SLOW_X = np.array([[1.0, 2.0], [0.5, -1.0]]), np.array([[-1.0, 0.3], [2.0, 1.0]])
FAST_Y, SLOW_Y = np.array([1.0, -0.5]), np.array([0.2, 2.0])


def pair(optimizer="sgd", keep_optimizer_state=False, **rule):
    """Their config and data."""
    x, y = np.concatenate([FAST_X, SLOW_X]), np.concatenate([FAST_Y, SLOW_Y])
    data = Dataset.of(
        x.astype(np.float32), y.astype(np.float32), x.astype(np.float32), y.astype(np.float32),
        clients=np.array([0, 0, 1, 1]),
    )  # fmt: skip
    config = SimConfig(
        num_clients=2, num_selected=2, num_rounds=4, eval_every=1, policy=All(),
        latency=Traces.of([[0.1], [1.0]]), privacy=NoPrivacy(), track_regret=False,
        learning=Learning(
            model=Linear(), partition=Natural(), batch_size=2, max_steps=1,
            optimizer=optimizer, learning_rate=RATE, keep_optimizer_state=keep_optimizer_state,
        ),
        **rule,
    )  # fmt: skip
    return config, data


def two_clients(late, damping=None, deadline=0.5):
    """Runs of 1, 2, 3 and 4 rounds."""
    config, data = pair(deadline=deadline, stale_updates=late)
    config = config.replace(learning=config.learning.replace(stale_damping=damping))
    runs = [config.replace(num_rounds=t) for t in (1, 2, 3, 4)]
    return [simulate(run, KEY, data, record=("clock",)) for run in runs]


def step(weights, x, y):
    """A client's update of (w, b), flat."""
    error = x @ weights[:2] + weights[2] - y
    return -RATE * np.append(x.T @ error / 2, error.mean())


def weights_of(result):
    layer = result.variables["params"]["output"]
    return np.append(layer["kernel"], layer["bias"]).astype(np.float64)


def fast(weights):
    return step(weights, FAST_X, FAST_Y)


def slow(weights):
    return step(weights, SLOW_X, SLOW_Y)


@pytest.mark.parametrize(
    ("late", "damping"), [("lost", None), ("next", None), ("next", 0.35)], ids=str
)
def test_late_update_is_lost_or_averaged_in_the_next_round(late, damping):
    runs = two_clients(late, damping)
    # Nothing arrives in the first round.
    expected = weights_of(two_clients("next", damping, deadline=0.05)[0])
    held, factor = np.zeros(3), 0.0
    for result in runs:
        now = fast(expected)
        expected, held = expected + (now + factor * held) / (1 + factor), slow(expected)
        np.testing.assert_allclose(weights_of(result), expected, rtol=1e-4)
        factor = float(late == "next")
        if damping is not None:
            (factor,) = oracle.stale_weights([fast(expected)], [held], 1, damping)
            assert factor == pytest.approx((1 - damping) / 2 + damping * (1 - np.exp(-1)))
    assert float(runs[3].clock[-1]) == pytest.approx(4 * 0.5)


def test_only_late_updates_are_averaged_without_arrivals():
    runs = two_clients("next", deadline=0.05)
    start = weights_of(runs[0])
    expected = start + (fast(start) + slow(start)) / 2
    np.testing.assert_allclose(weights_of(runs[1]), expected, rtol=1e-5)


# --- bytes


def test_bytes_are_model_size_times_transfers():
    model = (64 * 10 + 10) * 4
    result = simulate(LEARN.replace(deadline=0.4, dropout=0.3), KEY, record=SENT)
    chosen = np.sum(np.asarray(result.clients) >= 0, axis=1)
    np.testing.assert_array_equal(result.downloaded, model * chosen)
    assert np.all(np.asarray(result.uploaded) <= np.asarray(result.downloaded))
    sent = chosen - [
        sum(lost[k] for k in row if k >= 0)
        for lost, row in zip(lost_of(LEARN.replace(dropout=0.3), KEY), result.clients, strict=True)
    ]
    np.testing.assert_array_equal(result.uploaded, model * np.asarray(sent))


def test_queried_client_receives_the_model_once():
    config = LEARN.replace(policy=named("power_of_choice"))
    result = simulate(config, KEY, record=("queried", "downloaded", "uploaded"))
    asked = np.diff(np.asarray(result.queried).sum(keepdims=True), prepend=0)[-1] / 6
    np.testing.assert_array_equal(result.downloaded, 2600.0 * asked)
    np.testing.assert_array_equal(result.uploaded, 2600.0 * 3)


# --- what cannot run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wait_for": 6}, r"wait_for = 6: must be <= 5, the number of clients"),
        ({"wait_for": 0}, r"wait_for = 0"),
        ({"deadline": 0.0}, r"deadline = 0.0: must be .*> 0"),
        ({"dropout": 1.1}, r"dropout = 1.1: must be .*<= 1"),
        (
            {"stale_updates": "next"},
            r"stale_updates = 'next': requires deadline or wait_for",
        ),
        (
            {"stale_updates": "soon", "deadline": 1.0},
            r"stale_updates = 'soon': must be one of lost, next",
        ),
    ],
)
def test_invalid_round_rules_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        simulate(BASE.replace(**changes), KEY)
