import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.learning import Dirichlet, Iid, Partition, PartitionConfig

NUM_LABELS = 10
BALANCED = np.arange(1200, dtype=np.int32) % NUM_LABELS


def draw(
    config: PartitionConfig,
    labels: np.ndarray,
    num_samples: int,
    num_clients: int,
    *,
    draws: int = 20,
    seed: int = 0,
) -> Partition:
    """``draws`` partitions under jit and vmap over keys; leaves [draws, ...]."""

    def assign(config: PartitionConfig, key: jax.Array) -> Partition:
        return config.assign(key, jnp.asarray(labels), num_samples, num_clients, NUM_LABELS)

    keys = jax.random.split(jax.random.key(seed), draws)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(assign, in_axes=(None, 0)))(config, keys))


def rows(partitions: Partition) -> list[Partition]:
    return [Partition(*row) for row in zip(*partitions, strict=True)]


def samples_of(partition: Partition) -> list[np.ndarray]:
    """The samples of each client."""
    return [
        partition.order[start : start + size]
        for start, size in zip(partition.start, partition.size, strict=True)
    ]


def assert_valid(partition: Partition, total_samples: int, handed_out: int) -> None:
    """No sample twice, all of them real, everyone has some, and the slices tile the order."""
    assert partition.order.dtype == partition.start.dtype == partition.size.dtype == np.int32
    assert np.all(partition.size >= 1)
    assert partition.size.sum() == handed_out
    np.testing.assert_array_equal(
        partition.start, np.cumsum(partition.size) - partition.size, err_msg="slices overlap"
    )
    handed = np.concatenate(samples_of(partition))
    assert len(handed) == handed_out
    assert len(np.unique(handed)) == handed_out, "a sample was handed out twice"
    assert handed.min() >= 0
    assert handed.max() < total_samples
    np.testing.assert_allclose(partition.share.sum(), 1, rtol=1e-5)


def top_label_share(partition: Partition, labels: np.ndarray, min_size: int) -> float:
    """Share of the most frequent label in a client's data, mean over clients of decent size."""
    shares = [
        np.bincount(labels[samples], minlength=NUM_LABELS).max() / len(samples)
        for samples in samples_of(partition)
        if len(samples) >= min_size
    ]
    assert len(shares) >= 5
    return float(np.mean(shares))


@pytest.mark.parametrize(("num_samples", "num_clients"), [(1000, 30), (103, 7), (40, 40), (50, 1)])
def test_iid_gives_equal_disjoint_shares(num_samples, num_clients):
    size = num_samples // num_clients
    for partition in rows(draw(Iid(), BALANCED, num_samples, num_clients)):
        assert_valid(partition, len(BALANCED), size * num_clients)
        assert np.all(partition.size == size)


