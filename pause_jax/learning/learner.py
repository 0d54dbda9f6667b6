"""Learner interface: pure functions that operate on a learner state.

To use a custom learner, subclass ``Learning`` and return the learner from ``build``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key
from numpy.typing import NDArray

from pause_jax.bandit.protocol import Selection
from pause_jax.base.memory import tree_bytes
from pause_jax.learning.partition import Partition
from pause_jax.rng.keys import Streams

Variables = dict[str, Any]
# Collection trained like ``params``, except that its updates are sent without clipping or noise.
CLEAR = "clear"
FROZEN = "frozen"  # collection of weights that no client trains
GROUPS = 8  # number of channel groups in the library's group norm layers
TRAINED = ("params", CLEAR)  # collections that the client optimiser trains
# Maps a cohort's flat updates [m, d] to the updates [m, d] that the server receives.
Release = Callable[[Array], Array]


class LearnerState(NamedTuple):
    """Learner state between rounds.

    Attributes:
      partition: each client's samples and data quality.
      variables: the global model's collections; None if the learner has no model. Only released
        updates change ``params``. Noise is added only to these updates. ``frozen`` never changes.
      clients: state that clients keep between rounds, with leaves [K, ...]; None if stateless.
      inputs: random key for the noise in low-quality inputs.
      server: server optimiser state; None for plain averaging.
      rounds: int32, number of rounds or server steps so far, including those in which no
        client trained; 0 if the learner does not count them.
      work: float [K], factors that multiply the clients' local work in this round, set by the run;
        None if all clients do equal work.
    """

    partition: Partition
    variables: Variables | None
    clients: Any
    inputs: Key[Array, ""]
    rounds: Int[Array, ""] | int = 0
    server: Any = None
    work: Float[Array, " K"] | None = None

    @property
    def model(self) -> Variables:
        """Global model (only for learners with a model)."""
        assert self.variables is not None
        return self.variables


class Trained(NamedTuple):
    """Losses and released updates from training a cohort.

    Attributes:
      loss: float [m], mini-batch loss averaged over a client's local steps; 0 for an empty slot.
      square_loss: float [m], mean of a client's squared sample losses; 0 for an empty slot.
      released: float [m, d], flat updates as received by the server; 0 for an empty slot.
      mean_loss: scalar, sum of losses weighted by aggregation weights; NaN if no client trained.
    """

    loss: Float[Array, " m"]
    square_loss: Float[Array, " m"]
    released: Float[Array, "m d"]
    mean_loss: Float[Array, ""]


class StaleUpdates(NamedTuple):
    """Updates that missed their round and are averaged in the next round."""

    updates: Any  # leaves [m, ...], as received by the server; ``params`` is flat, [m, d]
    weights: Float[Array, " m"]  # original aggregation weights; 0 for slots without an update


class Deferred(NamedTuple):
    """Functions that train clients, and later average their updates.

    The updates of n clients are a dict of pytrees with leaves [n, ...]. The ``params`` entry is
    flat, [n, d], as received by the server.

    Attributes:
      none: (state, n) -> n all-zero updates.
      train: like ``Learner.train``, but also returns the updates [m, ...] and changes only
        ``state.clients``. Client number K marks an empty slot.
      average: (state, updates [n, ...], weights [n]) -> state after a server step on the weighted
        sum of the updates.
    """

    none: Callable[[LearnerState, int], Any]
    train: Callable[[Array, LearnerState, Selection, Release], tuple[LearnerState, Trained, Any]]
    average: Callable[[LearnerState, Any, Array], LearnerState]


class Learner(NamedTuple):
    """Pure functions that implement learning on the clients and the server.

    Each function handles a single run and may be vmapped over runs. ``train`` and ``ask`` must fold
    client numbers into their keys.

    Attributes:
      init: (streams) -> initial state, drawn with only the ``data``, ``model`` and ``inputs`` keys.
      train: (key, state, Selection, Release) -> (state, Trained). Every quantity that is computed
        from client data and enters ``params`` must pass through ``Release``. Empty slots must
        have no effect. ``train`` is called even for an empty cohort.
      ask: (key, state, clients [d], batch_size) -> float [d], the global model's mean loss on
        ``batch_size`` random samples per client, or on all samples if ``batch_size`` is None.
      evaluate: (state) -> dict of scalars, with one entry for each name in ``metrics``.
      metrics: names of the evaluation metrics, all recorded by default.
      local_samples: (data size [K], local work factors [K] or None) -> float [K], number of samples
        that each client processes per round; None if each client processes its data once.
      client_bytes: (state) -> memory in bytes needed to train one client.
      deferred: separate functions for training and averaging, needed for an ``Asynchronous`` clock
        and for ``stale_updates = "next"``; None if the learner supports neither.
      stale_damping: beta in the stale updates' weights (see ``Learning``).
      evaluate_clients: like ``evaluate``, but with means over each client's held-out samples, float
        [K] (NaN for clients without any); None if no samples are held out.
      server_loss: (state, updates [m, d], weights [m]) -> loss on the server's validation samples
        after adding the updates' weighted sum to ``params``; None if no samples are reserved.
    """

    init: Callable[[Streams], LearnerState]
    train: Callable[[Array, LearnerState, Selection, Release], tuple[LearnerState, Trained]]
    ask: Callable[[Array, LearnerState, Array, int | None], Array]
    evaluate: Callable[[LearnerState], dict[str, Array]]
    metrics: tuple[str, ...] = ("test_loss", "test_accuracy")
    local_samples: Callable[[Array, Array | None], Array] | None = None
    client_bytes: Callable[[LearnerState], int] = lambda state: 0
    deferred: Deferred | None = None
    stale_damping: Array | float | None = None
    server_loss: Callable[[LearnerState, Array, Array], Array] | None = None
    evaluate_clients: Callable[[LearnerState], dict[str, Array]] | None = None


def trained_part(variables: Variables) -> Variables:
    """Return the collections that clients train: ``params`` and, if present, ``clear``."""
    return {name: variables[name] for name in TRAINED if name in variables}


def sent_part(variables: Variables) -> Variables:
    """Return the collections whose updates clients send: all except ``frozen``."""
    return {name: variables[name] for name in variables if name != FROZEN}


def path_name(path: Any) -> str:
    """Convert a leaf's path to text, such as ``hidden_0/kernel``, without a leading ``params/``."""
    return jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return a pytree's leaves by path, in the order in which an update is flattened."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def update_size(state: LearnerState) -> int:
    """Return d, the number of entries in a flat update of ``params``, or 0 without a model."""
    params = (state.variables or {}).get("params")
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def output_layer(state: LearnerState) -> NDArray[np.int32] | None:
    """Return the output layer's positions in a flat update, int [C, 1 + H] (see ``Context``)."""
    params = (state.variables or {}).get("params")
    layer = output_layer_path(params)
    if layer is None:
        return None
    places: dict[str, NDArray[np.int32]] = {}
    start = 0
    for name, leaf in named_leaves(params).items():
        places[name] = start + np.arange(leaf.size, dtype=np.int32).reshape(leaf.shape)
        start += leaf.size
    bias, kernel = places[f"{layer}bias"], places[f"{layer}kernel"]
    return np.concatenate([bias[:, None], kernel.T], axis=1)


