import functools

import jax
import numpy as np
import pytest

from pause_jax.learning import (
    Dataset,
    Dirichlet,
    DirichletLabels,
    Iid,
    Partition,
    PartitionConfig,
    Shards,
)

NUM_LABELS = 10
KEY = jax.random.key(0)
BALANCED = np.arange(1200, dtype=np.int32) % NUM_LABELS
BIG = np.arange(6000, dtype=np.int32) % NUM_LABELS


# One compilation a shape: the concentration and the dominant share are traced. The least quality is
# static, so tests of one shape have the same.
@functools.partial(jax.jit, static_argnums=(2, 3))
def _assign(
    config: PartitionConfig, labels: np.ndarray, num_samples: int, num_clients: int, keys: jax.Array
) -> Partition:
    data = with_targets(labels)
    return jax.vmap(lambda k: config.assign(k, data, num_samples, num_clients))(keys)


def with_targets(y) -> Dataset:
    return Dataset(x_train=y, y_train=y, x_test=y, y_test=y, num_classes=NUM_LABELS)


def draw(
    config: PartitionConfig, labels: np.ndarray, num_samples: int, num_clients: int, draws: int = 20
) -> Partition:
    """``draws`` partitions under jit and vmap over keys; leaves [draws, ...]."""
    config = jax.tree.map(np.float32, config)
    keys = jax.random.split(jax.random.key(0), draws)
    drawn = _assign(config, labels, num_samples, num_clients, keys)
    return jax.tree.map(np.asarray, drawn)


share_of = jax.jit(lambda partition: partition.share)


def each(partitions: Partition) -> list[Partition]:
    return [jax.tree.map(lambda x, i=i: x[i], partitions) for i in range(len(partitions.size))]


def samples_of(partition: Partition) -> list[np.ndarray]:
    """The samples of each client."""
    order, slices = np.asarray(partition.order), zip(partition.start, partition.size, strict=True)
    return [order[start : start + size] for start, size in slices]


def label_shares(partition: Partition, labels: np.ndarray) -> np.ndarray:
    """float [K, labels], share of each label in each client's data."""
    counts = [np.bincount(labels[s], minlength=NUM_LABELS) for s in samples_of(partition)]
    return np.stack(counts) / partition.size[:, None]


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
    np.testing.assert_allclose(np.asarray(share_of(partition)).sum(), 1, rtol=1e-5)


@pytest.mark.parametrize(("num_samples", "num_clients"), [(700, 7), (40, 40), (50, 1)])
def test_iid_gives_equal_disjoint_shares(num_samples, num_clients):
    size = num_samples // num_clients
    for partition in each(draw(Iid(), BALANCED, num_samples, num_clients)):
        assert_valid(partition, len(BALANCED), size * num_clients)
        assert np.all(partition.size == size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("concentration", "dominant_share"), [(0.05, 0.0), (0.05, 1.0), (3.0, 0.25), (100.0, 1.0)]
)
@pytest.mark.parametrize(("num_samples", "num_clients"), [(700, 7), (40, 40)])
def test_dirichlet_assigns_every_sample_once(
    num_samples, num_clients, concentration, dominant_share
):
    config = Dirichlet(concentration=concentration, dominant_share=dominant_share, min_quality=0.5)
    for partition in each(draw(config, BALANCED, num_samples, num_clients)):
        assert_valid(partition, len(BALANCED), num_samples)
        assert partition.size.max() <= config.max_size(num_samples, num_clients)


def test_dirichlet_sizes_are_positive_despite_float32_rounding():
    # With these keys the float32 cumulative sum of the shares falls by one unit in the last place
    # across a rounding edge, on a CPU.
    config = Dirichlet(concentration=0.05)
    targets = np.zeros(50_000, np.float32)
    data = with_targets(targets)
    assign = jax.jit(lambda key: config.assign(key, data, 50_000, 1000).size)
    for seed in (187, 516, 646, 788, 1189):
        size = np.asarray(assign(jax.random.key(seed)))
        assert size.sum() == 50_000
        assert size.min() >= 1, f"seed {seed}: a client without data"


