"""How quantities are recorded: of each round, of a run, and the gaps between.

:class:`~pause_jax.Result`, the data set of a sweep and their documentation follow from the list of
quantities: ``quantities.py`` has those of the library, ``quantity.py`` says how one is declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, with_budgets
from pause_jax.rng import keys
from pause_jax.run.record.quantities import METRICS, QUANTITIES, STEP_QUANTITIES
from pause_jax.run.record.quantity import Quantity, metric
from pause_jax.run.rounds.horizon import evaluated_at, evaluated_rounds
from pause_jax.run.rounds.state import Round, Run, State


def with_metrics(
    quantities: Quantities,
    names: Iterable[str],
    reserved: Sequence[str] = (),
    configs: Iterable[SimConfig] = (),
) -> Quantities:
    """The quantities, and those of the metrics among ``names`` that are not there yet.

    And those of server steps, if rounds overlap in one of the configs.

    Raises:
      ConfigError: for a metric of a name that is reserved, or of what the library records.
    """
    if any(config.overlaps for config in configs):
        quantities = (*quantities, *STEP_QUANTITIES.values())
    known = {each.name for each in quantities}
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name in QUANTITIES and name not in METRICS:
            raise ConfigError(
                f"learning: a metric is called {name!r}, which the library records already. Give "
                "it another name."
            )
    metrics = [metric(name) for name in names if name not in known]
    return chosen((*quantities, *metrics), reserved)


def chosen(record: Iterable[str | Quantity] | None, reserved: Sequence[str] = ()) -> Quantities:
    """The quantities to record: by name or as they are; all of the library's if None.

    Args:
      record: what to record.
      reserved: names that a quantity cannot have.

    Raises:
      ConfigError: for an unknown or a doubled name, or something that is no quantity.
    """
    if record is None:
        return tuple(QUANTITIES.values())
    if isinstance(record, str):
        raise ConfigError(f"record = {record!r}: must be a tuple of names, ({record!r},).")
    if not isinstance(record, Iterable) or not (record := tuple(record)):
        raise ConfigError(
            f"record = {shown(record)}: must name one quantity at least; leave it out for all."
        )
    found: dict[str, Quantity] = {}
    known = QUANTITIES | STEP_QUANTITIES
    for each in record:
        if isinstance(each, str):
            if each not in known:
                raise ConfigError(
                    f"record: {each!r} is no quantity of the library.{nearest(each, known)} "
                    f"It has {', '.join(known)}; declare your own with @quantity(...)."
                )
            each = known[each]
        if not isinstance(each, Quantity):
            raise ConfigError(
                f"record: {each!r} must be a name or a quantity, a function below @quantity(...)."
            )
        if each.name in found or each.name in reserved:
            raise ConfigError(f"record: the name {each.name!r} is taken; give it another one.")
        found[each.name] = each
    return tuple(found.values())


Quantities = tuple[Quantity, ...]
Record = dict[str, Array]


def record_round(quantities: Quantities, played: Round) -> Record:
    """The values of a round."""
    return {q.name: _value(q, played) for q in quantities if q.per_round}


def record_unplayed(quantities: Quantities, like: Any) -> Record:
    """The values of a round that is not played, of the shapes and kinds of one that is."""
    return {q.name: _filled(like[q.name], q.gap) for q in quantities if q.per_round}


def _filled(like: Any, gap: float) -> Array:
    if jnp.issubdtype(like.dtype, jnp.bool_):
        gap = False
    elif jnp.issubdtype(like.dtype, jnp.integer) and math.isnan(gap):
        gap = -1
    return jnp.full(like.shape, gap, like.dtype)


def at_end(quantities: Quantities, config: SimConfig, state: State) -> dict[str, Array]:
    """The quantities that a run has once, from its last state."""
    run = Run(with_budgets(config, keys.budgets(state.keys.world)), state)
    return {q.name: _value(q, run) for q in quantities if not q.per_round}


def in_rounds(
    quantities: Quantities, config: SimConfig, played: Any, record: Mapping[str, Any]
) -> dict[str, Any]:
    """The quantities that a run has in its rounds, from the record of all of them [T, ...].

    Args:
      quantities: what is recorded.
      config: of the run.
      played: rounds that were played; NumPy's if the record is.
      record: of its rounds.
    """
    evaluated = evaluated_at(config, played)
    # What was not reached is taken from its own round, which was not played.
    reached = (evaluated > 0).astype(np.int32)
    places = reached * evaluated + (1 - reached) * evaluated_rounds(config) - 1
    return {
        q.name: record[q.name][places] if q.dims[0] == "eval_round" else record[q.name]
        for q in quantities
        if q.per_round
    }


def recorded_bytes(quantities: Quantities, config: SimConfig) -> int:
    """Bytes of the record of a run, a quantity's own dimensions counted as 1."""
    sizes = {"client": config.num_clients, "slot": config.num_slots}
    times = [config.num_rounds if q.per_round else 1 for q in quantities]
    each = [math.prod(sizes.get(dim, 1) for dim in q.dims) for q in quantities]
    return 4 * sum(map(math.prod, zip(times, each, strict=True)))


def _value(q: Quantity, of: Round | Run) -> Array:
    """A value, if its shape is what its dimensions say.

    Raises:
      ConfigError: if it is not.
    """
    value = q.value(of)
    if value is None:
        raise ConfigError(f"record: {q.name} returned nothing; it must return an array.")
    value = jnp.asarray(value)
    dims = q.dims[1:] if q.per_round else q.dims
    sizes = {"client": of.config.num_clients, "slot": of.config.num_slots}
    fits = value.ndim == len(dims) and all(
        sizes.get(dim, size) == size for dim, size in zip(dims, value.shape, strict=True)
    )
    if not fits:
        words = ", ".join(f"{dim} = {sizes[dim]}" if dim in sizes else dim for dim in dims)
        raise ConfigError(
            f"record: {q.name} gave shape {value.shape}{' in a round' * q.per_round}; its "
            f"dimensions {q.dims} ask for [{words}]."
        )
    return value
