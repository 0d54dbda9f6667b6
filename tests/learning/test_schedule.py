"""Learning-rate schedules against plain formulas; whole runs with them: test_whole_round.py."""

import math

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig
from pause_jax.config import validate
from pause_jax.learning import ConstantRate, CosineDecay, Learning, StepDecay

pytestmark = pytest.mark.slow

BASE = 0.02
ROUNDS = 1 + np.arange(40)


def rates(schedule, rounds=ROUNDS):
    return np.asarray(jax.jit(jax.vmap(lambda t: schedule.rate(BASE, t)))(np.asarray(rounds)))


@pytest.mark.parametrize(("every", "factor"), [(1, 0.9), (3, 0.1), (7, 0.5), (40, 0.5), (5, 1.0)])
def test_step_decay_matches_step_lr(every, factor):
    # PyTorch's StepLR, told after every round: a step whenever their number is a multiple.
    expected, rate = [], BASE
    for done in range(len(ROUNDS)):
        if done and done % every == 0:
            rate *= factor
        expected.append(rate)
    np.testing.assert_allclose(rates(StepDecay(every=every, factor=factor)), expected, rtol=1e-5)


@pytest.mark.parametrize("every", [41, 61])
def test_step_decay_counts_in_integers(every):
    # 41 times the float32 next to 1 / 41 is less than 1, and XLA divides by constants in this way.
    before, after, later = rates(StepDecay(every=every, factor=0.5), [every, every + 1, 2 * every])
    np.testing.assert_allclose([before, after, later], [BASE, BASE / 2, BASE / 2], rtol=1e-6)


@pytest.mark.parametrize(("horizon", "final"), [(10.0, 0.0), (25.0, 0.3), (39.0, 1.0)])
def test_cosine_decay_is_half_a_cosine_and_then_constant(horizon, final):
    expected = [
        BASE * final
        + BASE * (1 - final) * (1 + math.cos(math.pi * min(t - 1, horizon) / horizon)) / 2
        for t in ROUNDS
    ]
    actual = rates(CosineDecay(horizon=horizon, final=final))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-8)
    assert actual[0] == np.float32(BASE)
    assert np.all(np.diff(actual) <= 0)


def test_constant_rate_is_returned_unchanged():
    base = object()
    assert ConstantRate().rate(base, np.int32(1)) is base


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (StepDecay(every=0), "learning.schedule.every = 0"),
        (StepDecay(factor=0.0), "learning.schedule.factor = 0.0"),
        (StepDecay(factor=1.5), "learning.schedule.factor = 1.5"),
        (CosineDecay(horizon=0.0), "learning.schedule.horizon = 0.0"),
        (CosineDecay(final=-0.1), "learning.schedule.final = -0.1"),
    ],
)
def test_bad_schedule_gives_one_message(schedule, words):
    with pytest.raises(ConfigError, match=words):
        validate(SimConfig(learning=Learning(schedule=schedule)))
