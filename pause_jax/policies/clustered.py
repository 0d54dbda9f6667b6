"""Clusters of clients by their updates: clustered sampling by similarity, and HiCS-FL.

Source: Fraboni et al., "Clustered sampling: low-variance and improved representativity for clients
selection in federated learning", ICML 2021, Algorithm 2; Chen and Vikalo, "Heterogeneity-guided
client sampling: towards fast and efficient non-IID federated learning", NeurIPS 2024 (arXiv
2310.00198), and its program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import ConfigError, number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.baselines import Random
from pause_jax.policies.choose import equal_weights, top_clients
from pause_jax.policies.sampling import ClusteredSize, draw_from_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


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
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Fraboni et al. 2021, Alg. 2"
    alone: ClassVar[bool] = True

    distance: str = static(default="arccos", choices=("arccos", "l2", "l1"))

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return ClusteredSize().build(context)
        measure = {"arccos": arccos, "l2": euclidean, "l1": manhattan}[self.distance]
        rows_like = jax.ShapeDtypeStruct((m, num_clients), jnp.float32)

        def distributions(
            distance: NDArray[Any], size: NDArray[Any], order: NDArray[Any]
        ) -> NDArray[np.float32]:
            return similarity_distributions(distance, size, order, m).astype(np.float32)

        def select(key: Array, updates: Array, round: Array, available: Array) -> Selected:
            order_key, draw_key = jax.random.split(key)
            order = jax.random.permutation(order_key, num_clients)
            distance = measure(updates)
            rows = call_on_host(distributions, rows_like, distance, context.data_size, order)
            return draw_from_rows(draw_key, rows, available, context), no_info()

        def update(updates: Array, selection: Selection, observation: Observation) -> Array:
            received = selection.active & observation.received
            return store_active(updates, selection.clients, observation.update, received)

        return Policy(lambda: jnp.zeros((num_clients, context.update_size)), select, update)


class HicsState(NamedTuple):
    """State of HiCS-FL."""

    # Of the last update received of each client, the output layer: bias, incoming weights.
    layer: Float[Array, "K C P"]
    seen: Bool[Array, " K"]  # whose update was ever received


class HicsFl(PolicyConfig):
    """m draws of a cluster, preferring those of balanced labels, and of a client within it.

    The update v of the output layer shows how balanced a client's labels are: h is the entropy of
    softmax(v / T). Ward's method clusters clients by the angle between their output layers plus
    lambda ``|h_i - h_j|`` (SciPy, on the host), and cluster g is drawn in proportion to exp(gamma
    (1 - t / T_max) mean h), t the rounds before this one, among those with clients left; uniformly
    within, equal weights. Clients without an update come first, at random. Updates are as the
    server received them, clipped and noised, so nothing more is released. Without learning there is
    nothing to compare, and it is ``random``.

    Not included: the program goes over to clustered sampling while the h vary much.

    Attributes:
      clusters: M; as many as the cohort has clients if left out.
      temperature: T.
      entropy_weight: lambda.
      annealing: gamma.
      signal: v is the update of the ``bias``, or of the ``weights`` averaged over the inputs.
    """

    name: ClassVar[str] = "hics_fl"
    summary: ClassVar[str] = "clusters by the output layer's update, balanced labels first"
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "the model's output layer"
    reference: ClassVar[str] = "Chen and Vikalo 2024"
    alone: ClassVar[bool] = True
    needs_rounds: ClassVar[str] = "anneals over the number of rounds"

    clusters: int | None = static(default=None, at_least=1, optional=True, kind=int)
    temperature: float = number(default=0.001, above=0)
    entropy_weight: float = number(default=10.0, at_least=0)
    annealing: float = number(default=4.0, at_least=0)
    signal: str = static(default="bias", choices=("bias", "weights"))

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return Random().build(context)
        places = context.output_layer() if context.output_layer is not None else None
        if places is None:
            raise ConfigError(
                f"policy = {self.name}: which entries of an update are the output layer is not "
                "known. Name the model's last affine layer 'output'."
            )
        number = m if self.clusters is None else self.clusters
        like = jax.ShapeDtypeStruct((num_clients,), jnp.int32)

        def init() -> HicsState:
            return HicsState(jnp.zeros((num_clients, *places.shape)), jnp.zeros(num_clients, bool))

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

        return Policy(init, select, update)

    def entropies(self, layer: Array) -> Array:
        """Entropies h, float [K], from output layers [K, C, 1 + H]; 0 where not finite."""
        shown = layer[..., 0] if self.signal == "bias" else jnp.mean(layer[..., 1:], axis=-1)
        log_share = jax.nn.log_softmax(shown / self.temperature)
        h = -jnp.sum(jnp.exp(log_share) * log_share, axis=-1)
        return jnp.nan_to_num(h, posinf=0.0, neginf=0.0)


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
    """The m distributions of Algorithm 2, [m, K]; each row sums to one, and column i to m p_i.

    A client brings mass m n_i and a bin holds sum(n), so all masses fill the m bins, and a bin
    divided by what it holds is a distribution. (If every bin is full and every mass is in some bin,
    column i of the distributions sums to m n_i / sum(n) = m p_i: the draws are unbiased.)

    1. A client with at least 1/m of the data fills bins of its own first. (The published program
       does not do that, and is biased then.)
    2. Ward's tree is cut into clusters of at most one bin, so there are at least as many as open
       bins. The largest clusters seed one open bin each, the largest of all the first.
    3. The clients of the other clusters, smallest cluster first, are poured into the open bins in
       turn; what does not fit into a bin spills over into the next.

    The distances [K, K] are symmetric, non-finite ones are replaced; sizes [K] are whole numbers;
    ties and the order within a cluster follow ``order`` [K], a permutation.
    """
    capacity = float(np.sum(data_size))
    own, mass = _own_bins(num_selected * data_size.astype(np.float64), capacity)
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


def _own_bins(
    mass: NDArray[np.float64], capacity: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(bins that one client fills alone [n, K], the mass that is left of each client [K])."""
    number = (mass // capacity).astype(np.int64)
    client = np.repeat(np.arange(len(mass)), number)
    bins = capacity * (client[:, None] == np.arange(len(mass))[None, :])
    return bins, mass - number * capacity


def _pour(
    bins: NDArray[np.float64],
    mass: NDArray[np.float64],
    in_turn: NDArray[np.integer],
    capacity: float,
) -> NDArray[np.float64]:
    """The bins [n, K] when clients have poured their mass, of [K], ``in_turn``, bin after bin."""
    poured, room = mass[in_turn], capacity - bins.sum(axis=1)
    # Of all mass in one row: where each client's ends, and where each bin is full.
    ends, full = np.cumsum(poured)[None, :], np.cumsum(room)[:, None]
    overlap = np.minimum(ends, full) - np.maximum(ends - poured[None, :], full - room[:, None])
    bins = bins.copy()
    bins[:, in_turn] += np.maximum(overlap, 0.0)
    return bins


def _clusters(
    distance: NDArray[np.floating], mass: NDArray[np.float64], capacity: float
) -> NDArray[np.int64]:
    """Cut Ward's tree into clusters that hold at most ``capacity`` each; numbers [K] from 0.

    The heights of the tree's merges are replaced by the mass that they hold together, which grows
    towards the root as heights do, and the tree is cut at the height ``capacity``.
    """
    from scipy.cluster.hierarchy import fcluster

    tree = ward_tree(distance)
    masses = np.concatenate([mass, np.zeros(len(tree))])
    for merge, (left, right) in enumerate(tree[:, :2].astype(int)):
        masses[len(mass) + merge] = masses[left] + masses[right]
    tree[:, 2] = masses[len(mass) :]
    return fcluster(tree, capacity, criterion="distance") - 1


def ward_tree(distance: NDArray[np.floating]) -> NDArray[np.float64]:
    """SciPy's linkage matrix [K - 1, 4] of Ward's method, from finite distances [K, K], K >= 2."""
    # Imported here: it takes a fifth of a second, and few runs cluster.
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    # Condensed, or SciPy would take the rows of the matrix for points.
    return linkage(squareform(distance, checks=False), method="ward")


# JAX copies larger arguments of a callback on another thread of those that run programs. If all of
# them wait in callbacks, none is left to copy, and they wait for ever (jax-ml/jax#24255).
PIECE_BYTES = 64 * 1024


def call_on_host(function: Callable[..., Any], like: jax.ShapeDtypeStruct, *given: Array) -> Array:
    """Call a pure function of NumPy arrays, copying its arguments in pieces."""
    pieces = [_split(array) for array in given]
    counts, shapes = [len(each) for each in pieces], [array.shape for array in given]

    def on_host(*flat: Array) -> Any:
        left = iter(flat)
        parts = ([np.asarray(next(left)) for _ in range(count)] for count in counts)
        joined = (np.concatenate(p).reshape(shape) for p, shape in zip(parts, shapes, strict=True))
        return function(*joined)

    flat = [piece for each in pieces for piece in each]
    return jax.pure_callback(on_host, like, *flat, vmap_method="sequential")


def _split(array: Array) -> list[Array]:
    length = PIECE_BYTES // array.dtype.itemsize
    return jnp.split(array.ravel(), list(range(length, array.size, length)))


def ward_labels(distance: NDArray[np.floating], number: int) -> NDArray[np.int32]:
    """Clusters [K] of Ward's tree, at most ``number``, from 0 on; from distances [K, K]."""
    if len(distance) == 1:
        return np.zeros(1, np.int32)
    from scipy.cluster.hierarchy import fcluster

    tree = ward_tree(np.nan_to_num(distance))
    return (fcluster(tree, number, criterion="maxclust") - 1).astype(np.int32)


def cluster_means(value: Array, label: Array, counted: Array, number: int) -> Array:
    """Mean of the counted clients' values in each cluster, float [number]; 0 of an empty one."""
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
    """Return the rank of each drawn client: ``count`` for the first, 0 if it is not drawn.

    Each of at most ``count`` draws takes a cluster in proportion to exp(``taste``), of those with
    clients ``among`` left, and one of these clients uniformly.
    """
    order_key, draw_key = jax.random.split(key)
    order = jax.random.permutation(order_key, label.shape[0])

    def draw(step: Array, rank: Array) -> Array:
        left = among & (rank == 0)
        alive = jnp.zeros(taste.shape, bool).at[label].max(left)
        drawn = jax.random.categorical(
            jax.random.fold_in(draw_key, step), jnp.where(alive, taste, -jnp.inf)
        )
        in_cluster = left & (label == drawn)
        first = order[jnp.argmax(in_cluster[order])]
        return jnp.where(in_cluster[first], rank.at[first].set(count - step), rank)

    return lax.fori_loop(0, count, draw, jnp.zeros(label.shape[0]))
