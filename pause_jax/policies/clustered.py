"""Clustered sampling by similarity of updates.

Source: Fraboni et al., "Clustered sampling: low-variance and improved representativity for clients
selection in federated learning", ICML 2021, Algorithm 2.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from pause_jax.bandit import Info, Observation, Selection, no_info
from pause_jax.policies.base import Context, Policy, PolicyConfig
from pause_jax.policies.sampling import ClusteredSize, draw_from_rows
from pause_jax.struct import static


class ClusteredSimilarity(PolicyConfig):
    """One draw from each of m distributions, built every round from clusters of similar updates.

    A client's update is the last one that the server received, clipped and noised, so nothing
    more is released; zero until its first. Clusters are by Ward's method (SciPy, on the host).
    Without learning there is nothing to compare, and it is ``clustered_size``.

    Attributes:
      distance: ``arccos`` of the cosine similarity (0 if either update is zero), ``l2`` or ``l1``.
    """

    name: ClassVar[str] = "clustered_similarity"
    summary: ClassVar[str] = "one draw from each of m clusters of similar updates"
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Fraboni et al. 2021, Alg. 2"

    distance: str = static(default="arccos", choices=("arccos", "l2", "l1"))

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return ClusteredSize().build(context)
        measure = {"arccos": arccos, "l2": euclidean, "l1": manhattan}[self.distance]
        rows_like = jax.ShapeDtypeStruct((m, num_clients), jnp.float32)

        def distributions(apart: Array, size: Array, lots: Array) -> NDArray[np.float32]:
            rows = similarity_distributions(
                np.asarray(apart), np.asarray(size), np.asarray(lots), m
            )
            return rows.astype(np.float32)

        def select(
            key: Array, updates: Array, round: Array, available: Array
        ) -> tuple[Selection, Info]:
            order_key, draw_key = jax.random.split(key)
            rows = jax.pure_callback(
                distributions,
                rows_like,
                measure(updates),
                context.data_size,
                jax.random.permutation(order_key, num_clients),
                vmap_method="sequential",
            )
            return draw_from_rows(draw_key, rows, available, context), no_info()

        def update(updates: Array, selection: Selection, observation: Observation) -> Array:
            clients, active = selection.clients, selection.active
            new = jnp.where(active[:, None], observation.update, updates[clients])
            return updates.at[clients].set(new)

        return Policy(lambda: jnp.zeros((num_clients, context.update_size)), select, update)


def arccos(updates: Array) -> Array:
    """Angles between updates [K, d] in radians, [K, K]; 0 where either is zero."""
    norm = jnp.linalg.norm(updates, axis=1)
    scale = norm[:, None] * norm[None, :]
    cosine = updates @ updates.T / jnp.where(scale > 0, scale, 1.0)
    return jnp.where(scale > 0, jnp.arccos(jnp.clip(cosine, -1.0, 1.0)), 0.0)


def euclidean(updates: Array) -> Array:
    """Euclidean distances between updates [K, d], [K, K]."""
    return lax.map(lambda one: jnp.linalg.norm(updates - one[None, :], axis=1), updates)


def manhattan(updates: Array) -> Array:
    """Sums of absolute differences between updates [K, d], [K, K]."""
    return lax.map(lambda one: jnp.sum(jnp.abs(updates - one[None, :]), axis=1), updates)


def similarity_distributions(
    distance: NDArray[np.floating],
    data_size: NDArray[np.floating],
    order: NDArray[np.integer],
    num_selected: int,
) -> NDArray[np.float64]:
    """The m distributions of Algorithm 2.

    A client brings mass m n_i and a bin holds sum(n), so all masses fill m bins. A client with at
    least 1/m of the data fills bins of its own first (the published program does not, and is biased
    then). The tree of the rest is cut into clusters of at most one bin; the largest clusters seed
    the open bins, and the clients of the others are poured in, smallest cluster first.

    Args:
      distance: [K, K], symmetric.
      data_size: [K], whole numbers.
      order: [K], a permutation; ties and the order within a cluster follow it.
      num_selected: m.

    Returns:
      [m, K]; each row sums to one, and column i to m p_i.
    """
    num_clients, capacity = len(data_size), float(np.sum(data_size))
    mass = num_selected * data_size.astype(np.float64)
    bins = np.zeros((num_selected, num_clients))
    opened = 0
    for i in np.flatnonzero(mass >= capacity):
        own = int(mass[i] // capacity)
        bins[opened : opened + own, i] = capacity
        mass[i] -= own * capacity
        opened += own
    if opened == num_selected:
        return bins / capacity

    cluster = np.empty(num_clients, np.int64)
    cluster[order] = _clusters(np.nan_to_num(distance)[np.ix_(order, order)], mass[order], capacity)
    weight = np.bincount(cluster, mass)
    by_weight = sorted(range(len(weight)), key=lambda c: weight[c])
    seeds, others = by_weight[opened - num_selected :], by_weight[: opened - num_selected]
    for place, seed in enumerate(reversed(seeds), start=opened):
        bins[place, cluster == seed] = mass[cluster == seed]
    room = capacity - bins.sum(axis=1)
    for other in others:
        for i in order[cluster[order] == other]:
            while mass[i] > 0 and opened < num_selected:
                poured = min(mass[i], room[opened])
                bins[opened, i] += poured
                mass[i] -= poured
                room[opened] -= poured
                opened += room[opened] <= 0
    return bins / capacity


def _clusters(
    distance: NDArray[np.floating], mass: NDArray[np.float64], capacity: float
) -> NDArray[np.int64]:
    """Clusters of Ward's tree, cut so that none holds more than ``capacity``; numbers from 0."""
    if len(mass) == 1:
        return np.zeros(1, np.int64)
    # Imported here: it takes a fifth of a second, and few runs cluster.
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    # Condensed, or SciPy would take the rows of the matrix for points.
    tree = linkage(squareform(distance, checks=False), method="ward")
    held = np.concatenate([mass, np.zeros(len(tree))])
    for merge, (left, right) in enumerate(tree[:, :2].astype(int)):
        held[len(mass) + merge] = held[left] + held[right]
    tree[:, 2] = held[len(mass) :]
    return fcluster(tree, capacity, criterion="distance") - 1
