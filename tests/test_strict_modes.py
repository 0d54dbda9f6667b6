"""The core under JAX's strict modes, in this process: each is a context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import simulate, sweep
from pause_jax.engine.recorder import chosen
from pause_jax.engine.simulate import prepare, whole_run
from pause_jax.presence import Diurnal
from tests import modes

KEY = jax.random.key(0)
BANDIT = modes.BANDIT
# optax's Adam raises a float to a whole number, which strict promotion refuses.
LEARN = modes.LEARN.override({"learning.optimizer": "sgd", "learning.keep_optimizer_state": False})
RULES = LEARN.replace(
    presence=Diurnal(), deadline=0.4, wait_for=2, late="next", dropout=0.1, max_seconds=9.0
)


def by_sgd(config):
    """The config with an optimiser that keeps dtypes apart."""
    if config.learning is None:
        return config
    return config.override({"learning.optimizer": "sgd", "learning.keep_optimizer_state": False})


def test_every_part_is_traced_without_mixing_dtypes():
    cases = {label: by_sgd(config) for label, config in modes.settings()}
    with jax.numpy_dtype_promotion("strict"):
        for label, config in {**cases, "every rule of a round": RULES}.items():
            config, data = prepare(config)
            run = jax.eval_shape(lambda key, c=config, d=data: whole_run(c, d, key, chosen(None)), KEY)
            assert run.clock.shape == (config.num_rounds,), label


@pytest.mark.parametrize(
    "mode",
    [
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.debug_nans(True),
        lambda: jax.enable_checks(True),
    ],
    ids=["strict promotion", "debug_nans", "enable_checks"],
)
def test_healthy_runs_pass(mode):
    with mode():
        for config in (BANDIT, LEARN):
            assert np.isfinite(simulate(config, KEY).clock).all()
        sweep({"one": BANDIT}, KEY[None], progress=False)


def test_debug_nans_refuses_a_model_that_is_not_a_number():
    config = LEARN.override({"learning.learning_rate": 1e30})
    assert simulate(config, KEY).first_nonfinite_round > 0
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="rounds 1 to 2: the model"):
        simulate(config, KEY)


def test_a_number_out_of_its_range_inside_of_a_jit_gives_nan():
    def reward(gamma):
        config = BANDIT.override({"reward.gamma": gamma})
        return simulate(config, KEY, record=("reward",)).reward

    compiled = jax.jit(reward)
    assert np.isfinite(compiled(0.5)).all()
    np.testing.assert_allclose(compiled(0.5), reward(0.5), rtol=1e-5)
    for wrong in (-0.5, jnp.inf):
        assert np.isnan(compiled(wrong)).all()
