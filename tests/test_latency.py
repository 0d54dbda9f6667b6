from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pause_jax.latency import LATENCIES, SpeedNormal, TenGroups, TwoGroups
from tests.reference import oracles

EVEN, ODD = 10, 7
# Those with a standard deviation; the one with a context is in test_linear_context.py.
MODELS = [model() for model in LATENCIES if hasattr(model(), "std")]
by_name = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


@partial(jax.jit, static_argnums=1)
def moments(model, num_clients):
    return model.expected_speed(num_clients), model.expected_latency(num_clients)


@partial(jax.jit, static_argnums=(2, 3))
def draw(model, key, num_clients, rounds):
    keys = jax.random.split(key, rounds)
    return jax.vmap(lambda key: model.sample(key, num_clients))(keys)


def speed_means(model, num_clients):
    return np.linspace(model.fastest, model.slowest, num_clients)


def group_means(model, num_clients):
    return np.array([model.slowest * (k * 10 // num_clients + 1) / 10 for k in range(num_clients)])


def quadrature(model, num_clients):
    """Both moments in float64, from the definition of the model's latency."""
    low = model.min_latency
    edges: tuple[float, ...]
    if isinstance(model, SpeedNormal):

        def latency(speed):
            return min(max(low / speed, low), 1.0) if speed > 0 else 1.0

        means, edges = speed_means(model, num_clients), (0.0, low, 1.0)
    else:

        def latency(seconds):
            return max(low, seconds)

        pick = oracles.two_groups_mean if isinstance(model, TwoGroups) else None
        means = pick(num_clients) if pick else group_means(model, num_clients)
        edges = (low,)
    speed, seconds = (
        [oracles.normal_moment(f, mean, model.std, edges) for mean in means]
        for f in (lambda x: low / latency(x), latency)
    )
    return np.array(speed), np.array(seconds)


@pytest.mark.parametrize("num_clients", [30, 7, 2, 1])
def test_two_groups_means_are_those_of_the_paper(num_clients):
    expected = oracles.two_groups_mean(num_clients)
    np.testing.assert_allclose(TwoGroups().mean(num_clients), expected, rtol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(TwoGroups().mean(num_clients), expected, rtol=1e-14)


def test_two_groups_means_by_hand():
    mean = np.asarray(TwoGroups().mean(30))
    np.testing.assert_allclose(mean[[0, 14, 15, 29]], [0.06, 0.2, 0.7 + 0.2 / 15, 0.9], rtol=1e-6)
    odd = np.asarray(TwoGroups().mean(7))
    np.testing.assert_allclose(odd[[0, 2, 3, 6]], [0.1, 0.2, 0.75, 0.9], rtol=1e-6)


@pytest.mark.parametrize("num_clients", [500, 10, 23])
def test_ten_groups_means(num_clients):
    mean = np.asarray(TenGroups().mean(num_clients))
    tenths, sizes = np.unique(np.round(mean * 10, 4), return_counts=True)
    np.testing.assert_allclose(tenths, np.arange(1, 11))
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(mean) >= 0).all()
    np.testing.assert_allclose(mean, group_means(TenGroups(), num_clients), rtol=1e-6)


def test_speed_normal_means_run_from_fastest_to_slowest():
    np.testing.assert_allclose(SpeedNormal().mean_speed(5), [0.9, 0.7, 0.5, 0.3, 0.1], rtol=1e-6)
    np.testing.assert_allclose(SpeedNormal().mean_speed(1), [0.9], rtol=1e-6)


@by_name
@pytest.mark.parametrize("num_clients", [EVEN, ODD])
def test_moments_match_quadrature(model, num_clients):
    expected = quadrature(model, num_clients)
    for found, value in zip(moments(model, num_clients), expected, strict=True):
        assert found.shape == (num_clients,)
        np.testing.assert_allclose(found, value, rtol=3e-6)
    with jax.enable_x64(True):
        for found, value in zip(moments(model, num_clients), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-9)


@by_name
@settings(max_examples=12)
@given(low=st.floats(0.02, 0.3), std=st.floats(0.01, 0.6))
def test_moments_match_quadrature_for_any_parameters(model, low, std):
    model = model.replace(min_latency=low, std=std)
    with jax.enable_x64(True):
        found = moments(model, ODD)
    for value, expected in zip(found, quadrature(model, ODD), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@by_name
@pytest.mark.parametrize("num_clients", [EVEN, ODD])
def test_moments_match_the_samples(model, num_clients):
    rounds = 50_000
    latency = np.asarray(draw(model, jax.random.key(3), num_clients, rounds), float)
    for found, samples in zip(
        moments(model, num_clients), (model.min_latency / latency, latency), strict=True
    ):
        standard_error = samples.std(axis=0) / np.sqrt(rounds)
        deviation = np.abs(samples.mean(axis=0) - np.asarray(found, float))
        # The second term is for clients whose latency hardly varies in float32.
        assert (deviation < 5 * standard_error + 1e-6).all()
        # The tolerance is tight enough to tell neighbouring means apart.
        assert (5 * standard_error < 0.05 * samples.mean(axis=0)).all()


@by_name
@pytest.mark.parametrize("num_clients", [EVEN, ODD])
def test_samples_are_at_least_tau_min_and_one_for_each_client(model, num_clients):
    latency = np.asarray(draw(model, jax.random.key(0), num_clients, 2000))
    assert latency.shape == (2000, num_clients)
    assert model.sample(jax.random.key(0), num_clients).shape == (num_clients,)
    assert (latency >= np.float32(model.min_latency)).all()
    assert np.isfinite(latency).all()
    if isinstance(model, SpeedNormal):
        assert (latency <= 1).all()
        assert latency.max() > 0.9
    wide = model.replace(std=1.0)
    cut = np.asarray(draw(wide, jax.random.key(0), num_clients, 2000))
    assert cut.min() == np.float32(model.min_latency)


@by_name
def test_samples_depend_on_the_key_and_clients_are_independent(model):
    one, again, other = (draw(model, jax.random.key(s), ODD, 4000) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    correlation = np.corrcoef(np.asarray(one), rowvar=False) - np.eye(ODD)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)
    serial = [np.corrcoef(client[:-1], client[1:])[0, 1] for client in np.asarray(one).T]
    assert np.abs(serial).max() < 5 / np.sqrt(4000)


@by_name
def test_moments_are_ordered_as_the_means(model):
    speed, seconds = map(np.asarray, moments(model, EVEN))
    assert (speed > 0).all()
    assert (speed <= 1).all()
    assert (np.diff(speed) < 0).all()
    assert (np.diff(seconds) > 0).all()
    assert (seconds >= model.min_latency).all()
    # Jensen: the mean of 1/x is more than one over the mean.
    assert (speed > model.min_latency / seconds).all()


def test_moments_are_traced_in_every_number():
    models = [TwoGroups(std=s, min_latency=low) for s, low in ((0.05, 0.05), (0.2, 0.1))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(list(map(jnp.asarray, leaves))), *models)
    together = jax.vmap(lambda model: model.expected_speed(ODD))(stacked)
    for row, model in zip(together, models, strict=True):
        np.testing.assert_allclose(row, model.expected_speed(ODD), rtol=1e-5)
    assert not np.allclose(*together)