# Without a dominant one the largest of ten has a little more than a tenth.
@pytest.mark.parametrize(("dominant_share", "low", "high"), [(0.25, 0.24, 0.26), (0.0, 0.1, 0.15)])
def test_dominant_label_has_its_share_of_a_clients_data(dominant_share, low, high):
    tops = [
        label_shares(partition, BIG).max(axis=1)[partition.size >= 200].mean()
        for partition in each(draw(Dirichlet(dominant_share=dominant_share), BIG, 6000, 10))
    ]
    assert low < np.mean(tops) < high


def test_dominant_labels_are_assigned_evenly_and_at_random():
    config = Dirichlet(concentration=100.0, dominant_share=0.6)
    dealt = set()
    for partition in each(draw(config, BIG, 6000, 10)):
        dominant = label_shares(partition, BIG).argmax(axis=1)
        assert sorted(dominant) == list(range(NUM_LABELS))
        dealt.add(tuple(dominant))
    assert len(dealt) == 20, "which client gets which label must be random"


def test_remaining_samples_are_assigned_equally_to_all_clients():
    # Seven clients, so three labels are nobody's dominant one; all clients get as much of these.
    config = Dirichlet(concentration=100.0, dominant_share=0.6, min_quality=0.5)
    nobodys = []
    for partition in each(draw(config, BALANCED, 700, 7)):
        shares = label_shares(partition, BALANCED)
        others = np.setdiff1d(np.arange(NUM_LABELS), shares.argmax(axis=1))
        assert len(others) == 3
        nobodys.append(shares[:, others].sum(axis=1))
    mean = np.mean(nobodys, axis=0)
    standard_error = np.std(nobodys, axis=0).max() / np.sqrt(len(nobodys))
    assert np.ptp(mean) < 6 * standard_error, f"share of the three labels by client: {mean}"


@pytest.mark.parametrize("dominant_share", [0.25, 1.0])
def test_rare_and_missing_labels_can_run_out(dominant_share):
    labels = np.arange(6000, dtype=np.int32) % 8
    labels[:12] = 9  # label 8 does not exist, and label 9 is far rarer than demanded
    config = Dirichlet(concentration=100.0, dominant_share=dominant_share)
    for partition in each(draw(config, labels, 6000, 10)):
        assert_valid(partition, 6000, 6000)
        shares = label_shares(partition, labels)
        assert np.sum(shares[:, 9] > 0) == 1, "the one client of label 9 takes all there is"
        # The eight clients of the common labels still get theirs.
        reached = np.sort(shares[:, :8].max(axis=1))[2:]
        assert np.all(reached > 0.2)


def test_reserved_samples_have_only_the_dominant_label():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [5, 30, 65]))
    count, dominant = np.asarray([5, 30, 65]), np.asarray([1, 0, 2, 0, 0, 1])
    size = np.asarray([10, 6, 20, 7, 8, 49])
    reserve = jax.jit(Dirichlet(dominant_share=0.8)._reserve)
    reserved, taken = map(np.asarray, reserve(labels, count, dominant, size))
    # Of label 0 they want 4, 5 and 6, of label 1 they want 7 and 34: there are 5, and 30.
    assert taken.tolist() == [7, 4, 8, 1, 0, 23]
    clients = np.repeat(np.arange(6), taken)
    found = reserved[: len(clients)]
    np.testing.assert_array_equal(labels[found], dominant[clients])
    assert len(set(found.tolist())) == len(found)


def test_frequent_label_is_not_reserved():
    labels = (np.arange(6000) % 10 >= 6).astype(np.int32)
    config = Dirichlet(concentration=100.0, dominant_share=0.25)
    shares = [label_shares(p, labels) for p in each(draw(config, labels, 6000, 10))]
    # Clients of the missing labels reserve nothing either, so every client gets 60 % of label 0.
    np.testing.assert_allclose(np.mean(shares, axis=0)[:, 0], 0.6, atol=0.02)


