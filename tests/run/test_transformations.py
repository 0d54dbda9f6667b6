"""``simulate`` under JAX's transformations, in a process that has compiled nothing before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Asynchronous, SimConfig, simulate
from pause_jax.learning import Digits, Learning, Linear
from pause_jax.policies import named
from tests.support.command import python

ROUNDS = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=3,
    learning=Learning(data=Digits(num_train=60), model=Linear(), max_steps=1),
    policy=named("sa_pause").override({"search.steps": 5}),
    track_regret=False,
)
EVENTS = ROUNDS.replace(
    learning=None, policy=named("random"), clock=Asynchronous(concurrency=4, buffer=2)
)


def check(config: SimConfig) -> None:
    """Compare the clock of a run under all transformations, one in another, with the run alone.

    ``vmap`` alone, which runs one operation after another, is in test_simulate and test_horizon,
    ``vmap`` of ``jit`` in ``check_policy``.
    """

    def clock(key: jax.Array) -> jax.Array:
        return simulate(config, key, record=("clock",)).clock

    def nothing(key: jax.Array) -> jax.Array:
        return jnp.zeros(config.num_rounds)

    def in_a_branch(carry: int, key: jax.Array) -> tuple[int, jax.Array]:
        return carry, jax.lax.cond(jnp.isfinite(carry), jax.checkpoint(clock), nothing, key)

    @jax.jit
    @jax.vmap
    def clocks(keys: jax.Array) -> jax.Array:
        return jax.lax.scan(in_a_branch, 0, keys)[1]

    keys = jax.random.split(jax.random.key(0), (2, 2))
    assert jax.eval_shape(clock, keys[0, 0]).shape == (config.num_rounds,)
    expected = [[clock(key) for key in row] for row in keys]
    np.testing.assert_allclose(clocks(keys), expected, rtol=1e-6)


@pytest.mark.nightly
def test_run_is_the_same_under_every_transformation():
    # Programs of users have options.
    done = python("-m", "tests.run.test_transformations", PYTHONPATH=".", XLA_FLAGS="")
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    check(ROUNDS)
    check(EVENTS)
