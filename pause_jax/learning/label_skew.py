"""Partitions in which clients hold few of the labels, as the field's benchmarks have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import ConfigError, number, static
from pause_jax.learning.partition import PartitionConfig, are_labels, counts_of, in_turn

if TYPE_CHECKING:
    from pause_jax.learning.dataset import Dataset


class _ByLabel(PartitionConfig):
    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        super().check_data(data, num_samples, num_clients)
        if not are_labels(data.y_train):
            raise ConfigError(
                f"learning.partition = {self.name}: deals samples out by their label, and this "
                "data set has none. Use iid, dirichlet or natural."
            )


class Shards(_ByLabel):
    """Samples sorted by label, cut into shards; every client gets a few of them at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    2017, section 3, with 2 shards a client. Samples left over by the cut are not used.

    Attributes:
      per_client: shards of each client (static).
    """

    name: ClassVar[str] = "shards"
    summary: ClassVar[str] = "a few shards of the samples in order of label (McMahan et al.)"
    equal: ClassVar[bool] = True

    per_client: int = static(default=2, at_least=1)

    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        super().check_data(data, num_samples, num_clients)
        if num_samples < num_clients * self.per_client:
            raise ConfigError(
                f"learning.partition.per_client = {self.per_client}: {num_clients} clients need "
                f"{num_clients * self.per_client} shards, and there are {num_samples} samples."
            )

    def max_size(self, num_samples: int, num_clients: int) -> int:
        return num_samples // (num_clients * self.per_client) * self.per_client

    def _assign(
        self, key: Array, labels: Array, num_samples: int, num_clients: int, num_classes: int
    ) -> tuple[Array, Array]:
        shuffle_key, deal_key = jax.random.split(key)
        num_shards = num_clients * self.per_client
        used = num_samples // num_shards * num_shards
        sample = jax.random.permutation(shuffle_key, labels.shape[0])[:used]
        by_label = sample[jnp.argsort(labels[sample], stable=True)].reshape(num_shards, -1)
        dealt = by_label[jax.random.permutation(deal_key, num_shards)]
        return dealt.reshape(-1), jnp.full(num_clients, used // num_clients, jnp.int32)


class DirichletLabels(_ByLabel):
    """Each label's samples go to the clients in shares from a symmetric Dirichlet distribution.

    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", 2019; what
    most benchmarks call Dir(alpha). First every client gets one sample at random, so that none is
    empty (elsewhere the draw is repeated until none is).

    Attributes:
      concentration: alpha; the smaller, the fewer labels a client holds.
    """

    name: ClassVar[str] = "dirichlet_labels"
    summary: ClassVar[str] = "Dirichlet shares of each label (Yurochkin et al.)"

    concentration: float = number(default=0.5, above=0)

    def _assign(
        self, key: Array, labels: Array, num_samples: int, num_clients: int, num_classes: int
    ) -> tuple[Array, Array]:
        shuffle_key, share_key = jax.random.split(key)
        sample = jax.random.permutation(shuffle_key, labels.shape[0])[:num_samples]
        first, rest = sample[:num_clients], sample[num_clients:]
        rest = rest[jnp.argsort(labels[rest], stable=True)]
        count = jnp.zeros(num_classes, jnp.int32).at[labels[rest]].add(1)  # [C]

        concentration = jnp.full(num_clients, self.concentration)
        shares = jax.random.dirichlet(share_key, concentration, (num_classes,))  # [C, K]
        dealt = counts_of(shares, count).reshape(-1)
        everyone = jnp.arange(num_clients)
        owner = jnp.concatenate([everyone, in_turn(dealt, rest.shape[0]) % num_clients])
        order = jnp.concatenate([first, rest])[jnp.argsort(owner, stable=True)]
        return order, jnp.zeros(num_clients, jnp.int32).at[owner].add(1)
