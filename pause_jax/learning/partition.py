"""Partitions of the training samples among clients, in pure JAX with static shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from pause_jax.base.client_ids import gap
from pause_jax.base.struct import Config, ConfigError, number, static
from pause_jax.rng.summation import tree_sum

if TYPE_CHECKING:
    from pause_jax.learning.dataset import Dataset


# (sample indices grouped by client, int [n]; number of samples per client, int [K]).
Dealt = tuple[Array, Array]


class Partition(NamedTuple):
    """Partition of samples among clients.

    Client k trains on ``order[start[k] : start[k] + size[k]]``. The next ``held_out[k]`` samples in
    ``order`` are held out from training.
    """

    order: Int[Array, " n"]  # distinct sample indices
    start: Int[Array, " K"]
    size: Int[Array, " K"]  # number of training samples, at least 1
    quality: Float[Array, " K"]  # data quality q_k in [0, 1]
    held_out: Int[Array, " K"] | None = None  # number of held-out samples; None if all are 0

    @property
    def share(self) -> Array:
        """Each client's quality-weighted data share d_k / sum(d), float [K] (Eq. (4) of BSFL)."""
        # ``simulate`` and ``sweep`` must agree bitwise. ``maximum`` prevents a fused multiply-add.
        # XLA may round division by constants differently from other divisions, so use reciprocals.
        weight = jnp.maximum(self.quality * self.size.astype(self.quality.dtype), 0.0)
        return weight * (1 / tree_sum(weight))


class PartitionConfig(Config):
    """Base class for partition configs.

    Attributes:
      min_quality: lower bound on the data quality q_k ~ U(min_quality, 1). Client k's inputs
        have Gaussian noise with standard deviation (1 - q_k) / 4, or (1 - q_k) / 2 for pixels,
        which are scaled to [-1, 1] (BSFL). A value of 1 disables the noise.
    """

    equal: ClassVar[bool] = False  # whether all clients have the same number of samples
    keeps_clients: ClassVar[bool] = False  # whether the data set's clients and ids are kept

    min_quality: float = static(default=1.0, at_least=0, at_most=1)

    def max_size(self, num_samples: int, num_clients: int) -> int:
        """Return a static upper bound on the number of samples per client."""
        return num_samples

    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        """Raise ConfigError unless the data can be partitioned among ``num_clients`` clients."""
        if num_samples < num_clients:
            raise ConfigError(
                f"num_clients = {num_clients}: must be <= {num_samples}, the number of training "
                "samples in use. Use fewer clients, a larger learning.data.num_train or another "
                "data set."
            )

    def assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Partition:
        """Draw ``num_samples`` samples at random and partition them among the clients."""
        split_key, quality_key = jax.random.split(key)
        order, size = self._assign(split_key, data, num_samples, num_clients)
        return self._partition(order, jnp.cumsum(size) - size, size, quality_key)

    def _partition(self, order: Array, start: Array, size: Array, quality_key: Array) -> Partition:
        quality = jnp.ones(size.shape)
        if self.min_quality < 1:
            quality = jax.random.uniform(quality_key, size.shape, minval=self.min_quality)
        return Partition(order.astype(jnp.int32), start.astype(jnp.int32), size, quality)

    def _assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Dealt:
        """Return the sample indices grouped by client, and the number of samples per client."""
        raise NotImplementedError


class Iid(PartitionConfig):
    """Random partition into shares of n // K samples, which leaves up to K - 1 samples unused."""

    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "random shares of equal size"
    equal: ClassVar[bool] = True

    def max_size(self, num_samples: int, num_clients: int) -> int:
        return num_samples // num_clients

    def _assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Dealt:
        size = num_samples // num_clients
        order = jax.random.permutation(key, len(data.y_train))[: size * num_clients]
        return order, jnp.full(num_clients, size, jnp.int32)


