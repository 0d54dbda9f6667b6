"""Learning-rate schedules against plain formulas; whole runs with them: test_whole_round.py."""

import math

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, config_file, simulate, sweep
from pause_jax.base.compilation import Compilations
from pause_jax.config import validate
from pause_jax.learning import ConstantRate, CosineDecay, Iid, Learning, StepDecay
from tests.support.runs import KEY, LEARN

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


@pytest.mark.parametrize("schedule", [ConstantRate, StepDecay, CosineDecay])
def test_every_schedule_starts_at_the_base_rate_and_round_trips(schedule):
    assert rates(schedule(), [1])[0] == np.float32(BASE)
    config = SimConfig(learning=Learning(schedule=schedule()))
    assert config_file.loads(config_file.dumps(config)).learning == config.learning


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


STEADY = LEARN.replace(track_regret=False).override({"learning.partition": Iid()})
SLOWER = STEADY.override({"learning.schedule": StepDecay(every=3, factor=0.5)})
RECORD = ("clients", "train_loss")


def test_schedule_parameters_are_swept_in_one_program():
    configs = [SLOWER.override({"learning.schedule.factor": f}) for f in (0.2, 0.5, 1.0)]
    sweep(configs[:1], KEY, record=RECORD, max_batch=1, progress=False)
    compilations = Compilations()
    swept = sweep(configs, KEY, record=RECORD, max_batch=1, progress=False)
    assert compilations.programs == 0
    loss = np.asarray(swept.train_loss[:, 0])
    single = simulate(configs[1], KEY, record=RECORD)
    np.testing.assert_allclose(loss[1], single.train_loss, rtol=1e-4)
    np.testing.assert_array_equal(loss[:, :3], np.stack([loss[0, :3]] * 3))
    # A round's loss is met on the way, and so depends on the rate of that round at once.
    assert len(set(loss[:, 3].tolist())) == 3


def test_factor_of_one_is_the_constant_rate():
    one = simulate(SLOWER.override({"learning.schedule.factor": 1.0}), KEY, record=RECORD)
    steady = simulate(STEADY, KEY, record=RECORD)
    np.testing.assert_array_equal(one.clients, steady.clients)
    np.testing.assert_allclose(one.train_loss, steady.train_loss, rtol=1e-5)
