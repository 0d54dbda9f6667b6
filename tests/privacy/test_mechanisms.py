"""Mechanisms for whole updates: the laws of their noise, their means and their errors."""

import functools
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from pause_jax.privacy import DuchiL2, GaussianMechanism, PrivUnitG, Projected
from pause_jax.privacy.gaussian import gaussian_multiplier, upper_quantile
from pause_jax.privacy.projection import walsh_hadamard
from pause_jax.privacy.sphere import best_cap, priv_unit_g

ACCEPT, REJECT = 1e-3, 1e-9
MANY, SIZE = 60_000, 8  # releases; of one number and size, so that a mechanism is compiled once
capped = jax.jit(best_cap)
of_unit_vectors = jax.jit(jax.vmap(priv_unit_g, (0, None, None)))


@jax.jit
def releases(mechanism, keys, update, epsilon):
    return jax.vmap(lambda key: mechanism.privatize(key, update, epsilon))(keys)


@functools.cache
def keys(number, seed=0):
    return jax.random.split(jax.random.key(seed), number)


def vector(length, dimension=SIZE, seed=5):
    x = np.random.default_rng(seed).standard_normal(dimension)
    return np.float32(length * x / np.linalg.norm(x))


def fits(sample, cdf):
    """Kolmogorov-Smirnov p-value."""
    return stats.kstest(np.asarray(sample, float).ravel(), cdf).pvalue


# ---------------------------------------------------------------- Gaussian


multipliers = jax.jit(jax.vmap(gaussian_multiplier, (0, None)))


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_gaussian_multiplier_is_never_below_the_analytic_one(delta):
    epsilon = np.geomspace(0.01, 50, 25)
    ours = np.asarray(multipliers(epsilon.astype(np.float32), delta))
    exact = np.array([dp_accounting.get_sigma_gaussian(e, delta) for e in epsilon])
    assert (ours / exact >= 1).all()
    assert (ours / exact <= 1.001).all()


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_gaussian_noise_has_the_calibrated_scale(epsilon):
    mechanism = GaussianMechanism(clip_norm=1.5, delta=1e-4)
    sample = np.asarray(releases(mechanism, keys(MANY), vector(0.0), epsilon))[:4000]
    sigma = 2 * 1.5 * dp_accounting.get_sigma_gaussian(epsilon, 1e-4)
    assert fits(sample, stats.norm(scale=sigma).cdf) > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert fits(sample, stats.norm(scale=wrong * sigma).cdf) < REJECT


@pytest.mark.parametrize(("length", "kept"), [(1.0, 1.0), (6.0, 1.5), (0.0, 0.0), (1e30, 1.5)])
def test_gaussian_noise_is_added_to_the_clipped_update(length, kept):
    mechanism = GaussianMechanism(clip_norm=1.5)
    with_update, noise = (
        np.asarray(releases(mechanism, keys(1), vector(x), 2.0)) for x in (length, 0.0)
    )
    np.testing.assert_allclose(with_update - noise, [vector(kept)], atol=1e-5)


# ---------------------------------------------------------------- PrivUnitG


def exact_cap(log_odds, epsilon):
    """(p, gamma, sigma) by the published formulas, in float64."""
    p = 1 / (1 + math.exp(-log_odds))
    q = 1 / (1 + math.exp(epsilon - log_odds))
    gamma = stats.norm.isf(q)
    return p, gamma, 1 / (stats.norm.pdf(gamma) * (p / q - (1 - p) / (1 - q)))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 32.0, 64.0])
def test_cap_has_the_least_sigma_and_exactly_its_epsilon(epsilon):
    cap = capped(np.float32(epsilon))
    _, gamma, sigma = exact_cap(float(cap.log_odds), epsilon)
    np.testing.assert_allclose(cap.edge, gamma, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(cap.scale, sigma, rtol=1e-5)
    least = optimize.minimize_scalar(
        lambda odds: exact_cap(odds, epsilon)[2], bounds=(-5, 20), method="bounded"
    )
    assert float(cap.scale) <= least.fun * 1.0005
    log_q, log_rest = stats.norm.logsf(float(cap.edge)), stats.norm.logcdf(float(cap.edge))
    ratio = float(cap.log_odds) - log_q + log_rest
    np.testing.assert_allclose(ratio, epsilon, rtol=1e-5)


def test_quantiles_hold_far_in_the_tail():
    log_p = np.float32([-1e4, -200.0, -64.0, -2.0, -0.7, -0.5, -1e-3, -1e-6])
    x = np.asarray(jax.jit(upper_quantile)(log_p), float)
    np.testing.assert_allclose(stats.norm.logsf(x), log_p, rtol=1e-5)


def mixture(p, gamma, sigma):
    """CDF of sigma times: N given N >= gamma with probability p, else N given N < gamma."""

    def cdf(t):
        z = t / sigma
        low = np.minimum(stats.norm.cdf(z) / stats.norm.cdf(gamma), 1)
        high = np.clip(1 - stats.norm.sf(z) / stats.norm.sf(gamma), 0, 1)
        return p * high + (1 - p) * low

    return cdf


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 64.0])
def test_priv_unit_g_along_the_update_is_a_mixture_of_truncated_normals(epsilon):
    x = vector(1.0)
    along = np.asarray(of_unit_vectors(keys(MANY), x, epsilon)) @ np.asarray(x)
    cap = capped(np.float32(epsilon))
    law = exact_cap(float(cap.log_odds), epsilon)
    assert fits(along, mixture(*law)) > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert fits(along, mixture(law[0], law[1], wrong * law[2])) < REJECT
        assert fits(along, mixture(*exact_cap(float(cap.log_odds), wrong * epsilon))) < REJECT