class Dirichlet(PartitionConfig):
    """Partition with Dirichlet-distributed sizes and a dominant label for each client.

    Every client receives at least one sample. Each label is dominant for about the same number of
    clients. A client first receives samples with its dominant label until none are left or the
    label's expected share of the client's data reaches ``dominant_share``. All other samples are
    assigned at random. If the targets are not labels, all samples are assigned at random.

    Attributes:
      concentration: parameter of the symmetric Dirichlet distribution (2 or 3 in the papers).
      dominant_share: dominant label's share of a client's data. Use 0 for no dominant label.
    """

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "Dirichlet sizes with a dominant label per client (PAUSE)"

    concentration: float = number(default=3.0, above=0)
    dominant_share: float = number(default=0.25, at_least=0, at_most=1)

    def _assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Dealt:
        shuffle_key, size_key, label_key, free_key = jax.random.split(key, 4)
        sample = jax.random.permutation(shuffle_key, len(data.y_train))[:num_samples]
        shares = jax.random.dirichlet(size_key, jnp.full(num_clients, self.concentration))
        size = 1 + counts_of(shares, jnp.asarray(num_samples - num_clients))
        if not are_labels(data.y_train):
            return sample, size

        # Below, samples are numbered by position in `sample`. Samples not yet dealt have owner K.
        labels = data.y_train[sample]
        dominant = jax.random.permutation(label_key, jnp.arange(num_clients) % data.num_classes)
        count = jnp.zeros(data.num_classes, jnp.int32).at[labels].add(1)
        reserved, taken = self._reserve(labels, count, dominant, size)
        num_taken = jnp.sum(taken)
        owner = jnp.full(num_samples, num_clients, jnp.int32)
        owner = deal(owner, reserved, taken, num_taken)

        # Shuffle again, because `_reserve` took the first samples of each label in `sample` order.
        order = jax.random.permutation(free_key, num_samples)
        free_first = order[jnp.argsort(owner[order] < num_clients, stable=True)]
        owner = deal(owner, free_first, size - taken, num_samples - num_taken)
        return sample[jnp.argsort(owner, stable=True)], size

    def _reserve(
        self, labels: Array, count: Array, dominant: Array, size: Array
    ) -> tuple[Array, Array]:
        """Return sample indices [n], reserved ones first, and the number reserved per client [K].

        Let f be the frequency of a client's dominant label in the data. If a share s of the
        client's samples is reserved, the label's expected share is s + (1 - s) f, which equals
        ``dominant_share`` for s = (dominant_share - f) / (1 - f). The reserved samples are
        grouped by client. The indices after the last reserved sample are undefined.
        """
        num_samples = labels.shape[0]
        frequency = (count / num_samples)[dominant]
        share = (self.dominant_share - frequency) / jnp.maximum(1 - frequency, 1e-6)
        wanted = jnp.floor(jnp.clip(share, 0, 1) * size.astype(share.dtype)).astype(jnp.int32)

        is_dominant = dominant[:, None] == jnp.arange(count.shape[0])[None, :]
        wanted_so_far = jnp.cumsum(jnp.where(is_dominant, wanted[:, None], 0), axis=0)  # [K, C]
        wanted_before = jnp.take_along_axis(wanted_so_far, dominant[:, None], axis=1)[:, 0] - wanted
        taken = jnp.clip(count[dominant] - wanted_before, 0, wanted)

        by_label = jnp.argsort(labels, stable=True)
        label_start = jnp.cumsum(count) - count  # [C]
        client = in_turn(taken, num_samples)  # [n], client of each reserved sample
        nth = jnp.arange(num_samples) - (jnp.cumsum(taken) - taken)[client]
        return by_label[label_start[dominant[client]] + wanted_before[client] + nth], taken


class Natural(PartitionConfig):
    """Partition of the samples by original client (``Dataset.clients``).

    If the data has more than K clients, K of them are drawn at random and numbered in their
    original order. Results then contain no client ids.
    """

    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "each sample's original client"
    keeps_clients: ClassVar[bool] = True

    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        if data.clients is None:
            raise ConfigError(
                "learning.partition = natural: the data set has no client ids. Pass clients to "
                "Dataset.of, or use iid or dirichlet."
            )
        if num_samples < len(data.y_train):
            raise ConfigError(
                f"learning.data.num_train = {num_samples}: must not be set, because the natural "
                "partition uses all of a client's samples. Remove num_train."
            )
        known = int(np.max(data.clients)) + 1
        if num_clients > known:
            missing = gap(data.client_ids or ())
            raise ConfigError(
                f"num_clients = {num_clients}: must be <= {known}, the number of clients in the "
                "data set (learning.partition = natural)."
                + (f" Client {missing} has no training samples." if missing else "")
            )

    def assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Partition:
        clients = data.clients
        assert clients is not None, "check_data requires clients"
        draw_key, quality_key = jax.random.split(key)
        # The number of clients is unknown while tracing, so `count` has one entry per sample.
        count = jnp.zeros(clients.shape[0], jnp.int32).at[clients].add(1)
        priority = jnp.where(count > 0, jax.random.uniform(draw_key, count.shape), jnp.inf)
        chosen = jnp.sort(jnp.argsort(priority)[:num_clients])
        start = (jnp.cumsum(count) - count)[chosen]
        order = jnp.argsort(clients, stable=True)
        return self._partition(order, start, count[chosen], quality_key)


class _ByLabel(PartitionConfig):
    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        super().check_data(data, num_samples, num_clients)
        if not are_labels(data.y_train):
            raise ConfigError(
                f"learning.partition = {self.name}: requires labels, but the data set has none. "
                "Use iid, dirichlet or natural."
            )