@pytest.mark.parametrize("dominant_share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("concentration", [0.05, 3.0, 100.0])
@pytest.mark.parametrize(("num_samples", "num_clients"), [(1000, 30), (103, 7), (40, 40)])
def test_dirichlet_hands_out_every_sample_once(
    num_samples, num_clients, concentration, dominant_share
):
    config = Dirichlet(concentration=concentration, dominant_share=dominant_share)
    for partition in rows(draw(config, BALANCED, num_samples, num_clients)):
        assert_valid(partition, len(BALANCED), num_samples)


def test_dirichlet_with_as_many_clients_as_samples_gives_one_each():
    for partition in rows(draw(Dirichlet(), BALANCED, 40, 40)):
        assert np.all(partition.size == 1)


def test_dirichlet_size_is_at_least_one_when_float32_cumulative_shares_are_not_monotone():
    # Keys for which the float32 cumulative sum of the shares falls by one ulp across a rounding
    # edge on a CPU.
    seeds = (187, 516, 646, 788, 1189)
    config = Dirichlet(concentration=0.05)
    targets = jnp.zeros(50_000)
    assign = jax.jit(lambda key: config.assign(key, targets, 50_000, 1000, 1).size)
    for seed in seeds:
        size = np.asarray(assign(jax.random.key(seed)))
        assert size.sum() == 50_000
        assert size.min() >= 1, f"seed {seed}: a client without data"


def test_dominant_label_is_a_quarter_of_a_clients_data():
    labels = np.arange(8000, dtype=np.int32) % NUM_LABELS
    shares = [
        top_label_share(partition, labels, min_size=150)
        for partition in rows(draw(Dirichlet(dominant_share=0.25), labels, 8000, 20, draws=5))
    ]
    assert 0.23 < np.mean(shares) < 0.27


def test_without_dominant_share_no_label_stands_out():
    labels = np.arange(8000, dtype=np.int32) % NUM_LABELS
    shares = [
        top_label_share(partition, labels, min_size=150)
        for partition in rows(draw(Dirichlet(dominant_share=0.0), labels, 8000, 20, draws=5))
    ]
    # 0.1, and a little more because it is the largest of ten.
    assert 0.1 < np.mean(shares) < 0.15


def test_dominant_labels_are_dealt_out_evenly():
    labels = np.arange(8000, dtype=np.int32) % NUM_LABELS
    config = Dirichlet(concentration=100.0, dominant_share=0.6)
    orders = set()
    for partition in rows(draw(config, labels, 8000, 20, draws=5)):
        tops = [
            int(np.bincount(labels[samples], minlength=NUM_LABELS).argmax())
            for samples in samples_of(partition)
        ]
        np.testing.assert_array_equal(np.bincount(tops, minlength=NUM_LABELS), 2)
        orders.add(tuple(tops))
    assert len(orders) == 5, "which client has which label must be random"


@pytest.mark.parametrize("dominant_share", [0.25, 1.0])
def test_rare_and_missing_labels_run_out_without_harm(dominant_share):
    labels = np.arange(1000, dtype=np.int32) % 8
    labels[:5] = 9  # label 8 does not exist and label 9 is far rarer than demanded
    config = Dirichlet(concentration=100.0, dominant_share=dominant_share)
    for partition in rows(draw(config, labels, 1000, 20)):
        assert_valid(partition, 1000, 1000)
        # Label 9 is dominant for two of the 20 clients: they take all that there is of it.
        holders = [k for k, samples in enumerate(samples_of(partition)) if 9 in labels[samples]]
        assert len(holders) <= 2
    if dominant_share == 0.25:
        last = samples_of(partition)
        common = [s for k, s in enumerate(last) if k not in holders]
        tops = [np.bincount(labels[s], minlength=NUM_LABELS).max() / len(s) for s in common]
        assert np.mean(tops) > 0.2, "the other clients keep their dominant label"


def test_a_label_more_frequent_than_the_dominant_share_is_not_reserved():
    labels = np.where(np.arange(4000) % 10 < 6, 0, np.arange(4000) % 10).astype(np.int32)
    for partition in rows(draw(Dirichlet(concentration=100.0), labels, 4000, 10, draws=5)):
        assert_valid(partition, 4000, 4000)
        share = [np.mean(labels[samples] == 0) for samples in samples_of(partition)]
        # Nine clients reserve a quarter of a rarer label, the rest has label 0 in proportion; the
        # client with dominant label 0 must not get more of it than chance gives.
        assert max(share) < 0.85


def test_float_targets_have_no_dominant_label():
    targets = np.linspace(-1, 1, 500).astype(np.float32)
    for partition in rows(draw(Dirichlet(), targets, 400, 9)):
        assert_valid(partition, 500, 400)
    for partition in rows(draw(Iid(), targets, 400, 9)):
        assert_valid(partition, 500, 396)


@pytest.mark.parametrize("config", [Iid(), Dirichlet()])
def test_fewer_samples_than_there_are_come_from_the_whole_set(config):
    partitions = draw(config, BALANCED, 60, 6, draws=200)
    used = np.unique(partitions.order)
    assert len(used) > 0.99 * len(BALANCED)


@pytest.mark.parametrize("config", [Iid(min_quality=0.5), Dirichlet(min_quality=0.5)])
def test_vmap_over_keys_gives_the_single_draws(config):
    keys = jax.random.split(jax.random.key(3), 3)

    def assign(key: jax.Array) -> Partition:
        return config.assign(key, jnp.asarray(BALANCED), 200, 7, NUM_LABELS)

    batched = jax.vmap(assign)(keys)
    for i in range(3):
        single = assign(keys[i])
        jax.tree.map(lambda b, s, i=i: np.testing.assert_array_equal(b[i], s), batched, single)
    assert not np.array_equal(batched.order[0], batched.order[1]), "the key has no effect"


@pytest.mark.parametrize("concentration", [0.5, 3.0])
def test_sizes_have_the_moments_of_a_dirichlet_distribution(concentration):
    num_samples, num_clients = 800, 8
    targets = np.zeros(num_samples, np.float32)
    config = Dirichlet(concentration=concentration)
    size = draw(config, targets, num_samples, num_clients, draws=1500).size
    share = (size - 1) / (num_samples - num_clients)
    standard_error = share.std(axis=0) / np.sqrt(len(share))
    assert np.all(np.abs(share.mean(axis=0) - 1 / num_clients) < 4.5 * standard_error)

    def variance(a: float) -> float:
        return (num_clients - 1) / (num_clients**2 * (num_clients * a + 1))

    measured = share.var(axis=0).mean()
    np.testing.assert_allclose(measured, variance(concentration), rtol=0.1)
    # The test has the power to tell other concentrations apart.
    for wrong in (2 / 3, 3 / 2):
        assert abs(measured / variance(wrong * concentration) - 1) > 0.1


@pytest.mark.parametrize("partition", [Iid, Dirichlet])
def test_quality_lies_between_its_minimum_and_one(partition):
    quality = draw(partition(min_quality=0.5), BALANCED, 200, 10, draws=50).quality
    assert quality.min() >= 0.5
    assert quality.max() <= 1
    assert quality.min() < 0.52
    assert quality.max() > 0.98
    assert np.all(draw(partition(), BALANCED, 200, 10).quality == 1)


def test_share_weighs_sizes_by_quality():
    partition = Partition(
        order=jnp.arange(8),
        start=jnp.asarray([0, 2]),
        size=jnp.asarray([2, 6]),
        quality=jnp.asarray([1.0, 0.5]),
    )
    np.testing.assert_allclose(partition.share, [0.4, 0.6], rtol=1e-6)


@pytest.mark.parametrize("config", [Iid(), Dirichlet(concentration=0.05)])
def test_max_size_bounds_every_size(config):
    assert draw(config, BALANCED, 103, 7, draws=100).size.max() <= config.max_size(103, 7)
