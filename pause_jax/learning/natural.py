"""The partition that the data came with."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.client_ids import gap
from pause_jax.base.struct import ConfigError
from pause_jax.learning.partition import Partition, PartitionConfig

if TYPE_CHECKING:
    from pause_jax.learning.dataset import Dataset


class Natural(PartitionConfig):
    """Each client holds the samples that came from it: ``Dataset.clients``.

    If the data has more clients than the network, as many are drawn at random by the key, and
    numbered in the order of the data's numbers; then results do not name them.
    """

    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "the clients that the samples came from"
    keeps_clients: ClassVar[bool] = True

    def check_data(self, data: Dataset, num_samples: int, num_clients: int) -> None:
        if data.clients is None:
            raise ConfigError(
                "learning.partition = natural: this data set does not say from which client a "
                "sample came; give Dataset.of(..., clients=...), or use iid or dirichlet."
            )
        if num_samples < len(data.y_train):
            raise ConfigError(
                f"learning.data.num_train = {num_samples}: the partition natural takes all samples "
                "of a client; leave num_train out."
            )
        there = int(np.max(data.clients)) + 1
        if num_clients > there:
            missing = gap(data.client_ids or ())
            raise ConfigError(
                f"num_clients = {num_clients}: must be <= {there}, the clients of the data set "
                "under learning.partition = natural"
                + (f", which has no training sample of client {missing}." if missing else ".")
            )

    def assign(
        self,
        key: Array,
        labels: Array,
        num_samples: int,
        num_clients: int,
        num_classes: int,
        clients: Array | None = None,
    ) -> Partition:
        assert clients is not None, "check_data asks for clients"
        draw_key, quality_key = jax.random.split(key)
        # How many there are is not known inside a trace: no more than there are samples.
        count = jnp.zeros(labels.shape[0], jnp.int32).at[clients].add(1)
        lots = jnp.where(count > 0, jax.random.uniform(draw_key, count.shape), jnp.inf)
        chosen = jnp.sort(jnp.argsort(lots)[:num_clients])
        return Partition(
            jnp.argsort(clients, stable=True).astype(jnp.int32),
            (jnp.cumsum(count) - count)[chosen].astype(jnp.int32),
            count[chosen],
            self._quality(quality_key, num_clients),
        )
