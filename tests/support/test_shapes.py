"""The watch over the shapes that stand beside the fields, itself watched."""

import jax
import jax.numpy as jnp
import pytest

from pause_jax import simulate
from pause_jax.bandit import ClientStats, Info, Selection
from pause_jax.learning import Trained
from pause_jax.privacy import MECHANISMS
from pause_jax.run.rounds.state import Health, State
from tests.support import shapes
from tests.support.runs import BANDIT, KEY


def made_by_the_library(cls, **fields):
    """What a module of the library gets when it makes one."""
    scope = {"__name__": "pause_jax.toy", "cls": cls, "fields": fields}
    exec("made = cls(**fields)", scope)
    return scope["made"]


def test_the_types_that_carry_the_design_are_watched():
    watched = set(shapes.watch_all())
    assert {Selection, Info, ClientStats, State, Trained} <= watched
    assert len(watched) >= 32


@pytest.mark.parametrize(
    ("clients", "weights"),
    [
        (jnp.zeros(3, jnp.int32), jnp.zeros(2)),  # a letter is one number
        (jnp.zeros((1, 3), jnp.int32), jnp.zeros(3)),  # an axis too many
        (jnp.zeros(3), jnp.zeros(3)),  # floats for client numbers
    ],
)
def test_a_wrong_shape_or_kind_is_an_error(clients, weights):
    wrong = {"clients": clients, "weights": weights}
    with pytest.raises(shapes.ShapeError, match="Selection"):
        jax.jit(lambda fields: made_by_the_library(Selection, **fields))(wrong)
    # What a user or JAX makes is not judged here.
    assert Selection(clients, weights).weights is weights


def test_a_right_one_passes_batched_or_not():
    right = {"clients": jnp.zeros(3, jnp.int32), "weights": jnp.zeros(3)}
    jax.jit(lambda fields: made_by_the_library(Selection, **fields))(right)
    jax.vmap(lambda fields: made_by_the_library(Selection, **fields))(
        jax.tree.map(lambda x: x[None], right)
    )


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_the_law_of_a_privacy_loss_has_its_shapes(mechanism):
    # Composed on the host, where nothing is watched: so within a trace for once.
    jax.eval_shape(mechanism().privacy_loss, jnp.ones(3))


def test_a_planted_fault_in_the_library_is_found(monkeypatch):
    def faulty():
        return Health(*(jnp.zeros(2, jnp.int32) for _ in Health._fields))

    monkeypatch.setattr("pause_jax.run.rounds.loop.healthy", faulty)
    with pytest.raises((shapes.ShapeError, TypeError)):
        # A size of its own: no other test has traced its program.
        simulate(BANDIT.replace(num_clients=11, num_rounds=1), KEY)
