"""Arrays of one's own: what they become, and what is refused before anything starts."""

import functools
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, config_file, simulate, sweep
from pause_jax.learning import (
    Characters,
    Classification,
    Cnn3,
    Dataset,
    Dirichlet,
    DirichletLabels,
    Files,
    Iid,
    Linear,
    Natural,
    NextToken,
    Regression,
    Shards,
)
from pause_jax.learning.task import task_of
from tests.learning.test_partition import samples_of
from tests.support.learners import KEY, config

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(50, 4, 4, 1), dtype=np.uint8)
FEATURES = RNG.standard_normal((50, 6))
LABELS = RNG.integers(3, size=50)
NAMES = np.asarray(["cora", "ann", "bo", "ann", "dora"] * 10)


base = functools.partial(config, 2, model=Linear(), partition=Dirichlet())
RECORD = ("test_loss", "test_accuracy")
run = functools.partial(simulate, record=RECORD)


def test_missing_test_set_is_drawn_by_the_seed():
    numbered = np.arange(50.0)[:, None]
    one, same, other = (Dataset.of(numbered, LABELS, seed=seed) for seed in (0, 0, 1))
    assert (len(one.x_train), len(one.x_test)) == (40, 10)
    np.testing.assert_array_equal(one.x_test, same.x_test)
    assert not np.array_equal(one.x_test, other.x_test)
    together = np.concatenate([one.x_train, one.x_test])[:, 0]
    np.testing.assert_array_equal(np.sort(together), np.arange(50))
    held = one.x_test[:, 0].astype(int)
    np.testing.assert_array_equal(one.y_test, LABELS[held])
    assert len(Dataset.of(numbered, LABELS, test_share=0.5).x_test) == 25


@pytest.mark.parametrize(
    ("y", "task"),
    [(LABELS, Classification), (FEATURES[:, 0], Regression), (FEATURES[:, :2], Regression)],
)
def test_task_follows_from_the_targets(y, task):
    data = Dataset.of(FEATURES, y)
    assert isinstance(task_of(data), task)
    result = run(base(), KEY, data)
    assert np.isfinite(result.test_loss).all()
    assert np.isfinite(result.test_accuracy).all() == (task is Classification)


def test_column_of_targets_trains_like_a_vector():
    # As y[:, None] against outputs [B, 1] of y: once broadcast to [B, B], a loss of another size.
    column, plain = (Dataset.of(FEATURES, y) for y in (FEATURES[:, :1], FEATURES[:, 0]))
    losses = [run(base(), KEY, data).test_loss for data in (column, plain)]
    np.testing.assert_array_equal(*losses)


def test_floats_between_zero_and_one_are_not_rescaled():
    data = Dataset.of(PIXELS / 255, LABELS)
    assert data.to_input(data.x_train) is data.x_train
    assert data.x_train.max() <= 1


NAN = FEATURES.copy()
NAN[3, 2] = np.nan


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((FEATURES, LABELS[:40]), r"y_train has shape \(40,\): .* each of the 50 samples"),
        ((FEATURES, LABELS, FEATURES[:5]), "x_test and y_test: must be passed together"),
        (
            (FEATURES, LABELS, FEATURES[:5], LABELS[:4]),
            "y_test .* each of the 5 samples",
        ),
        ((FEATURES, LABELS, FEATURES[:5, :2], LABELS[:5]), r"samples of x_test have shape \(2,\)"),
        ((FEATURES, LABELS, FEATURES[:0], LABELS[:0]), "x_test is empty"),
        ((NAN, LABELS, FEATURES, LABELS), r"x\[3, 2\] = nan: must be finite"),
        ((FEATURES, np.where(LABELS, 1e39, 0.0)), "must be finite"),
        ((FEATURES, LABELS - 1), "has a label -1: must be >= 0"),
        ((FEATURES[:, 0], LABELS), r"x_train has shape \(40,\): must be \[N, ...\]"),
        ((FEATURES, LABELS[:, None]), r"labels must have shape \[N\], .* Use y\[:, 0\]"),
        ((FEATURES, np.eye(3, dtype=int)[LABELS]), "y.argmax"),
        ((PIXELS.astype(int), LABELS), "Use uint8 for pixels"),
        ((FEATURES, LABELS.astype(str)), "y has dtype .*must be numbers"),
        ((FEATURES.astype("timedelta64[s]"), LABELS), "x has dtype timedelta64.*must be numbers"),
        ((FEATURES, np.ma.masked_equal(LABELS, LABELS[0])), "y: has masked entries"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "x: must be an array with rows of equal length"),
        ((FEATURES, 3), "each of the 50 samples"),
    ],
)
def test_invalid_arrays_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words) as error:
        Dataset.of(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words", "rule"),
    [
        ((FEATURES, LABELS), {"pixel_max": 255}, "x_train is float32, and pixel_max = 255"),
        ((PIXELS, LABELS), {"pixel_max": 16}, r"a pixel of 25\d: must be <= pixel_max = 16"),
        ((PIXELS, LABELS), {"pixel_max": 0}, "x_train is uint8, but pixel_max = 0"),
        ((FEATURES, LABELS), {"num_classes": 2}, "has a label 2: must be >= 0 and < num_classes"),
        ((FEATURES, LABELS), {"test_share": float("nan")}, "test_share = nan: yields "),
        ((FEATURES, LABELS), {"seed": -1}, "seed = -1: must be a whole number >= 0"),
        ((PIXELS, LABELS), {"pixel_max": float("nan")}, "pixel_max = nan: must be a whole number"),
        ((FEATURES, LABELS), {"num_classes": 2.5}, "num_classes = 2.5: must be a whole"),
        ((FEATURES, LABELS), {"test_share": 0.001}, "test_share = 0.001: yields 0 test samples"),
        ((FEATURES, LABELS), {"clients": LABELS[:3]}, r"clients has shape \(3,\)"),
    ],
)  # fmt: skip
def test_invalid_dataset_options_are_refused(arguments, words, rule):
    with pytest.raises(ConfigError, match=rule):
        Dataset.of(*arguments, **words)


