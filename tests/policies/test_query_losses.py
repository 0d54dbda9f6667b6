"""What asked clients answer, on real data, and what it costs: the queries of Power-of-Choice."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Learning, SimConfig, simulate
from pause_jax.config import canonical
from pause_jax.learning import Dataset, Digits, Linear, Natural, evaluation
from pause_jax.learning.evaluation import distinct_places, local_loss
from pause_jax.policies import PowerOfChoice
from pause_jax.rng import draws
from pause_jax.rng import keys as named_keys
from pause_jax.run.preflight import prepare
from tests.reference import power_of_choice as oracle
from tests.reference import round_keys
from tests.support.network import context
from tests.support.runs import initial_state

pytestmark = pytest.mark.slow

LEARN = SimConfig(
    num_clients=8,
    num_selected=2,
    num_rounds=6,
    eval_every=6,
    availability=0.8,
    track_regret=False,
    learning=Learning(partition=Natural(), model=Linear(), max_steps=2),
)
SIZES = (14, 20, 30, 40, 56, 70, 80, 90)


@functools.cache
def samples():
    """400 digits in the order of their labels: clients differ in size and in loss."""
    digits = Digits().load()
    order = np.argsort(digits.y_train[:400], kind="stable")
    owner = np.repeat(np.arange(LEARN.num_clients), SIZES)
    return Dataset.of(
        *(digits.x_train[order], digits.y_train[order], digits.x_test, digits.y_test),
        clients=owner,
        pixel_max=16,
    )


@functools.cache
def run(loss):
    policy = PowerOfChoice(loss=loss, candidates=4, batch_size=16, query_share=0.5)
    record = ("clients", "queried", "query_seconds", "latency", "data_size")
    config = LEARN.replace(policy=policy)
    return jax.device_get(simulate(config, jax.random.key(2), samples(), record=record))


@functools.cache
def network():
    """(training, learner, its state before round 1, bound on a client's samples) of LEARN."""
    config, data = prepare(LEARN, samples())
    state = jax.jit(initial_state)(config, data, jax.random.key(2)).learning
    learning, num_clients = config.learning, config.num_clients
    bound = learning.partition.max_size(learning.num_samples(data), num_clients)
    learner = learning.build(data, num_clients)
    return learning.local_training(data, bound), learner, state, bound


def sample_losses(client):
    """Loss of each of a client's samples at the initial model, float64."""
    training, _, state, _ = network()
    data, part = training.dataset, state.partition
    start, size = (int(np.asarray(each)[client]) for each in (part.start, part.size))
    rows = np.asarray(part.order)[start : start + size]
    x = np.asarray(data.x_train, np.float64)[rows].reshape(size, -1) * 2 / data.pixel_max - 1
    layer = next(iter(state.variables["params"].values()))
    return oracle.softmax_losses(layer["kernel"], layer["bias"], x, np.asarray(data.y_train)[rows])


@pytest.mark.parametrize("chunk", [256, 16])
def test_a_full_answer_is_the_mean_loss_on_all_data_of_the_client(monkeypatch, chunk):
    monkeypatch.setattr(evaluation, "QUERY_CHUNK", chunk)
    _, learner, state, _ = network()
    clients = np.arange(LEARN.num_clients)
    ours = jax.jit(lambda key: learner.ask(key, state, clients, None))(jax.random.key(5))
    slow = [sample_losses(k).mean() for k in range(LEARN.num_clients)]
    np.testing.assert_allclose(ours, slow, rtol=1e-5)
    # Clients differ by far more than the tolerance.
    assert np.ptp(slow) > 0.1


def test_a_batch_answer_is_the_mean_over_distinct_samples_of_the_client():
    training, _, state, _ = network()
    client = int(np.asarray(state.partition.size).argmin())
    values = sample_losses(client)
    count = len(values) - 2
    subsets = np.array([np.mean(some) for some in itertools.combinations(values, count)])

    def one(key):
        lots = draws.bits(key, (count,))
        return local_loss(training, state.variables, state.partition, client, lots, key)

    ours = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), 3000)))
    assert np.abs(ours[:, None] - subsets[None, :]).min(axis=1).max() < 2e-6
    assert abs(ours.mean() - values.mean()) < 4.5 * subsets.std() / len(ours) ** 0.5
    np.testing.assert_allclose(ours.var(), subsets.var(), rtol=0.15)
    # Negative control: batches with repetition scatter far more.
    assert values.var() / count > 5 * subsets.var()


