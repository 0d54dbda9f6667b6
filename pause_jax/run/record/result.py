"""Result of a run, and the functions that record its quantities.

The quantities determine the attributes of :class:`Result`, the variables of a sweep's dataset, and
the documentation of both. ``quantities.py`` defines the built-in quantities.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import ConfigError, PyTree, static
from pause_jax.config import SimConfig, with_budgets
from pause_jax.learning.learner import Learner, Variables, released_in_the_clear, update_size
from pause_jax.rng import keys
from pause_jax.run.record.quantities import METRICS, QUANTITIES, STEP_QUANTITIES
from pause_jax.run.record.quantity import (
    DIMENSIONS,
    Quantity,
    client_metric,
    client_score,
    metric,
)
from pause_jax.run.rounds.horizon import evaluated_at, evaluated_rounds
from pause_jax.run.rounds.state import Round, Run, State

Quantities = tuple[Quantity, ...]
Record = dict[str, Array]


class Result(PyTree):
    """Result of a run, as a pytree that supports vmap.

    Recorded quantities are also available as attributes. Their dimensions are round (T),
    eval_round (E), slot (m) and client (K):

    {quantities}

    Attributes:
      config: config of the run.
      values: recorded quantities, keyed by name.
      eval_rounds: int32 [E], rounds after which the model was evaluated. If ``max_seconds`` ended
        the run, the last evaluation follows the last simulated round. Unused entries are -1.
      variables: final model (Flax variables), with untrained weights in the ``frozen`` collection,
        or None if ``learning`` is None.
      epsilon_unit: unit of data that a budget protects: ``coordinate`` (one coordinate of an
        update), ``update`` (a whole update) or ``none``.
      num_parameters: d, number of entries in an update, or 0 if ``learning`` is None.
      unnoised: names of data that clients send without noise, namely model entries outside
        ``params`` (batch statistics, ``clear`` weights) and losses that the policy reads. Data
        sizes and latencies are omitted. Under ``NoPrivacy``, the ledger also lists the updates.
      client_ids: ids of clients 0, ..., K - 1 from the data or the config's input files. Empty if
        clients are numbered 0, 1, ..., or if they are drawn from a larger data set.
    """

    config: SimConfig
    values: dict[str, Array]
    eval_rounds: Array
    variables: Variables | None
    epsilon_unit: str = static(default="none")
    num_parameters: int = static(default=0, at_least=0)
    unnoised: tuple[str, ...] = static(default=())
    client_ids: tuple[str, ...] = static(default=())

    def __getattr__(self, name: str) -> Array:
        values = self.__dict__.get("values", {})
        if name in values:
            return values[name]
        recorded = f"recorded: {', '.join(values)}" if values else "nothing was recorded"
        raise AttributeError(f"Result has no {name!r} ({recorded}).")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.values]


def described(q: Quantity) -> str:
    """Return a quantity's documentation, with its name, dimensions, unit and description."""
    unit = f" ({q.unit})" if q.unit not in ("", "1") else ""
    return textwrap.fill(
        f"* ``{q.name}`` [{', '.join(q.dims)}]{unit}: {q.doc}", 96, subsequent_indent="  "
    )


Result.__doc__ = (Result.__doc__ or "").replace(
    "{quantities}", "\n".join(map(described, QUANTITIES.values())).replace("\n", "\n    ")
)

# Names reserved for fields of a result and for coordinates of a sweep's dataset.
RESERVED = ("config", "values", "eval_rounds", "variables", "replace", "epsilon_unit",
            "num_parameters", "unnoised", "client_ids", "client_id", "seed", "key", "word",
            "config_toml", "data_digest", *DIMENSIONS)  # fmt: skip


def with_metrics(
    quantities: Quantities,
    names: Iterable[str],
    configs: Iterable[SimConfig] = (),
    per_client: bool = False,
) -> Quantities:
    """Add a quantity for each learner metric in ``names`` that is not recorded yet.

    If rounds overlap in at least one config, also add ``STEP_QUANTITIES``. If ``per_client`` is
    True, also add the client metrics of all ``names``.

    Raises:
      ConfigError: if a metric's name is reserved, or is the name of a built-in quantity.
    """
    if any(config.overlaps for config in configs):
        quantities = (*quantities, *STEP_QUANTITIES.values())
    known = {each.name for each in quantities}
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name in QUANTITIES and name not in METRICS:
            raise ConfigError(
                f"learning: metric {name!r} has the name of a built-in quantity. Rename the metric."
            )
    metrics = [metric(name) for name in names if name not in known]
    if per_client:
        metrics += [client_score(client_metric(name)) for name in names]
    return chosen((*quantities, *metrics))


def check_client_scores(quantities: Quantities, learners: Sequence[Learner]) -> None:
    """Raise ConfigError if a recorded client metric is unknown or clients lack held-out samples."""
    known = [client_metric(name) for learner in learners for name in learner.metrics]
    for name in (q.name for q in quantities if q == client_score(q.name)):
        if any(learner.evaluate_clients is None for learner in learners):
            raise ConfigError(
                f"record: {name!r} needs held-out samples, but clients have none "
                "(learning.holdout = 0, or learning = None). Set learning.holdout, for example to "
                "0.2."
            )
        if name not in known:
            raise ConfigError(
                f"record: {name!r} is not a client metric.{nearest(name, known)} Use one of "
                f"{', '.join(dict.fromkeys(known))}."
            )