def test_priv_unit_g_across_the_update_is_normal():
    x = np.eye(1, SIZE, dtype=np.float32)[0]
    across = np.asarray(of_unit_vectors(keys(MANY), x, 4.0))[:8000, 1:]
    sigma = float(capped(np.float32(4.0)).scale)
    assert fits(across, stats.norm(scale=sigma).cdf) > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert fits(across, stats.norm(scale=wrong * sigma).cdf) < REJECT


# ---------------------------------------------------------------- Duchi et al.


def halves(dimension, positive, radius):
    """CDF of <Z, x> radius: Z uniform on the sphere, its sign positive with this probability."""
    coordinate = stats.beta(0.5, (dimension - 1) / 2)

    def cdf(t):
        inner = coordinate.cdf(np.minimum((t / radius) ** 2, 1))
        return np.where(t < 0, (1 - positive) * (1 - inner), 1 - positive + positive * inner)

    return cdf


def exact_radius(dimension, epsilon):
    log_ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    return math.sqrt(math.pi) * math.exp(log_ratio) / math.tanh(epsilon / 2)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_duchi_along_the_update_has_two_halves(epsilon):
    x = vector(1.5)
    along = np.asarray(releases(DuchiL2(clip_norm=2.0), keys(MANY), x, epsilon)) @ x / 1.5
    radius = 2 * exact_radius(SIZE, epsilon)

    def positive(e):
        keep, end = 1 / (1 + math.exp(-e)), (1 + 1.5 / 2) / 2
        return end * keep + (1 - end) * (1 - keep)

    assert fits(along, halves(SIZE, positive(epsilon), radius)) > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert fits(along, halves(SIZE, positive(epsilon), wrong * radius)) < REJECT
    assert fits(along, halves(SIZE, positive(epsilon / 3), radius)) < REJECT


def test_duchi_releases_lie_on_the_sphere():
    out = np.asarray(releases(DuchiL2(clip_norm=2.0), keys(MANY), vector(1.5), 4.0))
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 2 * exact_radius(SIZE, 4.0), rtol=1e-5)


# ---------------------------------------------------------------- projection


def test_walsh_hadamard_is_the_orthonormal_transform():
    matrix = np.ones((1, 1))
    for _ in range(5):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = vector(3.0, dimension=32)
    transform = jax.jit(walsh_hadamard)
    np.testing.assert_allclose(transform(x), matrix @ x / math.sqrt(32), atol=1e-5)
    np.testing.assert_allclose(transform(transform(x)), x, atol=1e-5)


def test_inner_noise_key_is_independent_of_the_projection(monkeypatch):
    """The server knows the key of the projection. It must not know that of the noise."""
    handed = []

    class Watched(GaussianMechanism):
        def privatize(self, key, update, epsilon):
            handed.append(key)
            return update

    drawn = []

    def watch(draw):
        def watched(key, *rest):
            drawn.append(key)
            return draw(key, *rest)

        return watched

    for name in ("rademacher", "randint"):
        monkeypatch.setattr(jax.random, name, watch(getattr(jax.random, name)))

    @jax.jit
    def known_and_handed(key):
        Projected(inner=Watched(), dimension=4).privatize(key, jnp.ones(8), 1.0)
        public = [jax.random.fold_in(key, 0), *drawn]
        public += [child for parent in public for child in jax.random.split(parent)]
        return [jax.random.key_data(each) for each in (*public, handed[0])]

    *known, secret = np.asarray(known_and_handed(jax.random.key(3))).tolist()
    assert len(drawn) == 2
    assert len(known) == 9
    assert secret not in known


def test_projection_to_all_dimensions_only_changes_the_basis():
    x = vector(0.9, dimension=30)
    inner = GaussianMechanism(delta=0.5)
    out = releases(Projected(inner=inner, dimension=1000), keys(1), x, 1e4)
    np.testing.assert_allclose(out, [x], atol=0.1)