@functools.partial(jax.jit, static_argnums=2)
def places_of(keys, size, count):
    return jax.vmap(lambda key: distinct_places(draws.bits(key, (count,)), size))(keys)


def places(size, count, times):
    return np.asarray(places_of(jax.random.split(jax.random.key(4), times), size, count))


def off_uniform(drawn, size, count):
    """Largest distance of a subset's frequency from uniform, in standard deviations."""
    subsets = list(itertools.combinations(range(size), count))
    seen = [subsets.index(tuple(row)) for row in np.sort(drawn, axis=1).tolist()]
    frequency, chance = np.bincount(seen, minlength=len(subsets)) / len(seen), 1 / len(subsets)
    return np.abs(frequency - chance).max() / np.sqrt(chance * (1 - chance) / len(seen))


@pytest.mark.parametrize(("size", "count"), [(5, 2), (6, 4), (7, 6)])
def test_distinct_places_are_a_uniform_subset(size, count):
    drawn = places(size, count, 6000)
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    assert off_uniform(drawn, size, count) < 4.5
    # Negative control: always the smallest of two subsets is not.
    first = np.minimum(np.sort(drawn[::2], axis=1), np.sort(drawn[1::2], axis=1))
    assert off_uniform(first, size, count) > 10


@pytest.mark.parametrize("size", [1, 3])
def test_a_client_with_too_few_samples_uses_them_all(size):
    drawn = places(size, 5, 50)
    for row in drawn:
        assert sorted(row[row >= 0].tolist()) == list(range(size))
    assert (drawn == -1).sum() == 50 * (5 - size)


# --- a whole run


def asked_in(loss):
    """(who is asked [T, K], seconds of each client's round [T, K]) in ``run``, recomputed."""
    config, num_clients = canonical(LEARN), LEARN.num_clients
    size = network()[2].partition.size
    policy = run(loss).config.policy.build(context(size, LEARN.num_selected))

    @jax.jit
    @jax.vmap
    def one_round(t):
        keys = named_keys.streams(jax.random.key(2))
        latency = config.latency.sample(round_keys.latency(keys.world, t), num_clients)
        present = jax.random.bernoulli(round_keys.availability(keys.world, t), 0.8, (num_clients,))
        ask_key, _ = named_keys.question_and_choice(named_keys.choice(keys.policy, t))
        clients, mask = policy.query.ask(ask_key, policy.init(), t, present)
        return jnp.zeros(num_clients).at[clients].add(mask), latency

    return jax.device_get(one_round(np.arange(1, LEARN.num_rounds + 1)))


@pytest.mark.parametrize("loss", ["full", "batch"])
def test_queries_cost_time_and_their_releases_are_listed(loss):
    result, (asked, latency) = run(loss), asked_in(loss)
    np.testing.assert_array_equal(result.queried, asked.sum(axis=0))
    size = np.asarray(result.data_size)
    # Two steps of 20 samples are a round's training; half of the time for as many in a query.
    samples = size if loss == "full" else np.minimum(size, 16)
    seconds = asked * latency * 0.5 * samples / np.minimum(size, 40)
    np.testing.assert_allclose(result.query_seconds, seconds.max(axis=1), rtol=1e-5)
    clients = np.asarray(result.clients)
    slowest = [latency[t, row[row >= 0]].max() for t, row in enumerate(clients)]
    np.testing.assert_allclose(result.latency, slowest + seconds.max(axis=1), rtol=1e-5)
    for t, row in enumerate(clients):
        assert asked[t, row[row >= 0]].all()
    assert result.unnoised == ("the loss of each queried client",)
    if loss == "full":
        mean = [sample_losses(k).mean() for k in range(LEARN.num_clients)]
        best = oracle.largest(np.flatnonzero(asked[0]), mean, LEARN.num_selected)
        assert set(clients[0].tolist()) == best


def test_stale_variant_releases_training_losses():
    words = ("the training loss of each chosen client",)
    assert PowerOfChoice(loss="stale").releases == words