def test_error_gives_the_position_in_the_original_arrays():
    for bad in (3, 17, 49):  # a fifth of the samples is drawn for the test set
        x = FEATURES.copy()
        x[bad, 2] = np.inf
        with pytest.raises(ConfigError, match=rf"^x\[{bad}, 2\] = inf: must be finite"):
            Dataset.of(x, LABELS)


def test_booleans_are_valid_labels_and_features():
    data = Dataset.of(FEATURES > 0, LABELS > 0)
    assert (data.x_train.dtype, data.y_train.dtype) == (jnp.float32, jnp.int32)
    assert (data.num_classes, data.pixel_max) == (2, 0)
    base(model=Linear()).learning.load(4, data)
    numbers = Dataset.of((FEATURES > 0).astype(float), (LABELS > 0).astype(int))
    assert data.digest == numbers.digest


def test_data_set_repr_is_one_line():
    text = repr(Dataset.of(PIXELS, LABELS, clients=LABELS))
    assert text == (
        "Dataset(x_train=uint8[40, 4, 4, 1], y_train=int32[40], x_test=uint8[10, 4, 4, 1], "
        "y_test=int32[10], 3 clients, pixel_max=255, num_classes=3)"
    )
    assert "x_train=?[]" in repr(jax.tree.map(lambda leaf: None, raw()))


def test_model_mismatch_with_passed_arrays_names_no_data_set():
    with pytest.raises(ConfigError, match=r"inputs of shape \(6,\) \(") as error:
        simulate(base(model=Cnn3()), KEY, Dataset.of(FEATURES, LABELS))
    assert "digits" not in str(error.value)
    config = base().override({"learning.data.num_train": 99})
    with pytest.raises(
        ConfigError, match=r"num_train = 99: must be <= 40, the number of training samples."
    ):
        simulate(config, KEY, Dataset.of(FEATURES, LABELS))


def raw(**changes) -> Dataset:
    train = {"x_train": FEATURES[:40], "y_train": LABELS[:40]}
    test = {"x_test": FEATURES[40:], "y_test": LABELS[40:]}
    return Dataset(**{**train, **test, "num_classes": 3, **changes})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw(pixel_max=255), "pixels must be uint8"),
        (raw(num_classes=2), "has a label 2"),
        (raw(y_test=LABELS[:4]), "one entry for each of the 10 samples"),
        (raw(clients=np.r_[[0] * 20, [2] * 20]), "client 1 has no samples"),
        (FEATURES, r"data = ndarray: must be a pause_jax.learning.Dataset, or None"),
    ],
)
def test_hand_made_data_set_is_validated(data, words):
    with pytest.raises(ConfigError, match=words):
        simulate(base(), KEY, data)
    with pytest.raises(ConfigError, match=words):
        sweep(base(), jax.random.split(KEY, 2), data=data, progress=False)


