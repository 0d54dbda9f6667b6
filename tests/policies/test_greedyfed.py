"""GreedyFed: Shapley values against their definition, averages, choice, the server's samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pause_jax import Asynchronous, ConfigError, presets, simulate
from pause_jax.learning import Mlp
from pause_jax.policies import GreedyFed, Selection
from pause_jax.policies.greedyfed import coalition_value, permutations, shapley
from pause_jax.privacy import NoPrivacy
from pause_jax.rng import keys
from pause_jax.run.record.quantity import quantity
from pause_jax.run.setup import learner_of
from tests.reference import greedyfed as oracle
from tests.support.network import context, observation
from tests.support.runs import LEARN

pytestmark = pytest.mark.slow

K, M = 7, 4
SIZES = np.array([5, 1, 9, 3, 20, 2, 10])
KEY = jax.random.key(0)


orders_of = jax.jit(permutations, static_argnums=(1, 2))


@jax.jit
def values_of(table, orders, tolerance):
    """Shapley values of a game: ``table`` has the value of each coalition."""
    place = 2 ** jnp.arange(M)
    return shapley(lambda members: table[jnp.sum(members * place)], orders, tolerance)


def game(rng):
    """A value for every coalition, as (a table, a function of frozensets)."""
    table = rng.standard_normal(2**M).astype(np.float32)
    return table, lambda some: float(table[sum(2**i for i in some)])


def test_each_client_leads_equally_often():
    orders = np.asarray(orders_of(KEY, M, 2))
    assert orders.shape == (2 * M, M)
    assert (np.sort(orders, axis=1) == np.arange(M)).all()
    assert np.bincount(orders[:, 0]).tolist() == [2] * M
    many = np.asarray(orders_of(KEY, M, 500))
    last = np.bincount(many[:, -1], minlength=M) / len(many)
    assert np.abs(last - 1 / M).max() < 0.05


def test_values_match_truncated_permutations():
    rng, cut = np.random.default_rng(0), 0
    for seed in range(8):
        table, slow = game(rng)
        orders = np.asarray(orders_of(jax.random.key(seed), M, 2))
        found = {}
        for tolerance in (0.0, 0.5, 4.0):
            expected = oracle.along(slow, orders.tolist(), tolerance)
            found[tolerance] = np.asarray(values_of(table, orders, tolerance))
            np.testing.assert_allclose(found[tolerance], expected, atol=1e-5)
        # What all add together is what all are worth.
        everybody = slow(frozenset(range(M))) - slow(frozenset())
        np.testing.assert_allclose(found[0.0].sum(), everybody, atol=1e-5)
        cut += np.abs(found[0.5] - found[0.0]).max() > 1e-3
    assert cut >= 3


def test_coalition_averages_its_received_updates():
    weights, seen = jnp.asarray([0.1, 0.2, 0.3, 0.4]), []

    def loss(own):
        seen.append(np.asarray(own))
        return jnp.asarray([0.5, jnp.nan][len(seen) == 3])

    value = coalition_value(loss, weights, jnp.asarray([True, True, False, True]))
    assert value(jnp.asarray([True, False, True, True])) == -0.5
    np.testing.assert_allclose(seen[0], [0.2, 0, 0, 0.8], rtol=1e-6)
    value(jnp.zeros(4, bool))
    np.testing.assert_array_equal(seen[1], 0)
    assert value(jnp.ones(4, bool)) < -1e5, "a model that is not finite is worth least"


@functools.cache
def compiled(config):
    """(init, select, learn) of a policy; losses are sums of a secret worth of each client."""
    policy = config.build(context(SIZES, M, update_size=2, validates=True))

    @jax.jit
    def learn(state, selection, worth, received):
        def loss(weights):
            return -jnp.sum(jnp.where(weights > 0, worth[selection.clients], 0.0))

        seen = observation(np.ones(M), update=np.zeros((M, 2)), received=received)
        return policy.update(state, selection, seen._replace(server_loss=loss))

    return policy.init, jax.jit(policy.select), learn


class Played:
    """A policy, and what it knows so far."""

    def __init__(self, config, worth):
        init, self.select, self.update = compiled(config)
        self.worth, self.state = np.asarray(worth, np.float32), init()

    def choose(self, seed, available=None):
        here = np.ones(K, bool) if available is None else available
        selection, _ = self.select(jax.random.key(seed), self.state, np.asarray(1), here)
        return jax.tree.map(np.asarray, selection)

    def learn(self, selection, scale=1.0, received=(True,) * M):
        worth = np.float32(scale) * self.worth
        self.state = self.update(self.state, selection, worth, np.asarray(received))


def active(selection):
    return set(selection.clients[selection.active].tolist())


def test_largest_averages_are_chosen_after_all_were_received():
    worth = np.array([0.3, 0.9, -0.2, 0.5, 0.1, 0.7, 0.25])
    played = Played(GreedyFed(), worth)
    first = played.choose(0)
    played.learn(first)
    second = played.choose(1)
    assert active(second) >= set(range(K)) - active(first), "the rest of the sweep comes first"
    played.learn(second)
    np.testing.assert_allclose(played.state.value, worth, atol=1e-5)
    assert active(played.choose(2)) == {1, 5, 3, 0}
    here = np.arange(K) % 2 == 0
    assert active(played.choose(3, here)) == {0, 2, 4, 6}
    np.testing.assert_allclose(
        np.sort(played.choose(2).weights), np.sort(SIZES[[1, 5, 3, 0]] / 11), rtol=1e-6
    )


def test_values_are_averaged_over_the_rounds_of_each_client():
    worth = np.array([0.3, 0.9, -0.2, 0.5, 0.1, 0.7, 0.25])
    played = Played(GreedyFed(), worth)
    cohort = Selection(np.arange(M), np.array([0.5, 0.25, 0.25, 0.0], np.float32))
    for t, scale in enumerate([1.0, 3.0, 2.0], start=1):
        # Client 1's update is lost in round 2.
        played.learn(cohort, scale, received=[True, t != 2, True, True])
    assert played.state.times.tolist() == [3, 2, 3, 0, 0, 0, 0]
    value = np.asarray(played.state.value)
    np.testing.assert_allclose(value[0], 2 * worth[0], rtol=1e-5)
    np.testing.assert_allclose(value[1], 1.5 * worth[1], rtol=1e-5)
    assert (value[3:] == 0).all()


# --- the samples at the server


HELD = (
    presets.digits_small()
    .replace(num_rounds=8, eval_every=1, track_regret=False)
    .override({"learning.validation": 100, "learning.model": Mlp(hidden=())})
    .replace(privacy=NoPrivacy())
)


@quantity("round", "client")
def value(r):
    """The policy's averages."""
    return r.after.policy.value