def chosen(record: Iterable[str | Quantity] | None) -> Quantities:
    """Return the quantities listed in ``record`` by name or as objects (None: ``QUANTITIES``).

    Raises:
      ConfigError: if ``record`` is empty, or an entry is unknown, invalid, duplicate or reserved.
    """
    if record is None:
        return tuple(QUANTITIES.values())
    if isinstance(record, str):
        raise ConfigError(f"record = {record!r}: must be a tuple of names. Use ({record!r},).")
    if not isinstance(record, Iterable) or not (record := tuple(record)):
        raise ConfigError(
            f"record = {shown(record)}: must have at least one quantity. Omit record to record the "
            "default quantities."
        )
    found: dict[str, Quantity] = {}
    known = QUANTITIES | STEP_QUANTITIES
    for each in record:
        if isinstance(each, str) and each.startswith("client_"):
            each = client_score(each)  # check_client_scores validates the name
        if isinstance(each, str):
            if each not in known:
                raise ConfigError(
                    f"record: {each!r} is not a built-in quantity.{nearest(each, known)} Use one "
                    f"of {', '.join(known)}, or define a quantity with @quantity(...)."
                )
            each = known[each]
        if not isinstance(each, Quantity):
            raise ConfigError(
                f"record: {each!r} must be a name, or a function decorated with @quantity(...)."
            )
        if each.name in found or each.name in RESERVED or not each.name.isidentifier():
            raise ConfigError(
                f"record: the name {each.name!r} must be unused, and consist of letters, digits "
                "and _. Rename the quantity."
            )
        found[each.name] = each
    return tuple(found.values())


def record_round(quantities: Quantities, played: Round) -> Record:
    """Compute the recorded quantities of a simulated round, keyed by name."""
    return {q.name: _value(q, played) for q in quantities if q.per_round}


def record_unplayed(quantities: Quantities, like: Any) -> Record:
    """Return fill values for a round that did not run, with the shapes and dtypes of ``like``."""
    return {q.name: _filled(like[q.name], q.gap) for q in quantities if q.per_round}


def _filled(like: Any, gap: float) -> Array:
    if jnp.issubdtype(like.dtype, jnp.bool_):
        gap = False
    elif jnp.issubdtype(like.dtype, jnp.integer) and math.isnan(gap):
        gap = -1
    return jnp.full(like.shape, gap, like.dtype)


def recorded_bytes(quantities: Quantities, config: SimConfig) -> int:
    """Estimate the size of a run's record in bytes, counting custom dimensions as size 1."""
    sizes = {"client": config.num_clients, "slot": config.num_slots}
    times = [config.num_rounds if q.per_round else 1 for q in quantities]
    each = [math.prod(sizes.get(dim, 1) for dim in q.dims) for q in quantities]
    return 4 * sum(map(math.prod, zip(times, each, strict=True)))


def _value(q: Quantity, of: Round | Run) -> Array:
    """Compute a quantity. Raise ConfigError if its shape does not match ``q.dims``."""
    value = q.value(of)
    if value is None:
        raise ConfigError(f"record: {q.name} returned None, but must return an array.")
    value = jnp.asarray(value)
    dims = q.dims[1:] if q.per_round else q.dims
    sizes = {"client": of.config.num_clients, "slot": of.config.num_slots}
    fits = value.ndim == len(dims) and all(
        sizes.get(dim, size) == size for dim, size in zip(dims, value.shape, strict=True)
    )
    if not fits:
        words = ", ".join(f"{dim} = {sizes[dim]}" if dim in sizes else dim for dim in dims)
        raise ConfigError(
            f"record: {q.name} returned shape {value.shape}{' in a round' * q.per_round}, but its "
            f"dimensions {q.dims} require [{words}]."
        )
    return value


def result_at_end(config: SimConfig, state: State, quantities: Quantities) -> Result:
    """Build the result of a run from its final state, without the per-round quantities.

    Until :func:`with_rounds` sets it, the field ``eval_rounds`` is the number of simulated rounds.
    """
    learning = state.learning
    run = Run(with_budgets(config, keys.budgets(state.keys.world)), state)
    releases: tuple[Any, ...] = () if config.learning is None else config.policy.releases
    return Result(
        config=config,
        values={q.name: _value(q, run) for q in quantities if not q.per_round},
        eval_rounds=state.played,
        variables=learning.variables,
        epsilon_unit=config.privacy.unit,
        num_parameters=update_size(learning),
        unnoised=released_in_the_clear(learning) + releases,
    )


def with_rounds(
    result: Result, config: SimConfig, record: Mapping[str, Any], quantities: Quantities
) -> Result:
    """Add the per-round quantities, as arrays [T, ...], to a result of :func:`result_at_end`.

    ``result.eval_rounds`` and the record must both be NumPy arrays or both be JAX arrays.
    """
    evaluated = evaluated_at(config, result.eval_rounds)
    # If a run ended before an evaluation, use the fill value recorded for its planned round.
    reached = (evaluated > 0).astype(np.int32)
    places = reached * evaluated + (1 - reached) * evaluated_rounds(config) - 1

    def value(q: Quantity) -> Any:
        if not q.per_round:
            return result.values[q.name]
        return record[q.name][places] if q.dims[0] == "eval_round" else record[q.name]

    values = {q.name: value(q) for q in quantities}
    return result.replace(config=config, values=values, eval_rounds=evaluated)
