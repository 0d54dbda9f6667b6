"""The clients' optimisers: those that take each weight by itself move a small model at once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pause_jax.learning.optimizer import ELEMENTWISE, ONE_VECTOR, made, optimizers

SHAPES = {"kernel": (4, 3), "bias": (3,), "gain": (2, 2, 2)}


def drawn(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=size).astype(np.float32) for name, size in SHAPES.items()}


def moved(*optimizers: optax.GradientTransformation) -> list[list[np.ndarray]]:
    """Parameters after four steps along given gradients, by each optimiser."""

    @jax.jit
    def after(params, gradients):
        found = []
        for optimizer in optimizers:
            moving, state = params, optimizer.init(params)
            for gradient in gradients:
                moves, state = optimizer.update(gradient, state, moving)
                moving = optax.apply_updates(moving, moves)
            found.append(jax.tree.leaves(moving))
        return found

    return jax.device_get(after(drawn(0), [drawn(step) for step in range(1, 5)]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`optimistic_adam` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(optimizers()))
def test_only_elementwise_optimisers_step_equally_on_one_vector(name):
    made_by = optimizers()[name]
    by_layers, as_vector, ours = moved(made_by(0.1), optax.flatten(made_by(0.1)), made(name, 0.1))
    apart = max(np.abs(a - b).max() for a, b in zip(by_layers, as_vector, strict=True))
    if name in ELEMENTWISE:
        assert apart < 1e-6
    else:
        assert apart > 1e-4
    for actual, expected in zip(ours, by_layers, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_only_small_models_of_one_dtype_become_one_vector():
    def moments(params):
        return len(jax.tree.leaves(made("adam", 0.1).init(params)[0].mu))

    assert moments(drawn(0)) == 1
    assert moments({**drawn(0), "wide": np.zeros(ONE_VECTOR, np.float32)}) == 4
    assert moments({**drawn(0), "half": np.zeros(3, jnp.bfloat16)}) == 4
    assert len(jax.tree.leaves(made("lamb", 0.1).init(drawn(0))[0].mu)) == 3
    # One of the user's own may look at layers.
    assert len(jax.tree.leaves(made(optax.adam, 0.1).init(drawn(0))[0].mu)) == 3