class Shards(_ByLabel):
    """Partition into equal shards of samples sorted by label. Clients receive random shards.

    Samples that do not fill a shard are discarded. McMahan et al. (2017) use 2 shards per client.

    Attributes:
      per_client: number of shards per client (static).
    """

    name: ClassVar[str] = "shards"
    summary: ClassVar[str] = "shards of samples sorted by label (McMahan et al.)"
    equal: ClassVar[bool] = True

    per_client: int = static(default=2, at_least=1)

    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        super().check_data(data, num_samples, num_clients)
        if num_samples < num_clients * self.per_client:
            raise ConfigError(
                f"learning.partition.per_client = {self.per_client}: {num_clients} clients need "
                f"{num_clients * self.per_client} shards, but there are only {num_samples} "
                "samples. Lower per_client."
            )

    def max_size(self, num_samples: int, num_clients: int) -> int:
        return num_samples // (num_clients * self.per_client) * self.per_client

    def _assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Dealt:
        labels = data.y_train
        shuffle_key, deal_key = jax.random.split(key)
        num_shards = num_clients * self.per_client
        used = num_samples // num_shards * num_shards
        sample = jax.random.permutation(shuffle_key, labels.shape[0])[:used]
        by_label = sample[jnp.argsort(labels[sample], stable=True)].reshape(num_shards, -1)
        dealt = by_label[jax.random.permutation(deal_key, num_shards)]
        return dealt.reshape(-1), jnp.full(num_clients, used // num_clients, jnp.int32)


class DirichletLabels(_ByLabel):
    """Partition that draws each label's shares from a symmetric Dirichlet distribution.

    This partition is often called Dir(alpha) (Yurochkin et al., 2019). Every client first gets one
    random sample. Other implementations instead redraw shares until every client has samples.

    Attributes:
      concentration: alpha. The smaller alpha is, the fewer labels dominate a client's data.
    """

    name: ClassVar[str] = "dirichlet_labels"
    summary: ClassVar[str] = "Dirichlet-distributed shares of each label (Yurochkin et al.)"

    concentration: float = number(default=0.5, above=0)

    def _assign(self, key: Array, data: Dataset, num_samples: int, num_clients: int) -> Dealt:
        labels = data.y_train
        shuffle_key, share_key = jax.random.split(key)
        sample = jax.random.permutation(shuffle_key, labels.shape[0])[:num_samples]
        first = sample[:num_clients]
        rest = sample[num_clients:]
        rest = rest[jnp.argsort(labels[rest], stable=True)]
        count = jnp.zeros(data.num_classes, jnp.int32).at[labels[rest]].add(1)  # [C]

        concentration = jnp.full(num_clients, self.concentration)
        shares = jax.random.dirichlet(share_key, concentration, (data.num_classes,))  # [C, K]
        dealt = counts_of(shares, count).reshape(-1)
        everyone = jnp.arange(num_clients)
        owner = jnp.concatenate([everyone, in_turn(dealt, rest.shape[0]) % num_clients])
        order = jnp.concatenate([first, rest])[jnp.argsort(owner, stable=True)]
        return order, jnp.zeros(num_clients, jnp.int32).at[owner].add(1)


def num_held_out(size: Any, share: float, xp: Any = jnp) -> Any:
    """Return the number of samples to hold out from clients with ``size`` samples (elementwise)."""
    # NumPy (``xp=numpy``) and XLA round a single float32 multiplication identically.
    wanted = xp.round(np.float32(share) * size.astype(np.float32)).astype(np.int32)
    return xp.minimum(xp.maximum(wanted, 1), size - 1)


def hold_out(key: Array, partition: Partition, share: float) -> Partition:
    """Hold out a ``share`` of each client's samples, drawn at random."""
    order, start, size = partition.order, partition.start, partition.size
    place = jnp.arange(order.shape[0])
    client = jnp.searchsorted(start, place, side="right") - 1
    # Entries between two clients' slices belong to no client and form a separate group.
    group = 2 * client + (place >= (start + size)[client])
    shuffled = order[jnp.lexsort((jax.random.bits(key, order.shape), group))]
    held_out = num_held_out(size, share)
    return partition._replace(order=shuffled, size=size - held_out, held_out=held_out)


def are_labels(targets: Array) -> bool:
    """Return whether targets are labels, one integer per sample."""
    return targets.ndim == 1 and jnp.issubdtype(targets.dtype, jnp.integer)


def counts_of(shares: Array, total: Array) -> Array:
    """Convert ``shares`` [..., K] to int32 counts [..., K] that sum to ``total``, int [...]."""
    # Rounding errors can make XLA's parallel cumulative sum decrease, hence the cummax.
    cumulative = jnp.clip(jnp.cumsum(shares, axis=-1), 0, 1)
    cumulative = jax.lax.cummax(cumulative, axis=shares.ndim - 1)
    edges = jnp.round(cumulative * total[..., None].astype(shares.dtype)).astype(jnp.int32)
    return jnp.diff(edges.at[..., -1].set(total), prepend=0, axis=-1)


def in_turn(counts: Array, length: int) -> Array:
    """Repeat each index k ``counts[k]`` times. Pad to shape [length] with the last index."""
    return jnp.repeat(jnp.arange(counts.shape[0]), counts, total_repeat_length=length)


def deal(owner: Array, samples: Array, counts: Array, number: Array) -> Array:
    """Deal the first ``number`` samples to the clients in order, ``counts[k]`` samples to client k.

    Returns the updated ``owner``, int [n], which maps samples to clients. ``number`` must be the
    sum of ``counts``, int [K].
    """
    num_samples = owner.shape[0]
    is_dealt = jnp.arange(num_samples) < number
    # Entries past `number` get an out-of-range index, which the scatter drops.
    target = jnp.where(is_dealt, samples, num_samples)
    return owner.at[target].set(in_turn(counts, num_samples).astype(owner.dtype), mode="drop")
