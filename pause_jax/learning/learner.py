"""The contract of a learner: pure functions of a state.

``Learning.build`` makes the learner of local SGD; :func:`bandit_only` is that of a simulation
without learning. For a custom learner, subclass ``Learning`` and return it from ``build``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from pause_jax.bandit.protocol import Selection
from pause_jax.base.memory import tree_bytes
from pause_jax.learning.partition import Partition
from pause_jax.rng.keys import Streams

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Key

Variables = dict[str, Any]
# The collection of a model's weights that are trained like ``params``, and released as they are.
CLEAR = "clear"
# Groups of channels of group norm in the library's models.
GROUPS = 8
# Collections that the optimiser moves.
TRAINED = ("params", CLEAR)
# Takes the cohort's flat updates [m, d] to what the server receives of them [m, d].
Release = Callable[[Array], Array]


class LearnerState(NamedTuple):
    """What one round of learning hands to the next.

    Attributes:
      partition: who holds how many samples, of which quality; the server knows the sizes.
      variables: the global model: ``params``, which only released updates change, and perhaps
        other collections, whose updates are un-noised. None without a model.
      clients: what clients keep between their rounds, leaves [K, ...]; None for nothing.
      inputs: key of the noise of low-quality inputs.
      server: state of the server's optimiser; None for plain averaging.
      rounds: int32, rounds so far, also those without training; 0 if the learner does not count.
    """

    partition: Partition
    variables: Variables | None
    clients: Any
    inputs: Key[Array, ""]
    rounds: Int[Array, ""] | int = 0
    server: Any = None

    @property
    def model(self) -> Variables:
        """The global model of a learner that has one."""
        assert self.variables is not None
        return self.variables


class Trained(NamedTuple):
    """Losses and released updates of a cohort's training.

    The losses are records of the simulation. A policy sees them only if it declares them in
    ``reads``.

    Attributes:
      loss: float [m], mean over a client's local steps of the mini-batch loss; 0 of an empty slot.
      square_loss: float [m], mean over the samples used of the squared loss, at the moving weights;
        0 of an empty slot.
      released: float [m, d], flat updates as the server received them; 0 from an empty slot.
      mean_loss: scalar, ``loss`` with the aggregation weights; NaN if no client trained.
    """

    loss: Float[Array, " m"]
    square_loss: Float[Array, " m"]
    released: Float[Array, "m d"]
    mean_loss: Float[Array, ""]


class StaleUpdates(NamedTuple):
    """Updates that missed their round and are averaged in the next."""

    updates: Any  # leaves [m, ...], as the server received them; ``params`` flat, [m, d]
    weights: Float[Array, " m"]  # the aggregation weights that they had; 0 for none


class Deferred(NamedTuple):
    """Training in two halves, for updates that are averaged in a later round or server step.

    Updates are a dict of arrays whose entry ``params`` is flat, [n, d], as the server received it.

    Attributes:
      none: (state, n) -> n updates of zeros.
      train: as ``Learner.train``, and the updates [m, ...]; of the state only what clients keep
        changes, and a client number K marks a slot that nobody has.
      average: (state, updates [n, ...], weights [n]) -> state after a server step, which adds the
        weighted sum of the updates.
    """

    none: Callable[[LearnerState, int], Any]
    train: Callable[[Array, LearnerState, Selection, Release], tuple[LearnerState, Trained, Any]]
    average: Callable[[LearnerState, Any, Array], LearnerState]


class Learner(NamedTuple):
    """Learner: what the clients and the server do with data and model.

    Its functions are pure and written for one run; they may be vmapped over runs. ``init``,
    ``train``, ``ask`` and ``evaluate`` are required.

    Attributes:
      init: (streams) -> state before round 1; draws from ``data``, ``model`` and ``inputs`` alone.
      train: (key, state, Selection, Release) -> (state, Trained). Everything computed from a
        client's data that reaches ``params`` goes through the release; inactive slots change
        nothing. The key is folded by client. Called in every round, also with an empty cohort.
      ask: (key, state, clients [d], batch_size) -> float [d], mean loss of the global model on the
        data of some clients, or on a mini-batch of it. The key is folded by client.
      evaluate: (state) -> scalars by name, those of ``metrics``.
      metrics: their names. All are recorded by default.
      max_samples: samples that a client trains on in a round at most; None for all it has.
      client_bytes: (state) -> bytes of a client in training, to plan how many train side by side.
      deferred: training in two halves, for ``SimConfig.clock = Asynchronous()`` and
        ``SimConfig.stale_updates = "next"``; None of a learner that supports neither.
      stale_damping: beta of the weights of stale updates, see ``Learning``.
      server_loss: (state, updates [m, d], weights [m]) -> loss on the server's validation samples
        of the model with the weighted sum of these updates added; None if it has none.
    """

    init: Callable[[Streams], LearnerState]
    train: Callable[[Array, LearnerState, Selection, Release], tuple[LearnerState, Trained]]
    ask: Callable[[Array, LearnerState, Array, int | None], Array]
    evaluate: Callable[[LearnerState], dict[str, Array]]
    metrics: tuple[str, ...] = ("test_loss", "test_accuracy")
    max_samples: int | None = None
    client_bytes: Callable[[LearnerState], int] = lambda state: 0
    deferred: Deferred | None = None
    stale_damping: Array | float | None = None
    server_loss: Callable[[LearnerState, Array, Array], Array] | None = None


def trained_part(variables: Variables) -> Variables:
    """The collections of a model that the optimiser moves: ``params``, and ``clear`` if any."""
    return {name: variables[name] for name in TRAINED if name in variables}


def update_size(state: LearnerState) -> int:
    """Entries d of a client's update that go through the mechanism; 0 without a model."""
    params = (state.variables or {}).get("params")
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def output_layer(state: LearnerState) -> NDArray[np.int32] | None:
    """Where the output layer stands in a flat update, int [C, 1 + H]; see ``Context``.

    It is the affine layer (``kernel`` [H, C], ``bias`` [C]) that is named ``output``, or the only
    one that the model has; None if there is neither.
    """
    params = (state.variables or {}).get("params")
    layers: dict[str, dict[str, NDArray[np.int32]]] = {}
    start = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        *module, name = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        places = start + np.arange(leaf.size, dtype=np.int32).reshape(leaf.shape)
        layers.setdefault("/".join(module), {})[name] = places
        start += leaf.size
    affine = {
        name: np.concatenate([layer["bias"][:, None], layer["kernel"].T], axis=1)
        for name, layer in layers.items()
        if layer.keys() == {"kernel", "bias"} and layer["kernel"].ndim == 2
    }
    named = {name: layer for name, layer in affine.items() if name.split("/")[-1] == "output"}
    candidates = list((named or affine).values())
    return candidates[0] if len(candidates) == 1 else None


