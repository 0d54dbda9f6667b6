"""``simulate`` under JAX's transformations, in processes that have compiled nothing before."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Asynchronous, SimConfig, simulate
from pause_jax.learning import Digits, Learning, Linear
from pause_jax.policies import named

CONFIGS = {
    "sa_pause": SimConfig(
        num_clients=6,
        num_selected=2,
        num_rounds=3,
        learning=None,
        policy=named("sa_pause").override({"search.steps": 5}),
        track_regret=False,
    ),
    "learning": SimConfig(
        num_clients=6,
        num_selected=2,
        num_rounds=2,
        learning=Learning(data=Digits(num_train=60), model=Linear(), max_steps=1),
        policy=named("random"),
        track_regret=False,
    ),
    "asynchronous": SimConfig(
        num_clients=6,
        num_selected=2,
        num_rounds=3,
        learning=None,
        policy=named("random"),
        clock=Asynchronous(concurrency=4, buffer=2),
        track_regret=False,
    ),
}


def check(config: SimConfig) -> None:
    """Compare the clock of a run under each transformation with that of the run alone."""

    def clock(key: jax.Array) -> jax.Array:
        return simulate(config, key, record=("clock",)).clock

    def nothing(key: jax.Array) -> jax.Array:
        return jnp.zeros(config.num_rounds)

    key, keys = jax.random.key(0), jax.random.split(jax.random.key(1), 2)
    single = {
        "jit": jax.jit(clock)(key),
        "checkpoint": jax.checkpoint(clock)(key),
        "cond": jax.lax.cond(jnp.asarray(True), clock, nothing, key),
    }
    several = {
        "scan": jax.lax.scan(lambda carry, each: (carry, clock(each)), 0, keys)[1],
        "vmap": jax.vmap(clock)(keys),
        "vmap of jit": jax.vmap(jax.jit(clock))(keys),
        "jit of vmap": jax.jit(jax.vmap(clock))(keys),
    }
    assert jax.eval_shape(clock, key).shape == (config.num_rounds,)
    assert len(jax.make_jaxpr(clock)(key).out_avals) == 1
    for name, found in single.items():
        np.testing.assert_allclose(found, clock(key), rtol=1e-6, err_msg=name)
    for name, found in several.items():
        expected = np.stack([clock(each) for each in keys])
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", CONFIGS)
def test_run_is_the_same_under_every_transformation(name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.test_transformations", name],
        env=os.environ | {"PYTHONPATH": ".", "XLA_FLAGS": ""},  # programs of users have options
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    check(CONFIGS[sys.argv[1]])
