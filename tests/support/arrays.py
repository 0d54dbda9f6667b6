"""Random arrays and comparisons of trees of arrays."""

import jax
import numpy as np


def draw(seed: int, *shape: int) -> np.ndarray:
    """float64 values that float32 holds too."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(float)


def assert_near(actual, expected, rtol: float) -> None:
    """Every leaf, to a share of its largest entry."""

    def check(a, e):
        assert np.shape(a) == np.shape(e)
        assert np.abs(np.asarray(a) - e).max() <= rtol * np.abs(e).max()

    jax.tree.map(check, actual, expected)
