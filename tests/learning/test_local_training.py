import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pause_jax.bandit import Selection
from pause_jax.learning import (
    Dataset,
    Execution,
    LearnerState,
    Linear,
    Partition,
    cohort,
    evaluation,
)
from pause_jax.learning.client import Keys, LocalTraining, Slot, train_locally
from pause_jax.learning.cohort import clients_that_fit, training_bytes
from pause_jax.learning.evaluation import evaluate
from pause_jax.learning.learner import all_finite, trained_part
from pause_jax.learning.models import linen_network
from pause_jax.learning.server import added, averaged, mean_update, train_cohort
from pause_jax.learning.task import Regression, task_of
from pause_jax.learning.work import LocalWork, Steps
from tests.reference import sgd, threefry

pytestmark = pytest.mark.slow

NUM_SAMPLES, NUM_FEATURES, NUM_CLASSES = 60, 5, 3
OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}
LEARNING_RATE = 0.05
NOISE_KEY = jax.random.key(99)


def make_dataset(task: str, num_test: int = 17) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NUM_SAMPLES + num_test, NUM_FEATURES)).astype(np.float32)
    if task == "regression":
        y = (x @ rng.standard_normal(NUM_FEATURES)).astype(np.float32)
    else:
        y = rng.integers(NUM_CLASSES, size=len(x)).astype(np.int32)
    return Dataset(
        x_train=jax.device_put(x[:NUM_SAMPLES]),
        y_train=jax.device_put(y[:NUM_SAMPLES]),
        x_test=jax.device_put(x[NUM_SAMPLES:]),
        y_test=jax.device_put(y[NUM_SAMPLES:]),
        pixel_max=0,
        num_classes=1 if task == "regression" else NUM_CLASSES,
    )


def make_partition(*sizes: int, total: int = NUM_SAMPLES, quality: float = 1.0) -> Partition:
    order, size = np.random.default_rng(1).permutation(total), np.asarray(sizes)
    partition = Partition(
        order=order.astype(np.int32),
        start=(np.cumsum(size) - size).astype(np.int32),
        size=size.astype(np.int32),
        quality=np.full(len(sizes), quality, np.float32),
    )
    return jax.device_put(partition)


def make_training(
    dataset: Dataset,
    *,
    batch_size: int,
    max_samples: int,
    optimizer: str = "sgd",
    largest: int | None = None,
    module: nn.Module | None = None,
    noisy_inputs: bool = False,
) -> LocalTraining:
    return LocalTraining(
        network=linen_network(
            Linear().module(dataset.num_classes) if module is None else module, draws=False
        ),
        task=task_of(dataset),
        optimizer=OPTIMIZERS[optimizer](LEARNING_RATE),
        dataset=dataset,
        work=LocalWork(batch_size, -(-max_samples // batch_size), 1.0, None),
        largest=max_samples if largest is None else largest,
        equal=False,
        noisy_inputs=noisy_inputs,
    )


def run(training, variables, partition, clients, keys):
    """train_locally for a cohort under jit and vmap, from fresh moments."""
    fresh = training.optimizer.init(trained_part(variables))
    steps = training.work.steps(partition.size[np.asarray(clients)])
    beside = None if training.equal else steps

    def one(client, key, steps):
        slot, train_keys = Slot(client, fresh), Keys(key, NOISE_KEY)
        return train_locally(training, variables, partition, slot, steps, train_keys, beside)

    if training.equal:
        steps, own = training.work.steps(training.max_samples), None
    else:
        own = 0
    return jax.jit(jax.vmap(one, in_axes=(0, 0, own)))(np.asarray(clients), keys, steps)


def row(tree, i: int):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[i], tree)


def assert_close(actual, expected) -> None:
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, atol=1e-6), actual, expected)


def initial(training: LocalTraining):
    return training.network.init(jax.random.key(7), training.dataset.x_train[:1])