@quantity("round")
def whole(r):
    """What all of the cohort's updates lower the loss at the server by."""
    loss, weights = r.learner.server_loss, r.selection.weights
    given = r.before.learning, r.trained.released
    return loss(*given, 0 * weights) - loss(*given, weights)


def test_values_of_a_cohort_sum_to_its_loss_reduction():
    config = HELD.replace(policy=GreedyFed(tolerance=0.0))
    run = simulate(config, KEY, record=("clients", "counts", value, whole))
    first = np.asarray(run.value)[0]
    assert (first != 0).sum() == config.num_selected
    np.testing.assert_allclose(first.sum(), run.whole[0], rtol=1e-3, atol=1e-5)
    assert np.unique(np.asarray(run.clients)[:6]).size == config.num_clients, "a sweep"


def test_server_loss_is_of_the_model_plus_weighted_updates():
    learning, data = HELD.learning, HELD.learning.load(HELD.num_clients)
    learner = learner_of(HELD, data)
    state = jax.device_get(jax.jit(lambda: learner.init(keys.streams(KEY)))())
    raveled, restored = ravel_pytree(state.model["params"])
    flat = np.asarray(raveled)
    updates = 0.1 * np.random.default_rng(0).standard_normal((3, flat.size)).astype(np.float32)
    weights = np.array([0.25, 0.75, 0.0], np.float32)
    new = restored(flat + weights @ updates)
    # A slot that sends nothing may hold anything.
    updates[2] = np.nan
    assert learner.server_loss is not None
    found = jax.jit(learner.server_loss)(state, updates, weights)
    params = new["output"]
    x = np.asarray(data.to_input(data.x_test), float).reshape(len(data.x_test), -1)
    score = x @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
    score -= score.max(axis=1, keepdims=True)
    losses = np.log(np.exp(score).sum(axis=1)) - score[np.arange(len(x)), data.y_test]
    np.testing.assert_allclose(found, losses[-100:].mean(), rtol=1e-4)
    moved = state._replace(variables={"params": new})
    own = jax.jit(learner.evaluate)(moved)["test_loss"]
    np.testing.assert_allclose(own, losses[:-100].mean(), rtol=1e-4)
    plain = HELD.override({"learning.validation": 0})
    whole = learner_of(plain, data)
    assert whole.server_loss is None
    all_of_them = jax.jit(whole.evaluate)(moved)["test_loss"]
    np.testing.assert_allclose(all_of_them, losses.mean(), rtol=1e-4)
    assert learning.validation == 100


def test_updates_of_a_server_step_are_valued_with_overlapping_rounds():
    """These are two, and a cohort has three."""
    config = LEARN.replace(
        policy=GreedyFed(), num_selected=3, num_rounds=5,
        clock=Asynchronous(concurrency=4, buffer=2),
    )  # fmt: skip
    config = config.override({"learning.validation": 20})
    assert jax.eval_shape(lambda: simulate(config, KEY)).clients.shape == (5, 2)


def test_missing_validation_samples_and_bad_settings_are_refused():
    for changes, words in (
        ({"learning.validation": 0}, r"policy = greedyfed: needs validation samples"),
        ({"learning.validation": 360}, r"learning.validation = 360: must be < 360"),
        ({"policy.sweeps": 0}, r"sweeps = 0: must be a whole number, >= 1"),
        ({"policy.tolerance": -1.0}, r"tolerance = -1.0: must be"),
    ):
        with pytest.raises(ConfigError, match=words):
            simulate(HELD.replace(policy=GreedyFed()).override(changes), KEY)
