"""Clustered sampling and HiCS-FL, which draw clients from clusters with similar updates.

Source: Fraboni et al., "Clustered sampling: low-variance and improved representativity for clients
selection in federated learning", ICML 2021, Algorithm 2; Chen and Vikalo, "Heterogeneity-guided
client sampling: towards fast and efficient non-IID federated learning", NeurIPS 2024 (arXiv
2310.00198), and the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import ConfigError, number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.baselines import Random
from pause_jax.policies.choose import equal_weights, top_clients
from pause_jax.policies.sampling import ClusteredSize, draw_from_rows


class ClusteredSimilarity(PolicyConfig):
    """Clustered sampling based on similarity, with one draw from each of m distributions.

    In each round, Ward's method (SciPy, on the host) clusters clients by the angles between their
    last clipped and noised updates (initially zero). The m distributions are built from these
    clusters. Without a model, the policy falls back to ``clustered_size``.
    """

    name: ClassVar[str] = "clustered_similarity"
    summary: ClassVar[str] = "one draw from each of m clusters of similar updates"
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Fraboni et al. 2021, Alg. 2"
    alone: ClassVar[bool] = True

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return ClusteredSize().build(context)
        rows_like = jax.ShapeDtypeStruct((m, num_clients), jnp.float32)

        def distributions(distance: Any, size: Any, order: Any) -> NDArray[np.float32]:
            return similarity_distributions(distance, size, order, m).astype(np.float32)

        def select(key: Array, updates: Array, round: Array, available: Array) -> Selected:
            order_key, draw_key = jax.random.split(key)
            order = jax.random.permutation(order_key, num_clients)
            rows = call_on_host(distributions, rows_like, arccos(updates), context.data_size, order)
            return draw_from_rows(draw_key, rows, available, context), no_info()

        def update(updates: Array, selection: Selection, observation: Observation) -> Array:
            received = selection.active & observation.received
            return store_active(updates, selection.clients, observation.update, received)

        return Policy(lambda: jnp.zeros((num_clients, context.update_size)), select, update)


class HicsState(NamedTuple):
    """HiCS-FL state."""

    layer: Float[Array, "K C P"]  # output-layer part of the last update received from each client
    seen: Bool[Array, " K"]  # whether the server has received an update from the client


class HicsFl(PolicyConfig):
    """Sampling of clusters, then of clients within them, with a preference for balanced labels.

    Let v be a client's update of the output layer's bias. The entropy h of softmax(v / T) indicates
    how balanced the client's labels are. Ward's method (SciPy, on the host) clusters clients by the
    angle between their output-layer updates plus lambda ``|h_i - h_j|``. Each of m steps draws a
    cluster that has undrawn clients, and then one of those clients uniformly. After t of T_max
    rounds, the probability of a cluster with mean entropy h is proportional to exp(gamma (1 - t /
    T_max) h). Aggregation weights are equal. Clients whose first update has not arrived are
    selected first, in random order. The policy reads noised updates and, unlike the authors' code,
    never switches to clustered sampling. Without a model, it falls back to ``random``.

    Attributes:
      clusters: M, maximum number of clusters (default: the cohort size).
      temperature: T, temperature of the softmax.
      entropy_weight: lambda, weight of the entropy difference in the distance.
      annealing: gamma, initial strength of the preference for high entropy.
    """

    name: ClassVar[str] = "hics_fl"
    summary: ClassVar[str] = "random draws that favour clusters of clients with balanced labels"
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "the model's output layer"
    reference: ClassVar[str] = "Chen and Vikalo 2024"
    alone: ClassVar[bool] = True
    needs_rounds: ClassVar[str] = "anneals over a fixed number of rounds"

    clusters: int | None = static(default=None, at_least=1, optional=True, kind=int)
    temperature: float = number(default=0.001, above=0)
    entropy_weight: float = number(default=10.0, at_least=0)
    annealing: float = number(default=4.0, at_least=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return Random().build(context)
        places = context.output_layer() if context.output_layer is not None else None
        if places is None:
            raise ConfigError(
                f"policy = {self.name}: cannot find the output layer in an update. Name the "
                "model's last affine layer 'output'."
            )
        number = m if self.clusters is None else self.clusters
        like = jax.ShapeDtypeStruct((num_clients,), jnp.int32)
        start = HicsState(jnp.zeros((num_clients, *places.shape)), jnp.zeros(num_clients, bool))

        def select(key: Array, state: HicsState, round: Array, available: Array) -> Selected:
            draw_key, tie_key = jax.random.split(key)
            h = self.entropies(state.layer)
            apart = arccos(state.layer.reshape(num_clients, -1))
            apart += self.entropy_weight * jnp.abs(h[:, None] - h[None, :])
            label = call_on_host(lambda distance: ward_labels(distance, number), like, apart)
            left = jnp.maximum(1 - (round - 1) / context.num_rounds, 0.0)
            taste = self.annealing * left * cluster_means(h, label, state.seen, number)
            rank = draw_in_clusters(draw_key, label, taste, available & state.seen, m)
            clients = top_clients(jnp.where(state.seen, rank, jnp.inf), available, m, tie_key)
            return equal_weights(clients, available[clients]), no_info()

        def update(state: HicsState, selection: Selection, observation: Observation) -> HicsState:
            received = selection.active & observation.received
            layer, clients = observation.update[:, places], selection.clients
            return HicsState(
                layer=store_active(state.layer, clients, layer, received),
                seen=store_active(state.seen, clients, received, received),
            )

        return Policy(lambda: start, select, update)

    def entropies(self, layer: Array) -> Array:
        """Return the entropies h, float [K], of layer updates [K, C, 1 + H] (0 if not finite)."""
        log_share = jax.nn.log_softmax(layer[..., 0] / self.temperature)
        h = -jnp.sum(jnp.exp(log_share) * log_share, axis=-1)
        return jnp.nan_to_num(h, posinf=0.0, neginf=0.0)


def arccos(updates: Array) -> Array:
    """Return the angles [K, K] in radians between updates [K, d] (0 if either update is zero)."""
    norm = jnp.linalg.norm(updates, axis=1)
    scale = norm[:, None] * norm[None, :]
    cosine = updates @ updates.T / jnp.where(scale > 0, scale, 1.0)
    return jnp.where(scale > 0, jnp.arccos(jnp.clip(cosine, -1.0, 1.0)), 0.0)


def similarity_distributions(
    distance: NDArray[np.floating],
    data_size: NDArray[np.floating],
    order: NDArray[np.integer],
    num_selected: int,
) -> NDArray[np.float64]:
    """Compute the m distributions of Algorithm 2, float [m, K], from distances [K, K].

    A client with n_i samples has mass m n_i, and each of m bins has capacity sum(n). Each row of
    the result is a bin divided by its capacity, so it sums to one. Column i sums to m n_i / sum(n)
    = m p_i, so the draws are unbiased. The permutation ``order`` breaks ties.

    1. A client with at least 1/m of the data first fills one or more entire bins. (The authors'
       code omits this step, which makes sampling biased for these clients.)
    2. Ward's tree is cut into clusters that each fit into one bin. Each of the heaviest clusters,
       in descending order of mass, seeds one open bin.
    3. The open bins are filled one by one with the clients in the other clusters, from the lightest
       cluster to the heaviest. Mass beyond a bin's capacity flows into the next bin.
    """
    capacity = float(np.sum(data_size))
    mass = num_selected * data_size.astype(np.float64)
    number = (mass // capacity).astype(np.int64)
    # Bins [n, K] that are each filled by a single client, and the remaining masses [K].
    owner = np.repeat(np.arange(len(mass)), number)
    own = capacity * (owner[:, None] == np.arange(len(mass))[None, :])
    mass -= number * capacity
    num_open = num_selected - len(own)
    if num_open == 0:
        return own / capacity

    cluster = np.empty(len(data_size), np.int64)
    cluster[order] = _clusters(np.nan_to_num(distance)[np.ix_(order, order)], mass[order], capacity)
    cluster_mass = np.bincount(cluster, mass)
    smallest_first = np.argsort(cluster_mass, kind="stable").tolist()
    seeds, others = smallest_first[-num_open:][::-1], smallest_first[:-num_open]
    seeded = np.where(cluster[None, :] == np.array(seeds)[:, None], mass[None, :], 0.0)
    in_turn = np.concatenate([order[:0], *(order[cluster[order] == c] for c in others)])
    return np.concatenate([own, _pour(seeded, mass, in_turn, capacity)]) / capacity


def _pour(
    bins: NDArray[np.float64],
    mass: NDArray[np.float64],
    in_turn: NDArray[np.integer],
    capacity: float,
) -> NDArray[np.float64]:
    """Fill the bins one by one with client masses in the order ``in_turn``, and return the bins."""
    poured, room = mass[in_turn], capacity - bins.sum(axis=1)
    # Cumulative mass after each client, and cumulative free capacity after each bin.
    ends, full = np.cumsum(poured)[None, :], np.cumsum(room)[:, None]
    overlap = np.minimum(ends, full) - np.maximum(ends - poured[None, :], full - room[:, None])
    bins = bins.copy()
    bins[:, in_turn] += np.maximum(overlap, 0.0)
    return bins


def _clusters(
    distance: NDArray[np.floating], mass: NDArray[np.float64], capacity: float
) -> NDArray[np.int64]:
    """Cut Ward's tree into clusters with mass <= ``capacity``, and return each client's label.

    The mass of each merged cluster replaces its height in the tree. Like heights, masses grow
    towards the root. A cut at ``capacity`` therefore bounds the mass of each cluster.
    """
    from scipy.cluster.hierarchy import fcluster

    tree = ward_tree(distance)
    masses = np.concatenate([mass, np.zeros(len(tree))])
    for merge, (left, right) in enumerate(tree[:, :2].astype(int)):
        masses[len(mass) + merge] = masses[left] + masses[right]
    tree[:, 2] = masses[len(mass) :]
    return fcluster(tree, capacity, criterion="distance") - 1


def ward_tree(distance: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return SciPy's Ward linkage matrix [K - 1, 4] for finite distances [K, K], K >= 2."""
    # Imported here because the import takes 0.2 s and few runs need it.
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    # SciPy would treat the rows of a square matrix as points.
    return linkage(squareform(distance, checks=False), method="ward")