@pytest.mark.parametrize("config", [Iid(), Dirichlet(min_quality=0.5)])
def test_subset_of_samples_comes_from_the_whole_set(config):
    partitions = draw(config, BALANCED, 700, 7)
    assert len(np.unique(partitions.order)) == len(BALANCED)


@pytest.mark.parametrize("concentration", [0.5, 3.0])
def test_sizes_have_the_moments_of_a_dirichlet_distribution(concentration):
    num_samples, num_clients = 800, 8
    targets = np.linspace(-1, 1, num_samples).astype(np.float32)  # none is dominant
    config = Dirichlet(concentration=concentration)
    drawn = draw(config, targets, num_samples, num_clients, draws=1500)
    for partition in each(drawn)[:20]:
        assert_valid(partition, num_samples, num_samples)
    size = drawn.size
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
    quality = draw(partition(min_quality=0.5), BALANCED, 700, 7).quality
    assert quality.min() >= 0.5
    assert quality.max() <= 1
    assert quality.min() < 0.52
    assert quality.max() > 0.98


def test_quality_is_one_by_default():
    assert np.all(draw(Iid(), BALANCED, 700, 7).quality == 1)
    assert np.all(draw(Dirichlet(), BIG, 6000, 10).quality == 1)


@pytest.mark.slow
def test_share_weighs_sizes_by_quality():
    partition = Partition(
        order=np.arange(8),
        start=np.asarray([0, 2]),
        size=np.asarray([2, 6]),
        quality=np.asarray([1.0, 0.5], np.float32),
    )
    np.testing.assert_allclose(share_of(partition), [0.4, 0.6], rtol=1e-6)


# ---------------------------------------------------------------- skewed labels


@pytest.mark.parametrize(("num_clients", "number"), [(10, 1200), (100, 333)])
@pytest.mark.parametrize("config", [Shards(), Shards(per_client=3), DirichletLabels()])
def test_skewed_partitions_are_disjoint(config, num_clients, number):
    dealt = number
    if isinstance(config, Shards):
        shards = num_clients * config.per_client
        dealt = number // shards * shards
    for partition in each(draw(config, BALANCED, number, num_clients, draws=80))[:3]:
        assert_valid(partition, len(BALANCED), dealt)
        assert partition.size.max() <= config.max_size(number, num_clients)
        assert isinstance(config, DirichletLabels) or np.ptp(partition.size) == 0


def test_client_with_two_shards_has_two_labels():
    # 20 clients, 40 shards of 30 samples, 120 a label: a shard has one label.
    held = [
        label_shares(partition, BALANCED) for partition in each(draw(Shards(), BALANCED, 1200, 20))
    ]
    numbers = (np.concatenate(held) > 0).sum(axis=1)
    assert numbers.max() == 2
    assert (numbers == 2).mean() > 0.4
    assert not np.array_equal(held[0], held[1]), "shards are dealt out at random"


@pytest.mark.parametrize("alpha", [0.3, 3.0])
def test_dirichlet_labels_have_their_moments_and_skew(alpha):
    # A share of Dir(alpha) over K has the mean 1/K and the variance (1/K)(1 - 1/K)/(K alpha + 1).
    drawn = draw(DirichletLabels(concentration=alpha), BALANCED, 1200, 10, draws=80)
    held = [
        label_shares(partition, BALANCED) * partition.size[:, None] for partition in each(drawn)
    ]
    share = np.stack(held) / (len(BALANCED) / NUM_LABELS)  # [draws, K, labels]
    np.testing.assert_allclose(share.mean(axis=0), 0.1, atol=0.08)
    expected, other = (0.09 / (10 * alpha * factor + 1) for factor in (1, 1.5))
    np.testing.assert_allclose(share.var(), expected, rtol=0.15)
    assert abs(share.var() / other - 1) > 0.15, "one and a half times alpha would be seen"
    # Labels are dealt out one by one: who has much of one need not have much of another.
    together = [np.corrcoef(draw.T)[np.triu_indices(10, 1)].mean() for draw in share]
    assert abs(np.mean(together)) < 0.1