def sample_order(
    training: LocalTraining, partition: Partition, client: int, key, number: int = 0
) -> np.ndarray:
    """The order in which a client visits its samples: a random window, then a random order."""
    key = jax.random.fold_in(key, number) if number else key
    order, first, sizes, *_ = jax.device_get(partition)
    start, size = int(first[client]), int(sizes[client])
    own = order[start : start + size]
    lots = threefry.words(key, client, 1 + training.max_samples)
    return own[threefry.order_of(lots, size, training.max_samples)]


@pytest.mark.parametrize(
    ("task", "optimizer", "epochs", "batch"),
    [
        ("classification", "adam", 1.0, 4),
        ("regression", "sgd", 1.0, 7),
        ("classification", "sgd", 2.5, 4),
    ],
)
def test_update_and_loss_match_numpy_passes(task, optimizer, epochs, batch):
    dataset = make_dataset(task)
    # The last batch of 11 samples is partial. Client 2 holds more than it may use.
    partition = make_partition(11, 4, 30)
    training = make_training(
        dataset, batch_size=batch, max_samples=24, largest=30, optimizer=optimizer
    )
    if epochs > 1:
        work = training.work._replace(epochs=epochs, max_steps=30)
        partition = make_partition(11, 4, 24)
        training = training._replace(work=work, largest=24)
    variables = initial(training)
    keys = jax.random.split(jax.random.key(3), 3)
    updates, _, losses = run(training, variables, partition, [0, 1, 2], keys)
    updates, losses, start = jax.device_get((updates, losses, variables["params"]["output"]))
    for client, size in enumerate(np.asarray(partition.size)):
        steps = []
        for number in range(math.ceil(epochs)):
            order = sample_order(training, partition, client, keys[client], number)
            steps += sgd.batches(order, batch)
        per_pass = math.ceil(min(size, training.max_samples) / batch)
        expected = sgd.train(
            start["kernel"],
            start["bias"],
            np.asarray(dataset.x_train),
            np.asarray(dataset.y_train),
            steps[: math.ceil(epochs * per_pass)],
            learning_rate=LEARNING_RATE,
            optimizer=optimizer,
        )
        update = row(updates, client)["params"]["output"]
        for name, value in (("kernel", expected.kernel), ("bias", expected.bias)):
            np.testing.assert_allclose(update[name], value - start[name], rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(losses.mean[client], expected.loss, rtol=1e-5)


def test_fixed_steps_match_the_masked_loop():
    dataset = make_dataset("classification")
    partition = make_partition(11, 11)
    masked = make_training(dataset, batch_size=4, max_samples=11, optimizer="adam")
    fixed = masked._replace(equal=True)
    variables = initial(masked)
    keys = jax.random.split(jax.random.key(3), 2)
    expected = run(masked, variables, partition, [0, 1], keys)
    actual = run(fixed, variables, partition, [0, 1], keys)
    assert_close(actual, expected)


def test_surplus_steps_change_neither_model_nor_moments_nor_loss():
    dataset = make_dataset("classification")
    partition = make_partition(3, 11, 20)
    training = make_training(dataset, batch_size=4, max_samples=20, optimizer="adam")
    variables = initial(training)
    keys = jax.random.split(jax.random.key(5), 3)
    steps = training.work.steps(partition.size)
    assert steps.total.tolist() == [1, 3, 5]
    fresh = training.optimizer.init(trained_part(variables))

    def one(client, key, own, beside):
        slot, train_keys = Slot(client, fresh), Keys(key, NOISE_KEY)
        return train_locally(training, variables, partition, slot, own, train_keys, beside)

    everyone = jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))
    together = everyone(np.arange(3), keys, steps, steps)
    single = jax.jit(one, static_argnums=3)
    for client, own in enumerate(steps.total.tolist()):
        alone = single(client, keys[client], row(steps, client), None)
        assert int(alone[1][0].count) == own, "Adam counts the client's own steps"
        assert_close(row(together, client), alone)
    longer = Steps(steps.per_pass + 4, steps.total + 4)
    jax.tree.map(
        np.testing.assert_array_equal, together, everyone(np.arange(3), keys, steps, longer)
    )