def test_hand_made_data_set_matches_dataset_of():
    made = Dataset.of(FEATURES[:40], LABELS[:40], FEATURES[40:], LABELS[40:])
    by_hand = raw()
    one, other = (run(base(), KEY, data) for data in (made, by_hand))
    np.testing.assert_array_equal(one.test_loss, other.test_loss)


def test_tokens_require_a_suitable_model_and_partition():
    tokens = np.tile(np.arange(20) % 5, (30, 1))
    data = Dataset.of(tokens[:, :-1], tokens[:, 1:])
    assert isinstance(task_of(data), NextToken)
    assert data.num_classes == 5
    with pytest.raises(ConfigError, match=r"linear: requires float inputs, but x_train .* tokens"):
        simulate(base(), KEY, data)
    with pytest.raises(ConfigError, match=r"min_quality = 0\.5: must be 1"):
        simulate(base(partition=Iid(min_quality=0.5)), KEY, data)
    with pytest.raises(ConfigError, match="has a token of -1"):
        Dataset.of(tokens - 1, LABELS[:30])
    with pytest.raises(ConfigError, match=r"x_test has a token 5: .* < num_classes = 5"):
        Dataset.of(tokens[:, :-1], tokens[:, 1:], tokens[:, :-1] + 1, tokens[:, 1:], num_classes=5)


def test_single_label_is_refused():
    with pytest.raises(ConfigError, match="num_classes = 1: must be >= 2"):
        simulate(base(), KEY, Dataset.of(FEATURES, 0 * LABELS))


def test_explicit_task_must_fit_the_targets():
    data = Dataset.of(FEATURES, LABELS)
    said = run(base(task=Classification()), KEY, data)
    np.testing.assert_array_equal(said.test_loss, run(base(), KEY, data).test_loss)
    with pytest.raises(ConfigError, match=r"regression: y_train is int32 .*floats"):
        simulate(base(task=Regression()), KEY, data)


# ---------------------------------------------------------------- clients of their own


def test_natural_clients_hold_their_samples():
    data = Dataset.of(PIXELS, LABELS, PIXELS[:5], LABELS[:5], clients=NAMES)
    partition = partition_of(Natural(), data, 4)
    held = samples_of(partition)
    for name, rows in zip(["ann", "bo", "cora", "dora"], held, strict=True):
        np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(name == NAMES))


def test_surplus_natural_clients_are_drawn_at_random():
    owner = np.repeat(np.arange(10), 5)
    data = Dataset.of(FEATURES, LABELS, FEATURES, LABELS, clients=owner)
    drawn = []
    for partition in partitions_of(Natural(), data, 4, seeds=20):
        clients = [set(owner[rows]) for rows in samples_of(partition)]
        assert all(len(each) == 1 for each in clients)
        numbers = [each.pop() for each in clients]
        assert numbers == sorted(set(numbers))
        drawn += numbers
    assert set(drawn) == set(range(10))


@pytest.mark.parametrize(
    ("config", "clients", "words"),
    [
        (base(partition=Natural()), None, "the data set has no client ids"),
        (base(partition=Natural()), [0] * 30 + [1] * 20, "num_clients = 4: must be <= 2"),
        (
            base(partition=Natural()).override({"learning.data.num_train": 10}),
            [0, 1, 2, 3, 4] * 10,
            "num_train = 10: must not be set",
        ),
    ],
)
def test_natural_partition_requires_client_ids(config, clients, words):
    data = Dataset.of(FEATURES, LABELS, FEATURES, LABELS, clients=clients)
    with pytest.raises(ConfigError, match=words):
        simulate(config, KEY, data)


def partition_of(config, data, num_clients):
    (partition,) = partitions_of(config, data, num_clients, 1)
    return partition


def partitions_of(config, data, num_clients, seeds):
    number = len(data.y_train)
    config.check_data(data, number, num_clients)
    assign = jax.jit(lambda key: config.assign(key, data, number, num_clients))
    return jax.device_get([assign(jax.random.key(seed)) for seed in range(seeds)])


@pytest.mark.parametrize("config", [Shards(), DirichletLabels()])
def test_label_skew_requires_labels(config):
    with pytest.raises(ConfigError, match=f"learning.partition = {config.name}: requires labels"):
        simulate(base(partition=config), KEY, Dataset.of(FEATURES, FEATURES[:, 0]))
    words = "4 clients need 400 shards" if isinstance(config, Shards) else "must be <= "
    small = (
        base(partition=Shards(per_client=100))
        if words.startswith("4")
        else base(partition=config).replace(num_clients=41)
    )
    with pytest.raises(ConfigError, match=words):
        simulate(small, KEY, Dataset.of(FEATURES, LABELS))


