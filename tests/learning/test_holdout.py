"""Held-out samples of clients: which they are, that nobody trains on them, and their scores."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Learning, SimConfig
from pause_jax.bandit import Selection
from pause_jax.learning import Dataset, Dirichlet, Iid, Linear, Natural, Partition
from pause_jax.learning.partition import hold_out, num_held_out
from pause_jax.rng import draws, keys
from pause_jax.run.preflight import prepare
from pause_jax.run.setup import learner_of, setup_of
from tests.learning.test_partition import samples_of
from tests.support.runs import KEY

pytestmark = pytest.mark.slow

NUM_SAMPLES, NUM_CLIENTS = 90, 7


def data_of(num_samples=NUM_SAMPLES, *, clients=None, planted=()) -> Dataset:
    """Three labels that a linear model can tell apart. Inputs of ``planted`` samples are huge."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, 4)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1)
    x[list(planted)] = 1e30
    return Dataset.of(x, y, x[:9], y[:9], clients=clients)


def learning_of(**changes) -> Learning:
    changes = {"partition": Dirichlet(concentration=1.0), "batch_size": 4} | changes
    return Learning(model=Linear(), holdout=0.25, **changes)


def started(learning: Learning, data: Dataset, num_clients: int = NUM_CLIENTS):
    learner = learning.build(data, num_clients)
    return learner, jax.jit(learner.init)(keys.streams(KEY))


def held_by(partition: Partition) -> list[np.ndarray]:
    """Return the held-out samples of each client."""
    first = partition.start + partition.size
    return samples_of(partition._replace(start=first, size=partition.held_out))


def test_rounding_of_the_share_keeps_one_sample_to_train_on():
    size = np.arange(1, 3000)
    for share in (0.01, 0.1, 0.2, 0.35, 0.5, 0.9):
        found = np.asarray(num_held_out(jnp.asarray(size), share))
        np.testing.assert_array_equal(found, num_held_out(size, share, np))
        wanted = np.maximum(1, np.round(share * size))
        assert np.abs(found - np.minimum(wanted, size - 1)).max() <= 1  # float32 at a half
        assert found[0] == 0
        assert (found[1:] >= 1).all()
        assert (found < size).all()


@pytest.mark.nightly
@pytest.mark.parametrize("partition", [Iid(), Dirichlet(), Natural()], ids=lambda p: p.name)
def test_held_out_samples_are_a_random_part_of_each_clients_samples(partition):
    clients = np.sort(np.arange(NUM_SAMPLES) % 9)
    data = data_of(clients=clients if partition.keeps_clients else None)
    learning = learning_of(partition=partition)
    whole = started(learning.replace(holdout=0.0), data)[1].partition
    part = started(learning, data)[1].partition
    np.testing.assert_array_equal(part.quality, whole.quality)
    np.testing.assert_array_equal(part.size + part.held_out, whole.size)
    np.testing.assert_array_equal(part.held_out, num_held_out(np.asarray(whole.size), 0.25, np))
    first = part.start + part.size
    leads = 0
    for k, held in enumerate(held_by(part)):
        before = np.asarray(whole.order[whole.start[k] :][: whole.size[k]])
        trained = np.asarray(part.order[part.start[k] : first[k]])
        assert sorted([*trained, *held]) == sorted(before)
        leads += sum(np.isin(before[: len(held)], held))
    total = int(part.held_out.sum())
    assert 0 < leads < total  # neither the first nor the last samples of the slices


def test_held_out_samples_follow_the_key():
    size = jnp.asarray([6, 6], jnp.int32)
    partition = Partition(jnp.arange(12), jnp.asarray([0, 6]), size, jnp.ones(2))
    draw = jax.jit(functools.partial(hold_out, partition=partition, share=0.5))
    found = [np.asarray(draw(key).order) for key in jax.random.split(KEY, 20)]
    assert len({tuple(order) for order in found}) == 20
    counts = np.bincount(np.concatenate([np.r_[o[3:6], o[9:]] for o in found]), minlength=12)
    assert counts.min() >= 3
    assert counts.max() <= 17