# JAX copies large callback arguments on another thread of the pool that runs programs. If all
# threads in this pool wait in callbacks, the copy never starts (deadlock, see jax-ml/jax#24255).
PIECE_BYTES = 64 * 1024


def call_on_host(function: Callable[..., Any], like: jax.ShapeDtypeStruct, *given: Array) -> Array:
    """Call a pure NumPy function on the host, copying arguments in pieces to avoid deadlocks."""
    pieces = []
    for array in given:
        length = PIECE_BYTES // array.dtype.itemsize
        pieces.append(jnp.split(array.ravel(), list(range(length, array.size, length))))
    counts, shapes = [len(each) for each in pieces], [array.shape for array in given]

    def on_host(*flat: Array) -> Any:
        left = iter(flat)
        parts = ([np.asarray(next(left)) for _ in range(count)] for count in counts)
        joined = (np.concatenate(p).reshape(shape) for p, shape in zip(parts, shapes, strict=True))
        return function(*joined)

    flat = [piece for each in pieces for piece in each]
    return jax.pure_callback(on_host, like, *flat, vmap_method="sequential")


def ward_labels(distance: NDArray[np.floating], number: int) -> NDArray[np.int32]:
    """Group clients into at most ``number`` Ward clusters, and return zero-based labels [K]."""
    if len(distance) == 1:
        return np.zeros(1, np.int32)
    from scipy.cluster.hierarchy import fcluster

    tree = ward_tree(np.nan_to_num(distance))
    return (fcluster(tree, number, criterion="maxclust") - 1).astype(np.int32)


