"""Audits of the mechanisms for whole updates: none is accused, each planted fault is found."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pause_jax.privacy import DuchiL2, GaussianMechanism, PrivUnitG, Projected
from pause_jax.privacy.audit import across_clients, audit
from pause_jax.privacy.gaussian import norm
from pause_jax.privacy.sphere import priv_unit_g

pytestmark = pytest.mark.slow

# A delta at which a Gaussian's loss shows in some ten thousand releases.
GAUSSIAN = GaussianMechanism(delta=0.1)
# With the share of epsilon that an attack on the release alone must show of it. Of `private` it
# sees the direction; of a projection, drawn anew for each release, only what comes through.
HONEST = {
    "gaussian": (GAUSSIAN, 0.6),
    "lift": (PrivUnitG(), 0.8),
    "fixed": (PrivUnitG(norm="fixed"), 0.8),
    "private": (PrivUnitG(norm="private", norm_share=0.3), 0.5),
    "duchi_l2": (DuchiL2(), 0.8),
    "projected": (Projected(inner=PrivUnitG(), dimension=8), 0.2),
}


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *((name, 2.0) for name in HONEST),
        ("lift", 0.5),
        ("private", 0.5),
        ("projected", 6.0),
    ],
)
def test_an_honest_mechanism_is_not_accused(name, epsilon):
    mechanism, share = HONEST[name]
    found = audit(mechanism, jax.random.key(1), epsilon=epsilon, dimension=8, samples=20_000)
    assert found.claim == "update"
    assert not found.violated
    if epsilon == 2.0:
        assert found.lower_bound > share * epsilon, "the attack sees something"


# ---------------------------------------------------------------- planted faults


def half_the_noise(cls: Any):
    class Half(cls):
        def privatize(self, key, update, epsilon):
            return super().privatize(key, update, 2 * epsilon)

    return Half


class GaussianForAddRemove(GaussianMechanism):
    """Noise for an L2 distance of C, where two clipped updates differ by 2C."""

    def privatize(self, key, update, epsilon):
        clipped = update / jnp.maximum(norm(update) / self.clip_norm, 1.0)
        release = super().privatize(key, update, epsilon)
        return clipped + (release - clipped) / 2


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


class DuchiOfItsOwnLength(DuchiL2):
    def privatize(self, key, update, epsilon):
        return norm(update) * super().privatize(key, update, epsilon)


class DuchiBeforeTheClip(DuchiL2):
    """Keeps the sign of the product with the update itself: no randomised end."""

    def privatize(self, key, update, epsilon):
        point = super().privatize(key, update, epsilon)
        return jnp.where(point @ update >= 0, point, -point)


FAULTS = {
    "gaussian, half the noise": (half_the_noise(GaussianMechanism)(delta=0.1), 2.0),
    "gaussian, C for 2C": (GaussianForAddRemove(delta=0.1), 2.0),
    "gaussian, no clip": (GaussianWithoutClip(delta=0.1), 2.0),
    "priv_unit_g, half the noise": (half_the_noise(PrivUnitG)(), 2.0),
    "priv_unit_g, no unit vector": (PrivUnitWithoutNorm(), 2.0),
    "priv_unit_g, length in the clear": (LengthInTheClear(), 2.0),
    "duchi_l2, half the noise": (half_the_noise(DuchiL2)(), 2.0),
    "duchi_l2, length in the clear": (DuchiOfItsOwnLength(), 2.0),
    "duchi_l2, no random end": (DuchiBeforeTheClip(), 2.0),
    "projected, half the noise": (Projected(inner=half_the_noise(PrivUnitG)(), dimension=64), 1.0),
    "projected, no clip": (Projected(inner=GaussianWithoutClip(delta=0.1), dimension=8), 2.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, key):
    mechanism, epsilon = FAULTS[name]
    found = audit(mechanism, key, epsilon=epsilon, dimension=8, samples=20_000)
    assert found.violated, found
    assert found.lower_bound <= found.resolution


# ---------------------------------------------------------------- one key for two clients

WHOLE = {
    "gaussian": GAUSSIAN,
    "priv_unit_g": PrivUnitG(),
    "duchi_l2": DuchiL2(),
}


def cohort(mechanism, shared, keys, updates):
    keys = jax.tree.map(lambda k: k.at[-1].set(k[-2]), keys) if shared else keys
    return jax.vmap(mechanism.privatize, (0, 0, None))(keys, updates, 1.0)


@pytest.mark.parametrize("shared", [False, True], ids=["own keys", "shared key"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_key_that_two_clients_share_is_found(name, shared, key):
    release = functools.partial(cohort, WHOLE[name], shared)
    delta = float(WHOLE[name].delta)
    found = across_clients(
        release, key, epsilon=1.0, clients=2, dimension=3, samples=16_000, delta=delta
    )
    assert found.violated == shared, found
    assert not shared or found.lower_bound > 2.5