def test_held_out_samples_are_never_trained_on():
    learning = learning_of(partition=Dirichlet(concentration=1.0, min_quality=0.5))
    _, state = started(learning, data_of())
    planted = [held[0] for held in held_by(state.partition) if len(held)]
    assert len(planted) > 4
    clients = jnp.arange(NUM_CLIENTS)
    chosen = Selection(clients, jnp.full(NUM_CLIENTS, 1 / NUM_CLIENTS))

    @jax.jit
    def play(data, state, key):
        learner = learning.build(data, NUM_CLIENTS)
        state, trained = learner.train(key, state, chosen, lambda updates: updates)
        return state, (trained, learner.ask(KEY, state, clients, None))

    def rounds(data):
        after, found = state, []
        for key in jax.random.split(KEY, 3):
            after, seen = play(data, after, key)
            found.append(seen)
        return after.variables, found

    plain = rounds(data_of())
    jax.tree.map(np.testing.assert_array_equal, plain, rounds(data_of(planted=planted)))
    trained = [int(state.partition.order[start]) for start in state.partition.start]
    other = rounds(data_of(planted=trained))
    assert not np.array_equal(other[1][0][0].loss, plain[1][0][0].loss)


@pytest.mark.parametrize("chunk", [1000, 4])
def test_client_scores_equal_an_evaluation_one_by_one(monkeypatch, chunk):
    monkeypatch.setattr("pause_jax.learning.evaluation.EVAL_CHUNK", chunk)
    learning = learning_of(partition=Dirichlet(concentration=1.0, min_quality=0.5))
    data = data_of()
    learner, state = started(learning, data)
    found = jax.jit(learner.evaluate_clients)(state)
    assert set(found) == {"test_loss", "test_accuracy"}
    kernel, bias = (np.asarray(leaf) for leaf in _weights(state))
    for k, held in enumerate(held_by(state.partition)):
        if not len(held):
            assert np.isnan(found["test_loss"][k])
            continue
        x = np.asarray(data.x_train)[held] + _noise(state, held, k)
        logits = x @ kernel + bias
        y = np.asarray(data.y_train)[held]
        log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(found["test_loss"][k], -log[np.arange(len(y)), y].mean(), 1e-5)
        np.testing.assert_allclose(found["test_accuracy"][k], (logits.argmax(1) == y).mean())


def _weights(state):
    leaves = {leaf.ndim: leaf for leaf in jax.tree.leaves(state.variables["params"])}
    return leaves[2], leaves[1]


def _noise(state, rows, client):
    words = draws.bits_of(state.inputs, jnp.asarray(rows), 4)
    return np.asarray(draws.normal_from(words)) * (1 - float(state.partition.quality[client])) / 4


def test_clients_with_one_sample_and_broken_models_have_no_score():
    owner = np.repeat(np.arange(4), [1, 5, 1, 2])
    learning = learning_of(partition=Natural())
    learner, state = started(learning, data_of(9, clients=owner), 4)
    assert state.partition.size.tolist() == [1, 4, 1, 1]
    evaluate = jax.jit(learner.evaluate_clients)
    for values in evaluate(state).values():
        assert np.isnan(values).tolist() == [True, False, True, False]
    broken = jax.tree.map(lambda x: x + jnp.inf, state.variables)
    assert np.isnan(evaluate(state._replace(variables=broken))["test_accuracy"]).all()


def test_a_thousand_clients_allocate_no_client_by_sample_table():
    num_clients, num_samples = 1000, 20_000
    learner = learning_of(partition=Iid()).build(data_of(num_samples), num_clients)
    state = jax.eval_shape(learner.init, keys.streams(KEY))
    trace = jax.make_jaxpr(learner.evaluate_clients)(state)
    largest = max(
        np.prod(v.aval.shape, dtype=int) for eqn in _equations(trace.jaxpr) for v in eqn.outvars
    )
    assert num_clients <= largest < num_clients * num_samples / 100


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(value, "jaxpr"):
                yield from _equations(value.jaxpr)


def test_equal_partitions_stay_equal_and_train_the_needed_steps():
    learning = learning_of(partition=Iid())
    _, state = started(learning, data_of())
    size = state.partition.size
    assert set(size.tolist()) == set(learning.local_samples(size).tolist()) == {9}  # of 12


def test_program_without_holdout_is_unchanged():
    learner = learning_of().replace(holdout=0.0).build(data_of(), NUM_CLIENTS)
    assert learner.evaluate_clients is None
    assert jax.eval_shape(learner.init, keys.streams(KEY)).partition.held_out is None


def test_policies_see_the_number_of_training_samples():
    sizes = {"num_clients": NUM_CLIENTS, "num_selected": 2}
    config, data = prepare(SimConfig(learning=learning_of(), **sizes), data_of())
    learner = learner_of(config, data)
    streams = keys.streams(KEY)
    state = jax.jit(learner.init)(streams)
    context = setup_of(config, learner, state, streams.world).context
    np.testing.assert_array_equal(context.data_size, state.partition.size)
    assert state.partition.held_out.sum() > 0