def cluster_means(value: Array, label: Array, counted: Array, number: int) -> Array:
    """Return the mean value of ``counted`` clients in each cluster, float [number] (0 if none)."""
    sums, sizes = (
        jnp.zeros(number).at[label].add(jnp.where(counted, each, 0.0)) for each in (value, 1.0)
    )
    return sums / jnp.maximum(sizes, 1.0)


def draw_in_clusters(
    key: Array,
    label: Int[Array, " K"],
    taste: Float[Array, " M"],
    among: Bool[Array, " K"],
    count: int,
) -> Float[Array, " K"]:
    """Draw clients, and return ranks, float [K], from ``count`` (drawn first) to 0 (not drawn).

    Clients are drawn as in :class:`HicsFl`, from ``among`` and with cluster weights exp(``taste``).
    """
    order_key, draw_key = jax.random.split(key)
    order = jax.random.permutation(order_key, label.shape[0])

    def draw(step: Array, rank: Array) -> Array:
        left = among & (rank == 0)
        alive = jnp.zeros(taste.shape, bool).at[label].max(left)
        step_key = jax.random.fold_in(draw_key, step)
        drawn = jax.random.categorical(step_key, jnp.where(alive, taste, -jnp.inf))
        in_cluster = left & (label == drawn)
        first = order[jnp.argmax(in_cluster[order])]
        return jnp.where(in_cluster[first], rank.at[first].set(count - step), rank)

    return lax.fori_loop(0, count, draw, jnp.zeros(label.shape[0]))