class _Weights(nn.Module):
    """One weight a feature, starting at zero and without bias."""

    @nn.compact
    def __call__(self, x, train: bool = False, mask=None):
        return nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros)(x)


def test_input_noise_has_the_quality_std_and_is_fixed_per_sample():
    features, quality = 4000, 0.6
    x = np.random.default_rng(2).uniform(-1, 1, (2, features)).astype(np.float32)
    dataset = Dataset(
        x_train=jax.device_put(np.round((x + 1) * 127.5).astype(np.uint8)),
        y_train=jax.device_put(np.ones(2, np.float32)),
        x_test=np.zeros((1, features), np.uint8),
        y_test=np.ones(1, np.float32),
        pixel_max=255,
    )
    partition = make_partition(1, 1, total=2)
    partition = partition._replace(quality=jax.device_put(np.float32([quality, 1.0])))
    training = make_training(
        dataset, batch_size=1, max_samples=1, module=_Weights(), noisy_inputs=True
    )
    variables = training.network.init(jax.random.key(0), np.zeros((1, features), np.float32))

    @jax.jit
    def moves(key):
        updates, *_ = run(training, variables, partition, [0, 1], jax.random.split(key, 2))
        return updates["params"]["Dense_0"]["kernel"][:, :, 0]

    def inputs(seed: int) -> np.ndarray:
        # One step from zero weights towards target 1 moves them by rate * input.
        return np.asarray(moves(jax.random.key(seed))) / LEARNING_RATE

    clean = np.asarray(dataset.to_input(dataset.x_train))[np.asarray(partition.order)]
    noise = inputs(0) - clean
    np.testing.assert_allclose(noise[0].std(), 2 * (1 - quality) / 4, rtol=0.05)
    assert abs(noise[0].mean()) < 0.02
    np.testing.assert_allclose(noise[1], 0, atol=1e-5, err_msg="a client of quality 1")
    np.testing.assert_allclose(inputs(1), inputs(0), atol=1e-6)


@jax.jit
def moved(variables, updates, weights):
    mean = jax.tree.map(lambda x: mean_update(x, weights), updates)
    return added(variables, mean)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_empty_slot_does_not_poison_the_mean(bad):
    variables = {"w": np.ones(3, np.float32)}
    updates = {"w": np.repeat(np.float32([[2.0], [bad]]), 3, axis=1)}
    np.testing.assert_allclose(moved(variables, updates, np.float32([1.0, 0.0]))["w"], 3.0)
    taken = moved(variables, updates, np.float32([0.5, 0.5]))["w"]
    assert not np.any(np.isfinite(taken)), "a slot that takes part does count"


@pytest.fixture(scope="module")
def round_of():
    """A round of five clients of unequal size, the last slot empty, by clients side by side."""
    partition = make_partition(11, 4, 30, 3, 12)
    training = make_training(
        make_dataset("classification"), batch_size=4, max_samples=24, largest=30, optimizer="adam"
    )
    variables = initial(training)
    fresh = training.optimizer.init(trained_part(variables))
    state = jax.tree.map(lambda x: np.broadcast_to(x, (5, *x.shape)), jax.device_get(fresh))
    weights = np.float32([0.4, 0.3, 0.2, 0.1, 0.0])
    selection = jax.device_put(Selection(np.asarray([3, 0, 2, 1, 4]), weights))
    before = LearnerState(partition, variables, state, NOISE_KEY)

    @functools.cache
    def play(client_batch: int, seed: int = 0):
        @jax.jit
        def run(key, before):
            execution = Execution(client_batch)
            after, trained, updates = train_cohort(
                training, execution, key, before, selection, lambda updates: updates
            )
            return averaged(None, after, updates, weights)[0], after.clients, trained

        moved, clients, trained = jax.device_get(run(jax.random.key(seed), before))
        # What an empty slot returns means nothing.
        used = jax.tree.map(lambda x: x[:4], trained._replace(mean_loss=np.zeros(4)))
        return moved, clients, used, trained.mean_loss

    return play


