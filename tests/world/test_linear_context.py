"""Latency that is linear in what clients can report: features, samples, moments."""

import jax
import numpy as np
import pytest

from pause_jax.world.latency import LATENCIES, LinearContext

K = 8


def slow_latency(rng, model, rounds):
    """Latencies [rounds, K] in NumPy, from the published setting."""
    kind = np.arange(K) // 2
    mu = rng.uniform(0.5, 2.0, (rounds, K))
    bandwidth = rng.uniform(2e6, 4e6, (rounds, K))
    efficiency = np.log(1 + np.array([1000, 100, 10, 1])[kind])
    x = model.scale * ((kind + 1) / mu + 2 * 2**20 / (bandwidth * efficiency))
    return np.maximum(model.min_latency, x * (1 + model.spread * rng.uniform(-1, 1, (rounds, K))))


def drawn(model, rounds, of="sample"):
    keys = jax.random.split(jax.random.key(0), rounds)
    return np.asarray(jax.jit(jax.vmap(lambda key: getattr(model, of)(key, K)))(keys), float)


@jax.jit
def moments(model):
    return model.expected_latency(K), model.expected_speed(K)


@pytest.mark.parametrize(
    "model", [LinearContext(), LinearContext(scale=0.05, spread=0.6, min_latency=0.08)]
)
def test_moments_match_an_independent_simulation(model):
    rounds = 200_000
    slow = slow_latency(np.random.default_rng(0), model, rounds)
    latency, speed = moments(model)
    for found, samples in ((latency, slow), (speed, model.min_latency / slow)):
        error = samples.std(axis=0) / rounds**0.5
        assert (np.abs(samples.mean(axis=0) - np.asarray(found, float)) < 5 * error + 1e-4).all()
        # Tight enough to tell the classes apart.
        assert (np.abs(samples.mean(axis=0) - np.asarray(found, float)[::-1]) > 50 * error).all()


def test_samples_match_the_oracles_distribution():
    model, rounds = LinearContext(), 50_000
    fast, slow = drawn(model, rounds), slow_latency(np.random.default_rng(1), model, rounds)
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    np.testing.assert_allclose(
        np.quantile(fast, shares, axis=0), np.quantile(slow, shares, axis=0), rtol=0.02
    )
    assert fast.min() >= model.min_latency


def test_without_noise_latency_is_linear_in_the_features_of_the_same_round():
    model = LinearContext(spread=0.0, min_latency=1e-3)
    seconds, features = drawn(model, 50), drawn(model, 50, "features")
    assert features.shape == (50, K, LinearContext.num_features)
    for k in range(K):
        coefficients, residual, *_ = np.linalg.lstsq(features[:, k], seconds[:, k], rcond=None)
        assert residual.max() < 1e-9
        kind = k // 2
        expected = 0.1 * (kind + 1), 0.1 / np.log(1 + 10.0 ** (3 - kind))
        np.testing.assert_allclose(coefficients, expected, rtol=1e-4)


@pytest.mark.parametrize("model", [model for model in LATENCIES if model is not LinearContext])
def test_model_without_context_has_constant_features(model):
    features = model().features(jax.random.key(0), K)
    np.testing.assert_array_equal(features, np.ones((K, model.num_features)))
