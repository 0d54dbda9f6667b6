"""Local work: numbers of steps, laws by client, FedNova's weights, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pause_jax import ConfigError, simulate
from pause_jax.deploy.selector import Selector
from pause_jax.learning import Digits, Dirichlet, Iid, Learning, Linear, PerClient, UniformWork
from pause_jax.learning.learner import LearnerState
from pause_jax.learning.server import WEIGHT, averaged
from pause_jax.learning.work import LocalWork, gradient_weights, is_linear
from pause_jax.policies import named
from pause_jax.rng import keys
from pause_jax.run.preflight import prepare
from pause_jax.run.setup import learner_of, setup_of
from pause_jax.world.latency import Network
from tests.support.arrays import draw
from tests.support.runs import LEARN

KEY = jax.random.key(5)
LEARNING = Learning(
    data=Digits(num_train=240),
    partition=Iid(),
    model=Linear(),
    batch_size=10,
    max_steps=40,
    optimizer="sgd",
)
NETWORK = Network(download_bytes=1e4, upload_bytes=1e4)
CONFIG = LEARN.replace(num_rounds=3, policy=named("random"), latency=NETWORK, learning=LEARNING)


@pytest.mark.parametrize(
    ("epochs", "size", "total", "samples"),
    [(1.0, 25, 3, 25), (0.5, 25, 2, 20), (0.1, 25, 1, 10), (3.0, 25, 9, 75), (2.5, 25, 8, 70),
     (1.0, 1, 1, 1), (3.0, 1, 3, 3), (1.0, 900, 40, 400), (0.3, 100, 3, 30), (9.0, 100, 40, 400)],
)  # fmt: skip
def test_steps_are_passes_rounded_up_and_samples_count_once_per_pass(epochs, size, total, samples):
    work = LocalWork(batch_size=10, max_steps=40, epochs=epochs, local_steps=None)
    steps = work.steps(jnp.asarray([size]))
    assert steps.total.tolist() == [total]
    assert work.samples(jnp.asarray([size]), steps).tolist() == [samples]
    as_float = jnp.asarray([size], jnp.float32)
    assert work.samples(as_float, work.steps(as_float)).tolist() == [samples]


def test_local_steps_are_the_same_for_all_sizes_and_factors_multiply_them():
    work = LocalWork(batch_size=10, max_steps=40, epochs=1.0, local_steps=7)
    assert work.steps(jnp.asarray([1, 25, 900])).total.tolist() == [7, 7, 7]
    factors = jnp.asarray([0.1, 1.0, 2.0])
    assert work.steps(jnp.asarray([1, 25, 900]), factors).total.tolist() == [1, 7, 14]


STEPS = np.arange(1, 13)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_gradient_weights_of_momentum_are_those_of_the_paper(rho):
    found = gradient_weights(optax.sgd(0.3, momentum=rho), None, 12)
    expected = (STEPS - rho * (1 - rho**STEPS) / (1 - rho)) / (1 - rho)
    np.testing.assert_allclose(found, [0, *expected], rtol=1e-5)


def test_gradient_weights_of_sgd_and_of_the_proximal_term_are_those_of_the_paper():
    np.testing.assert_allclose(gradient_weights(optax.sgd(0.3), None, 12), [0, *STEPS], rtol=1e-5)
    rate, mu = 0.3, 0.4
    expected = (1 - (1 - rate * mu) ** STEPS) / (rate * mu)
    found = gradient_weights(optax.sgd(rate), mu, 12)
    np.testing.assert_allclose(found, [0, *expected], rtol=1e-5)


def test_only_optimisers_whose_update_is_a_sum_of_gradients_are_linear():
    linear = [optax.sgd(0.1), optax.sgd(0.1, momentum=0.9), optax.sgd(0.1, 0.9, nesterov=True)]
    others = [optax.adam(0.1), optax.sign_sgd(0.1), optax.rmsprop(0.1),
              optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
              optax.chain(optax.clip(0.1), optax.sgd(0.1))]  # fmt: skip
    assert all(map(is_linear, linear))
    assert not any(map(is_linear, others))


def test_fednova_with_equal_work_is_fedavg_and_with_unequal_work_is_not():
    updates, weights = np.float32(draw(0, 3, 4)), np.float32([0.5, 0.3, 0.2])
    start: Any = LearnerState(None, {"params": {"w": np.zeros(4, np.float32)}}, None, None)
    plain, _ = averaged(None, start, {"params": updates}, weights)
    for numbers, same in (([5, 5, 5], True), ([1, 5, 9], False)):
        steps = np.asarray(numbers, np.float32)
        normalised = {"params": updates / steps[:, None], WEIGHT: steps}
        nova, _ = averaged(None, start, normalised, weights)
        assert np.allclose(nova["params"]["w"], plain["params"]["w"], atol=1e-6) == same


@pytest.mark.slow
def test_a_selector_expects_the_work_that_a_simulation_expects():
    streams = keys.streams(KEY)
    learning = jax.jit(learner_of(*prepare(CONFIG)).init)(streams)  # the same for all work
    for work in (PerClient(values=(0.5, 1.0, 2.0, 1.0, 1.0, 3.0)), UniformWork(low=0.2, high=2.0)):
        config = CONFIG.override(
            {"learning.epochs": 2.0, "learning.max_steps": 60, "learning.work": work}
        )
        canonical, data = prepare(config)
        learner = learner_of(canonical, data)
        expected = setup_of(canonical, learner, learning, streams.world).context
        context = Selector(config, KEY)._context()
        for name in ("local_samples", "expected_latency", "expected_speed"):
            np.testing.assert_allclose(getattr(context, name), getattr(expected, name), rtol=1e-5)
    # A uniform factor of mean 1.1 on two epochs of 40 samples, in whole steps of 10 samples.
    assert 88 <= float(expected.local_samples[0]) < 98


FEDNOVA = {"learning.aggregation": "fednova"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning.epochs": 0.0}, "epochs"),
        ({"learning.epochs": 11.0}, "learning.max_steps = 40: must be >= 44"),
        ({"learning.local_steps": 41}, "must be >= 41"),
        ({"learning.local_steps": 4, "learning.epochs": 2.0}, "replaces epochs"),
        ({"learning.work": PerClient(values=(1.0, 2.0))}, "has 2 factors for 6 clients"),
        ({"learning.work": PerClient(values=(11.0,) * 6)}, "must be >= 44"),
        ({"learning.work": UniformWork(low=2.0, high=1.0)}, "Swap them"),
        ({**FEDNOVA, "learning.optimizer": "adam"}, "not a weighted sum of gradients"),
        ({**FEDNOVA, "learning.keep_optimizer_state": True}, "keep_optimizer_state = False"),
        ({**FEDNOVA, "learning.validation": 20}, "learning.validation = 0"),
    ],
)
def test_work_that_cannot_be_done_is_refused_before_the_run(changes, words):
    with pytest.raises(ConfigError) as caught:
        prepare(CONFIG.override(changes))
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_client_whose_work_is_cut_is_reported():
    config = CONFIG.override(
        {"learning.partition": Dirichlet(concentration=0.3), "learning.max_steps": 12}
    ).replace(num_rounds=1)
    simulate(config, KEY, record=("clock",))  # one pass may be cut
    with pytest.warns(UserWarning, match=r"max_steps = 12: cuts short the training of"):
        simulate(config.override({"learning.epochs": 2.0}), KEY, record=("clock",))