@pytest.mark.parametrize("client_batch", [1, 2])
def test_round_is_independent_of_the_client_batch(round_of, client_batch):
    assert_close(round_of(client_batch), round_of(5))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 8])
def test_each_slot_is_trained_once_for_all_its_steps(batch):
    slots, steps = np.arange(7), np.asarray([3, 1, 0, 4, 1, 5, 9])

    def train(slot, beside):
        return 10 * slot[0], slot[1] if beside is None else jnp.max(beside.total)

    @jax.jit
    def train_all(slots, steps):
        return cohort.map_clients(train, (slots, steps), Steps(steps, steps), batch)

    done, bound = train_all(slots, steps)
    np.testing.assert_array_equal(done, 10 * slots)
    assert (np.asarray(bound) >= steps).all()


def test_each_backend_has_its_client_batch_limit(monkeypatch):
    for backend, bound in (("cpu", cohort.CPU_BYTES), ("gpu", cohort.ACCELERATOR_BYTES)):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        assert clients_that_fit(bound // 4) == 4


def test_client_batch_is_limited_by_memory(monkeypatch):
    training = make_training(make_dataset("classification"), batch_size=4, max_samples=22)
    variables = initial(training)
    # Linear 5 x 3 with bias: weights and gradient; for the gradient at least the inputs.
    least = 4 * (2 * (5 * 3 + 3) + 4 * 5)
    for name in ("CPU_BYTES", "ACCELERATOR_BYTES"):
        monkeypatch.setattr(cohort, name, 10_000)

    def side_by_side(batch_size: int) -> int:
        work = training.work._replace(batch_size=batch_size)
        return clients_that_fit(training_bytes(training._replace(work=work), variables))

    small = side_by_side(4)
    assert 10_000 // (3 * least) <= small <= 10_000 // least
    assert side_by_side(40) < small
    assert side_by_side(4000) == 1


def direct_evaluation(dataset: Dataset, variables) -> tuple[float, float]:
    layer = jax.tree.map(lambda a: np.asarray(a, np.float64), variables["params"]["output"])
    outputs = np.asarray(dataset.x_test) @ layer["kernel"] + layer["bias"]
    targets = np.asarray(dataset.y_test)
    if isinstance(task_of(dataset), Regression):
        return sgd.half_squared_error(outputs, targets)[0], np.nan
    return sgd.cross_entropy(outputs, targets)[0], np.mean(outputs.argmax(axis=1) == targets)


@pytest.mark.parametrize("chunk", [1, 5, 16, 17, 1000])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_chunked_evaluation_matches_direct_evaluation(monkeypatch, task, chunk):
    monkeypatch.setattr(evaluation, "EVAL_CHUNK", chunk)
    dataset = make_dataset(task, num_test=17)
    training = make_training(dataset, batch_size=1, max_samples=1)
    variables = initial(training)
    found = jax.jit(lambda of: evaluate(training.network, training.task, of, dataset))(variables)
    expected_loss, expected_accuracy = direct_evaluation(dataset, variables)
    np.testing.assert_allclose(found["test_loss"], expected_loss, rtol=1e-5)
    scores = [found["test_accuracy"]] if task == "classification" else []
    np.testing.assert_allclose(scores, [expected_accuracy][: len(scores)], rtol=1e-6)
    assert len(found) == 1 + len(scores)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_accuracy_of_a_nonfinite_model_is_nan(bad):
    dataset = make_dataset("classification")
    training = make_training(dataset, batch_size=1, max_samples=1)
    variables = initial(training)
    assert all_finite(variables)

    @jax.jit
    def accuracy(of):
        return evaluate(training.network, training.task, of, dataset)["test_accuracy"]

    assert np.isfinite(accuracy(variables))
    output = variables["params"]["output"]
    broken = {"params": {"output": {**output, "bias": np.float32([0.0, bad, 0.0])}}}
    assert not all_finite(broken)
    assert np.isnan(accuracy(broken))
