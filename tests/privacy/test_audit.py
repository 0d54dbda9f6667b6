"""Audits: honest mechanisms are not accused, planted faults are found."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax import ConfigError
from pause_jax.privacy import (
    MECHANISMS,
    DuchiL2,
    GaussianMechanism,
    L1Laplace,
    NoPrivacy,
    PerCoordinateLaplace,
    PrivUnitG,
    Projected,
)
from pause_jax.privacy.attack import epsilon_bound, high_end, low_end, two_point
from pause_jax.privacy.audit import LARGE, audit
from pause_jax.privacy.gaussian import norm
from pause_jax.privacy.sphere import priv_unit_g
from tests.support.command import run

pytestmark = pytest.mark.slow

SAMPLES = 20_000


def laplace(key, update, scale):
    return update + scale * jax.random.laplace(key, update.shape)


# ---------------------------------------------------------------- planted faults


class NoClip(L1Laplace):
    def privatize(self, key, update, epsilon):
        return laplace(key, update, 2 * self.clip_norm / epsilon)


class L2Clip(L1Laplace):
    """Clips the L2 norm, adds noise for the L1 norm: right on the axes, wrong on dense updates."""

    def privatize(self, key, update, epsilon):
        clipped = update * jnp.minimum(1, self.clip_norm / jnp.maximum(norm(update), 1e-30))
        return laplace(key, clipped, 2 * self.clip_norm / epsilon)


class ScaleByTheLargest(PerCoordinateLaplace):
    """One coordinate moves all others, though the noise is for one."""

    def privatize(self, key, update, epsilon):
        half = self.sensitivity / 2
        largest = jnp.maximum(jnp.max(jnp.abs(update)), half)
        return laplace(key, update * (half / largest), self.sensitivity / epsilon)


class SharedNoise(L1Laplace):
    """The same noise on all coordinates: it cancels in differences."""

    def privatize(self, key, update, epsilon):
        scale = 2 * self.clip_norm / epsilon
        return super().privatize(key, update, jnp.inf) + scale * jax.random.laplace(key, (1,))


class NotANumberAtZero(L1Laplace):
    """A division by the norm that nobody guarded."""

    def privatize(self, key, update, epsilon):
        return super().privatize(key, update, epsilon) + 0 * (update / jnp.sum(jnp.abs(update)))


def half_the_noise(cls: Any):
    class Half(cls):
        def privatize(self, key, update, epsilon):
            return super().privatize(key, update, 2 * epsilon)

    return Half


class GaussianWithoutClip(GaussianMechanism):
    def privatize(self, key, update, epsilon):
        return update + super().privatize(key, jnp.zeros_like(update), epsilon)


class PrivUnitWithoutNorm(PrivUnitG):
    """Takes the update for a unit vector."""

    def privatize(self, key, update, epsilon):
        return priv_unit_g(key, update / self.clip_norm, epsilon)


class LengthInTheClear(PrivUnitG):
    """Protects the direction and multiplies by the true length."""

    def privatize(self, key, update, epsilon):
        return norm(update) * super().privatize(key, update / norm(update), epsilon)


class DuchiBeforeTheClip(DuchiL2):
    """Keeps the sign of the product with the update itself: no randomised end."""

    def privatize(self, key, update, epsilon):
        point = super().privatize(key, update, epsilon)
        return jnp.where(point @ update >= 0, point, -point)


FAULTS = {
    "half the noise": (half_the_noise(PerCoordinateLaplace)(), 1.0, 1.4),
    "no clip": (NoClip(), 1.0, 5.0),
    "scale by the largest": (ScaleByTheLargest(), 1.0, 1.4),
    "shared noise": (SharedNoise(), 1.0, 5.0),
    "NaN at zero": (NotANumberAtZero(), 1.0, 5.0),
    "gaussian, half the noise": (half_the_noise(GaussianMechanism)(delta=0.1), 2.0, 2.0),
    "gaussian, no clip": (GaussianWithoutClip(delta=0.1), 2.0, 2.0),
    "priv_unit_g, half the noise": (half_the_noise(PrivUnitG)(), 2.0, 2.0),
    "priv_unit_g, no unit vector": (PrivUnitWithoutNorm(), 2.0, 2.0),
    "priv_unit_g, length in the clear": (LengthInTheClear(), 2.0, 2.0),
    "duchi_l2, half the noise": (half_the_noise(DuchiL2)(), 2.0, 2.0),
    "duchi_l2, no random end": (DuchiBeforeTheClip(), 2.0, 2.0),
    "projected, half the noise": (
        Projected(inner=half_the_noise(PrivUnitG)(), dimension=64),
        1.0,
        1.0,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name, key):
    mechanism, epsilon, at_least = FAULTS[name]
    found = audit(mechanism, key, epsilon=epsilon, dimension=8, samples=SAMPLES)
    assert found.violated
    assert at_least < found.lower_bound <= found.resolution


def test_clip_in_the_wrong_norm_is_found_in_higher_dimensions(key):
    found = audit(L2Clip(), key, epsilon=1.0, samples=10_000)
    assert found.violated
    assert 1.5 < found.lower_bound <= found.resolution


# ---------------------------------------------------------------- honest mechanisms


# Mechanisms with the share of epsilon that an attack on the release alone must show. A projection,
# drawn again for each release, hides most of it.
HONEST = {
    "per_coordinate": (PerCoordinateLaplace(), 0.8),
    "l1_vector": (L1Laplace(), 0.8),
    "gaussian": (GaussianMechanism(delta=0.1), 0.6),  # a delta at which its loss shows
    "priv_unit_g": (PrivUnitG(), 0.8),
    "duchi_l2": (DuchiL2(), 0.8),
    "projected": (Projected(inner=PrivUnitG(), dimension=8), 0.2),
}


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *((name, 2.0) for name in HONEST),
        ("per_coordinate", 0.3),
        ("l1_vector", 4.0),
        ("projected", 6.0),
    ],
)
def test_honest_mechanism_is_not_accused(name, epsilon):
    mechanism, share = HONEST[name]
    found = audit(mechanism, jax.random.key(1), epsilon=epsilon, dimension=8, samples=SAMPLES)
    assert found.claim == mechanism.unit
    assert not found.violated
    assert found.lower_bound <= min(epsilon, found.resolution)
    if epsilon == 2.0:
        assert found.lower_bound > share * epsilon, "the attack sees something"


def test_update_guarantee_covers_each_coordinate(key):
    found = audit(L1Laplace(), key, epsilon=1.0, claim="coordinate", samples=SAMPLES)
    assert (found.unit, found.claim, found.violated) == ("update", "coordinate", False)
    assert found.lower_bound > 0.7


def test_coordinate_guarantee_does_not_cover_the_update(key):
    found = audit(PerCoordinateLaplace(), key, epsilon=1.0, claim="update", samples=SAMPLES)
    assert found.violated


def test_no_privacy_reaches_the_largest_detectable_epsilon(key):
    found = audit(NoPrivacy(), key, epsilon=1.0, claim="update", samples=SAMPLES)
    np.testing.assert_allclose(found.lower_bound, found.resolution)
    # No hits among n: the upper bound of the false rate is 1 - 0.025^(1/n).
    n = SAMPLES // 4
    rate = 1 - 0.025 ** (1 / n)
    np.testing.assert_allclose(found.resolution, math.log((1 - rate) / rate), rtol=1e-6)


def test_audit_works_with_a_single_coordinate(key):
    assert not audit(L1Laplace(), key, epsilon=1.0, dimension=1, samples=2000).violated


def test_audit_works_beyond_the_discriminant_dimension(key):
    found = audit(L1Laplace(), key, epsilon=4.0, dimension=1000, samples=2000)
    assert 1.5 < found.lower_bound <= 4.0


def test_same_seed_gives_the_same_result():
    first, again, other = (
        audit(L1Laplace(), jax.random.key(seed), epsilon=1.0, samples=4000) for seed in (3, 3, 4)
    )
    assert first == again
    assert first.lower_bound != other.lower_bound


# ---------------------------------------------------------------- several clients


def bound_across_clients(release, key, *, clients, samples, dimension, delta):
    """Audit a cohort's release as a whole: each client's update is the one in question once.

    Shared noise cancels in the difference of two releases, and shared random bits make releases of
    equal updates go together. The adversary knows the other clients' updates.
    """
    pairs = {}
    for client in range(clients):
        for value in (0.0, LARGE):
            first = np.zeros((clients, dimension), np.float32)
            first[:, 0] = value
            second = first.copy()
            first[client, 0], second[client, 0] = LARGE, -LARGE
            pairs[f"client {client}, others at {value}"] = (first, second)

    def cohort_release(key, updates):
        return release(jax.random.split(key, clients), updates)

    return two_point(jax.tree_util.Partial(cohort_release), pairs, key, delta, samples, 0.95)[0]


# Noise that is added, and a release drawn as a whole.
COHORTS = {"gaussian": GaussianMechanism(delta=0.1), "priv_unit_g": PrivUnitG()}


def cohort(mechanism, shared, keys, updates):
    keys = keys.at[-1].set(keys[-2]) if shared else keys
    return jax.vmap(mechanism.privatize, (0, 0, None))(keys, updates, 1.0)


@pytest.mark.parametrize("shared", [False, True], ids=["own keys", "shared key"])
@pytest.mark.parametrize("name", COHORTS)
def test_shared_client_key_is_found(name, shared, key):
    release = functools.partial(cohort, COHORTS[name], shared)
    delta = float(COHORTS[name].delta)
    bound = bound_across_clients(release, key, clients=2, dimension=3, samples=16_000, delta=delta)
    assert bound > 2.5 if shared else bound <= 1.0


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_clopper_pearson_bounds_match_scipy(confidence):
    for trials in (1, 7, 500):
        hits = np.unique(np.linspace(0, trials, 8).astype(int))
        low, high = low_end(hits, trials, confidence), high_end(hits, trials, confidence)
        for index, k in enumerate(hits.tolist()):
            exact = stats.binomtest(k, trials).proportion_ci(confidence, method="exact")
            np.testing.assert_allclose((low[index], high[index]), exact, rtol=1e-9)


def test_two_point_bound_has_its_coverage():
    """Rates at the limit that epsilon = 1, delta = 0.05 allows: few bounds may exceed 1."""
    rng = np.random.default_rng(1)
    false = 0.2
    true = 0.05 + math.e * false
    true_hits, false_hits = (rng.binomial(1000, rate, 4000) for rate in (true, false))
    bounds = epsilon_bound(true_hits, false_hits, 1000, 0.05, 0.95)
    assert np.mean(bounds > 1) <= 0.05
    assert bounds.min() >= 0
    assert np.median(bounds) > 0.7


# ---------------------------------------------------------------- errors and command line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0.0}, "epsilon = 0.0: must be finite and > 0"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"claim": "user"}, "claim = 'user'.*coordinate, update"),
        ({"dimension": 0}, "dimension = 0: must be >= 1"),
        ({"samples": 10}, "samples = 10: must be >= 1000"),
        ({"confidence": 95.0}, "confidence = 95.0.*0.95 is 95 %"),
    ],
)
def test_invalid_audit_arguments_are_refused(changes, words, key):
    with pytest.raises(ConfigError, match=words):
        audit(L1Laplace(), key, **{"epsilon": 1.0, **changes})


def test_audit_without_a_claim_is_refused(key):
    with pytest.raises(ConfigError, match="Pass claim if the mechanism has no unit"):
        audit(NoPrivacy(), key, epsilon=1.0)


def test_command_audits_every_private_mechanism(capsys):
    # The programs of honest mechanisms above.
    assert run("audit", "--samples", str(SAMPLES), "--dimension", "8") == 0
    printed = capsys.readouterr().out
    names = [mechanism.name for mechanism in MECHANISMS if mechanism is not NoPrivacy]
    for word in (*names, "not refuted", "resolution", "95 %"):
        assert word in printed
    assert "VIOLATED" not in printed


def test_command_fails_on_a_violation(capsys):
    arguments = ("--mechanism", "per_coordinate", "--claim", "update", "--samples", "4000")
    assert run("audit", *arguments, "--set", "sensitivity=2", "--seed", "5") == 1
    printed = capsys.readouterr().out
    assert "VIOLATED" in printed
    assert "l1_vector" not in printed


def test_command_reports_too_few_samples(capsys):
    arguments = ("--mechanism", "l1_vector", "--epsilon", "12", "--samples", "2000")
    assert run("audit", *arguments) == 0
    assert "too few samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mechanism", "lots"), ["--mechanism = 'lots'", "l1_vector"]),
        (
            ("--mechanism", "l1_vector", "--set", "clip=2"),
            ["--set clip:", "no field 'clip'", "clip_norm"],
        ),
        (("--set", "clip_norm=2"), ["--set clip_norm=2", "--mechanism"]),
    ],
)
def test_bad_input_gives_one_message(capsys, arguments, words):
    assert run("audit", *arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in error.replace("\n", " ")