def output_layer_path(params: Any) -> str | None:
    """Return the path of the output layer, or None if the model has no unique output layer.

    The output layer is the affine layer (``kernel`` [H, C], ``bias`` [C]) named ``output``, or the
    only affine layer if none has this name. A nonempty path ends in ``/``.
    """
    layers: dict[str, dict[str, Any]] = {}
    for path, leaf in named_leaves(params).items():
        module, slash, name = path.rpartition("/")
        layers.setdefault(module + slash, {})[name] = leaf
    affine = [
        path
        for path, layer in layers.items()
        if layer.keys() == {"kernel", "bias"} and layer["kernel"].ndim == 2
    ]
    candidates = [path for path in affine if f"/{path}".endswith("/output/")] or affine
    return candidates[0] if len(candidates) == 1 else None


def model_bytes(state: LearnerState) -> int:
    """Return the bytes sent in each direction per client and round, or 0 without a model."""
    return tree_bytes(sent_part(state.variables or {}))


def released_in_the_clear(state: LearnerState) -> tuple[str, ...]:
    """Return the paths of all leaves whose updates are sent without clipping or noise."""
    sent = sent_part(state.variables or {})
    return tuple(named_leaves({name: sent[name] for name in sent if name != "params"}))


def all_finite(variables: Variables | None) -> Array:
    """Return whether all entries of a model are finite, or True if ``variables`` is None."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(variables)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def bandit_only(num_clients: int) -> Learner:
    """Return a learner for ``learning=None``, with one sample per client and empty updates."""

    def init(streams: Streams) -> LearnerState:
        one = jnp.ones(num_clients, jnp.int32)
        nobodys = Partition(jnp.zeros(0, jnp.int32), 0 * one, one, jnp.ones(num_clients))
        return LearnerState(nobodys, variables=None, clients=None, inputs=streams.inputs)

    def train_later(
        key: Array, state: LearnerState, selection: Selection, release: Release
    ) -> tuple[LearnerState, Trained, Any]:
        one = jnp.ones(selection.clients.shape)
        nothing = jnp.zeros((selection.clients.size, 0))
        return state, Trained(one, one, nothing, jnp.asarray(jnp.nan)), {"params": nothing}

    return Learner(
        init,
        train=lambda *arguments: train_later(*arguments)[:2],
        ask=lambda key, state, clients, batch_size: jnp.ones(clients.shape),
        evaluate=lambda state: dict.fromkeys(("test_loss", "test_accuracy"), jnp.asarray(jnp.nan)),
        deferred=Deferred(
            none=lambda state, size: {"params": jnp.zeros((size, 0))},
            train=train_later,
            average=lambda state, updates, weights: state,
        ),
    )
