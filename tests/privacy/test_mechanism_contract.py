"""What every mechanism keeps: independent noise, finite releases, its law and its budget.

``tests/test_contracts.py`` checks traced parameters, files and schedules of each mechanism,
``test_noise_power.py`` the size of its noise, and ``tests/run/test_whole_round.py`` a whole run.
"""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, config_file
from pause_jax.base.registry import choices
from pause_jax.config import validate
from pause_jax.privacy import (
    BUDGETS,
    MECHANISMS,
    Budget,
    DuchiL2,
    GaussianMechanism,
    L1Laplace,
    NoPrivacy,
    PerCoordinateLaplace,
    PrivUnitG,
    Projected,
    Schedule,
    Uniform,
    Unlimited,
)
from pause_jax.privacy.mechanisms import GaussianLoss, LaplaceLoss, NoGuarantee, WorstLoss

pytestmark = pytest.mark.slow

PROJECTED = [
    Projected(inner=inner(), dimension=8) for inner in (DuchiL2, GaussianMechanism, L1Laplace)
]
NOISY = [
    *(cls() for cls in MECHANISMS if cls is not NoPrivacy),
    *PROJECTED,
]
every = pytest.mark.parametrize("mechanism", NOISY, ids=lambda m: f"{m.name}-{NOISY.index(m)}")


KEYS = jax.random.split(jax.random.key(0), 1000)


@jax.jit
def released(mechanism, update, epsilon):
    return jax.vmap(lambda key: mechanism.privatize(key, update, epsilon))(KEYS)


def releases(mechanism, value, epsilon):
    """Of an update whose 17 coordinates are ``value``, one of each key: float [1000, 17]."""
    update = np.full(17, value, np.float32)
    return np.asarray(released(mechanism, update, np.float32(epsilon)), float)


@every
def test_clients_with_different_keys_have_independent_noise(mechanism):
    noise, same = (releases(mechanism, 0, 2) for _ in range(2))
    assert not np.array_equal(noise[0], noise[1])
    np.testing.assert_array_equal(noise, same)
    limit = 5 / math.sqrt(noise[1:].size)
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < limit
    between_coordinates = np.corrcoef(noise, rowvar=False) - np.eye(noise.shape[1])
    if mechanism.name in ("per_coordinate", "l1_vector", "gaussian"):
        assert np.abs(between_coordinates).max() < 5 / math.sqrt(len(noise))
    # One key for every two clients: what the limit must catch.
    twice = np.repeat(noise[::2], 2, axis=0)
    assert abs(np.corrcoef(twice[:-1].ravel(), twice[1:].ravel())[0, 1]) > limit


@every
def test_any_update_gives_a_finite_release(mechanism):
    grid = np.meshgrid([0.0, 1e-42, 1e-30, 1.0, 1e30], [0.01, 0.1, 1.0, 64.0, 1e3])
    value, epsilon = (x.ravel().astype(np.float32) for x in grid)
    for one in zip(value, epsilon, strict=True):
        assert np.isfinite(releases(mechanism, *one)).all()
    # A projection hands its inner mechanism a vector of its own size.
    if mechanism not in PROJECTED:
        out = jax.jit(jax.vmap(mechanism.privatize))(KEYS[:25], value[:, None], epsilon)
        assert out.shape == (25, 1)
        assert np.isfinite(out).all()


def test_only_the_gaussian_has_a_delta():
    assert {mechanism.name for mechanism in NOISY[:6] if mechanism.delta} == {"gaussian"}
    gaussian = GaussianMechanism(delta=1e-4)
    assert gaussian.delta == Projected(inner=gaussian).delta == 1e-4


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (NoPrivacy(), NoGuarantee),
        (PerCoordinateLaplace(), LaplaceLoss),
        (L1Laplace(), LaplaceLoss),
        (GaussianMechanism(), GaussianLoss),
        (PrivUnitG(), WorstLoss),
        (DuchiL2(), WorstLoss),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_privacy_loss_has_the_declared_law_and_projections_inherit_it(mechanism, law):
    epsilon = jnp.asarray([0.5, 2.0])
    loss = mechanism.privacy_loss(epsilon)
    assert type(loss) is law
    around = Projected(inner=Projected(inner=mechanism)).privacy_loss(epsilon)
    jax.tree.map(np.testing.assert_array_equal, loss, around)


def test_gaussian_privacy_loss_is_noise_over_sensitivity():
    loss = GaussianMechanism(delta=1e-4, clip_norm=3.0).privacy_loss(jnp.asarray([0.5, 2]))
    assert isinstance(loss, GaussianLoss)
    exact = [dp_accounting.get_sigma_gaussian(epsilon, 1e-4) for epsilon in (0.5, 2.0)]
    np.testing.assert_allclose(loss.multiplier, exact, rtol=1e-3)


@every
def test_new_budget_reaches_the_mechanism_that_spends_it(mechanism):
    budget = Uniform(total_epsilon=3.0)
    assert mechanism.with_budget(budget).budget is budget
    assert mechanism.with_budget(Unlimited()) == mechanism
    assert Projected(inner=Projected(inner=mechanism.with_budget(budget))).budget is budget
    assert NoPrivacy().with_budget(budget) == NoPrivacy()


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (Projected(inner=NoPrivacy()), "privacy.inner = none"),
        (Projected(inner=PerCoordinateLaplace()), "privacy.inner = per_coordinate"),
        (GaussianMechanism(delta=0.0), "privacy.delta = 0.0"),
        (Projected(dimension=1), "privacy.dimension = 1"),
        (Projected(inner=DuchiL2(clip_norm=0.0)), "privacy.inner.clip_norm = 0.0"),
        (L1Laplace(budget=Unlimited()), "privacy.budget = .*class Schedule, such as Geometric"),
        (Projected(inner=DuchiL2(budget=Unlimited())), "privacy.inner.budget = .*class Schedule"),
    ],
)
def test_invalid_mechanism_is_refused_by_the_name_of_its_field(privacy, words):
    with pytest.raises(ConfigError, match=words):
        validate(SimConfig(privacy=privacy))


def test_no_file_gives_a_private_mechanism_an_unlimited_budget():
    assert set(choices(Budget)) == set(choices(Schedule)) == {cls.name for cls in BUDGETS}
    with pytest.raises(ConfigError, match="must be one of geometric, uniform, constant, table"):
        config_file.loads('[privacy]\nname = "l1_vector"\nbudget = "unlimited"\n')