def model_bytes(state: LearnerState) -> int:
    """Bytes of a model, and of a client's update of it; 0 without one."""
    return tree_bytes(state.variables)


def released_in_the_clear(state: LearnerState) -> tuple[str, ...]:
    """Names of the model's entries that leave clients without noise: all outside ``params``."""
    rest = {name: tree for name, tree in (state.variables or {}).items() if name != "params"}
    paths, _ = jax.tree_util.tree_flatten_with_path(rest)
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths)


def all_finite(variables: Variables | None) -> Array:
    """Whether every entry of a model is finite; true without one."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(variables)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def bandit_only(num_clients: int) -> Learner:
    """The learner of ``learning=None``: one sample each, losses of 1, updates without entries."""

    def init(streams: Streams) -> LearnerState:
        one = jnp.ones(num_clients, jnp.int32)
        nobodys = Partition(jnp.zeros(0, jnp.int32), 0 * one, one, jnp.ones(num_clients))
        return LearnerState(nobodys, variables=None, clients=None, inputs=streams.inputs)

    def train(
        key: Array, state: LearnerState, selection: Selection, release: Release
    ) -> tuple[LearnerState, Trained]:
        one = jnp.ones(selection.clients.shape)
        nothing = jnp.zeros((selection.clients.size, 0))
        return state, Trained(one, one, nothing, jnp.asarray(jnp.nan))

    def none(state: LearnerState, size: int) -> Any:
        return {"params": jnp.zeros((size, 0))}

    def train_later(*arguments: Any) -> tuple[LearnerState, Trained, Any]:
        state, trained = train(*arguments)
        return state, trained, {"params": trained.released}

    def ask(key: Array, state: LearnerState, clients: Array, batch_size: int | None) -> Array:
        return jnp.ones(clients.shape)

    def evaluate(state: LearnerState) -> dict[str, Array]:
        nan = jnp.asarray(jnp.nan)
        return {"test_loss": nan, "test_accuracy": nan}

    deferred = Deferred(none, train_later, lambda state, updates, weights: state)
    return Learner(init, train, ask, evaluate, deferred=deferred)
