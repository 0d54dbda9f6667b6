"""HiCS-FL: clusters of clients by what their output layers show of their labels.

Source: Chen and Vikalo, "Heterogeneity-guided client sampling: towards fast and efficient non-IID
federated learning", NeurIPS 2024 (arXiv 2310.00198), and its program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

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
from pause_jax.policies.clustered import arccos, call_on_host, ward_tree

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


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