def test_projection_preserves_the_noise_scale_of_its_inner():
    """k draws of sigma, stretched by sqrt(n / k) and spread over n coordinates: sigma in each."""
    mechanism = Projected(inner=GaussianMechanism(clip_norm=1.5, delta=1e-4), dimension=8)
    first = np.asarray(releases(mechanism, keys(20_000), np.zeros(32, np.float32), 4.0))[:, 0]
    sigma = 2 * 1.5 * dp_accounting.get_sigma_gaussian(4.0, 1e-4)
    assert fits(first, stats.norm(scale=sigma).cdf) > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert fits(first, stats.norm(scale=wrong * sigma).cdf) < REJECT


def test_projection_loses_the_stated_share_of_an_update():
    # Without random signs the transform would have all of it in one place.
    k, x = 64, np.full(250, 250**-0.5, np.float32)
    # So little noise that the clip is what is measured; the mean is along x by symmetry.
    mechanism = Projected(inner=GaussianMechanism(delta=0.5), dimension=k)
    along = np.asarray(releases(mechanism, keys(4000), x, 1e4)) @ x
    error = along.std() / math.sqrt(len(along))
    assert abs(along.mean() - (1 - 0.28 / math.sqrt(k))) < 4 * error + 2e-3
    assert along.mean() < 1 - 5 * error, "the loss is visible"
    far_inside = np.asarray(releases(mechanism, keys(4000), x / 2, 1e4)) @ x * 2
    assert abs(far_inside.mean() - 1) < 4 * far_inside.std() / math.sqrt(len(far_inside))


def test_projection_draws_new_coordinates_each_time():
    """With the same ones two entries of an update would always fall together, or cancel."""
    x = np.zeros(250, np.float32)
    x[:2] = 0.5 * 0.5**0.5
    mechanism = Projected(inner=GaussianMechanism(delta=0.5), dimension=64)
    along = np.asarray(releases(mechanism, keys(4000), x, 1e4)) @ x / 0.25
    assert abs(along.mean() - 1) < 4 * along.std() / math.sqrt(len(along))
    assert along.std() < 2 * math.sqrt(2 / 64)


# ---------------------------------------------------------------- means and errors

UNBIASED = [
    PrivUnitG(clip_norm=2.0),
    DuchiL2(clip_norm=2.0),
    GaussianMechanism(clip_norm=2.0),
    Projected(inner=PrivUnitG(clip_norm=2.0), dimension=4),
]


def deviation(sample, mean):
    """How improbable the sample's mean is: p-value of the squared t statistics together."""
    sample = np.asarray(sample, float)
    t = (sample.mean(0) - np.asarray(mean, float)) / sample.std(0) * math.sqrt(len(sample))
    return stats.chi2(len(t)).sf(t @ t)


@pytest.mark.parametrize("mechanism", UNBIASED, ids=lambda m: m.name)
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_unbiased_for_an_update_within_the_bound(mechanism, epsilon):
    x = vector(0.6)
    out = releases(mechanism, keys(MANY), x, epsilon)
    assert deviation(out, x) > ACCEPT
    assert deviation(out, 3 * x) < REJECT
    assert deviation(out, 0 * x) < REJECT


@pytest.mark.parametrize("mechanism", UNBIASED[:3], ids=lambda m: m.name)
def test_unbiased_for_the_clipped_update(mechanism):
    out = releases(mechanism, keys(MANY), vector(50.0), 4.0)
    assert deviation(out, vector(2.0)) > ACCEPT
    assert deviation(out, vector(2.8)) < REJECT


def test_duchis_release_of_a_zero_update_is_unbiased():
    out = releases(DuchiL2(clip_norm=2.0), keys(MANY), vector(0.0), 4.0)
    assert deviation(out, vector(0.0)) > ACCEPT
    assert deviation(out, 0.5 * np.eye(1, SIZE)[0]) < REJECT


@jax.jit
def squared_errors(mechanism, keys, update, epsilon):
    return jax.lax.map(
        lambda key: jnp.sum((mechanism.privatize(key, update, epsilon) - update) ** 2), keys
    )


@pytest.mark.nightly
def test_errors_at_network_size_match_the_closed_form():
    """50,890 parameters, padded to 65,536 by the projection; a zero update has the same error."""
    size, epsilon = 50_890, 8.0
    noise = size * exact_cap(float(capped(np.float32(epsilon)).log_odds), epsilon)[2] ** 2
    radius = exact_radius(size, epsilon) ** 2
    multiplier = 2 * dp_accounting.get_sigma_gaussian(epsilon, 1e-5)
    for mechanism, error, at_zero in (
        (PrivUnitG(), noise, noise),
        (DuchiL2(), radius - 1, radius),
        (GaussianMechanism(), size * multiplier**2, size * multiplier**2),
        (Projected(inner=PrivUnitG(), dimension=4096), noise, noise),
    ):
        for x, expected in ((vector(1.0, size), error), (np.zeros(size, np.float32), at_zero)):
            measured = np.mean(squared_errors(mechanism, keys(5), x, epsilon))
            assert measured == pytest.approx(expected, rel=0.05), mechanism
            assert np.mean(squared_errors(mechanism, keys(5), x, 1.0)) > 1.2 * expected