def test_tokens_have_no_dominant_label():
    tokens = np.tile(np.arange(20) % 5, (30, 1))
    data = Dataset.of(tokens[:, :-1], tokens[:, 1:])
    assert partition_of(Dirichlet(), data, 4).size.sum() == len(data.y_train)


# ---------------------------------------------------------------- files


def test_single_file_is_a_data_set(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=PIXELS, y=LABELS, x_test=PIXELS[:5], y_test=LABELS[:5], clients=NAMES)
    data = Files(path=str(path)).load()
    direct = Dataset.of(PIXELS, LABELS, PIXELS[:5], LABELS[:5], clients=NAMES)
    assert data.digest == direct.digest


def write(folder, name, **arrays):
    np.savez(folder / name, **arrays)
    return folder


def no_array(folder):
    np.savez(folder / "a.npz", x=FEATURES)
    with zipfile.ZipFile(folder / "a.npz", "a") as archive:
        archive.writestr("y.npy", b"text")
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: f / "none", "must be an existing .npz file"),
        (lambda f: f, "must have one .npz file per client"),
        (lambda f: (f / "a.npz", (f / "a.npz").write_text("text"))[0], "must be an .npz file"),
        (lambda f: write(f, "a.npz", x=FEATURES), "must have the arrays x and y, .* but has x"),
        (lambda f: write(f, "a.npz", x=FEATURES, y=LABELS, z=LABELS), "but has x, y, z"),
        (lambda f: write(f, "a.npz", x=FEATURES[:0], y=LABELS[:0]), "same nonzero number"),
        (lambda f: write(f, "a.npz", x=FEATURES, y=LABELS[:4]), r"x has .* and y has shape \(4,\)"),
        (lambda f: write(f, "a.npz", x=1.0, y=2.0), r"x has shape \(\) and y has shape \(\)"),
        (lambda f: write(write(f, "a.npz", x=FEATURES, y=LABELS), "b.npz", x=PIXELS, y=LABELS),
         "samples of x have shape .* in a.npz, but"),
        (lambda f: write(write(f, "a.npz", x=PIXELS, y=LABELS), "b.npz", x=PIXELS / 255, y=LABELS),
         r"samples of x have shape \(4, 4, 1\) and dtype kind u in a\.npz, .* dtype kind f"),
        (no_array, r"must be an \.npz file of numbers \(y is not a \.npy array\)"),
        (lambda f: write(f, "a.npz", x=NAN, y=LABELS), "learning.data.path = .*must be finite"),
    ],
)  # fmt: skip
def test_invalid_files_are_refused(tmp_path, make, words):
    with pytest.raises(ConfigError, match=words) as error:
        simulate(base(data=Files(path=str(make(tmp_path)))), KEY)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- characters


def test_characters_have_one_client_per_topic():
    from pydoc_data.topics import topics

    data = Characters(length=30).load()
    assert data.x_train.shape[1] == 30
    np.testing.assert_array_equal(np.asarray(data.x_train)[:, 1:], np.asarray(data.y_train)[:, :-1])
    first = sorted(topics)[0]
    letters = [Characters.ALPHABET[code] for code in np.asarray(data.x_train)[0]]
    assert "".join(letters) == topics[first][:30]
    clients = int(data.clients.max()) + 1
    assert clients == sum(len(text) > 30 for text in topics.values())
    total = len(data.x_train) + len(data.x_test)
    assert total == sum((len(text) - 1) // 30 for text in topics.values())


# ---------------------------------------------------------------- what a result says


def test_sweep_records_that_arrays_were_passed():
    data = Dataset.of(FEATURES, LABELS)
    seeds = jax.random.split(KEY, 1)
    swept = sweep({"mine": base()}, seeds, data=data, record=RECORD, progress=False)
    text = swept.config_toml.item()
    assert "digits" not in text
    assert f'digest = "{data.digest}"' in text
    with pytest.raises(ConfigError, match="the arrays were passed in Python"):
        simulate(config_file.loads(text), KEY)
    again = run(config_file.loads(text), seeds[0], data)
    np.testing.assert_allclose(again.test_loss, swept.test_loss[0, 0], rtol=1e-5)


def test_data_can_be_traced():
    data = Dataset.of(FEATURES, LABELS)
    inside = jax.jit(lambda data: run(base(), KEY, data).test_loss)(data)
    np.testing.assert_allclose(inside, run(base(), KEY, data).test_loss, rtol=1e-5)
