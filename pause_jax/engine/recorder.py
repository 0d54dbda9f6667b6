"""What is recorded of a run: each quantity once, with its value, dimensions, unit and gap.

The scan's output, :class:`~pause_jax.Result`, the data set of a sweep and their documentation
follow from the functions below. A quantity of one's own is written the same way and handed over:

    @quantity("round", unit="s")
    def waiting(r):
        '''Seconds that the median available client would have taken.'''
        return jnp.nanmedian(jnp.where(r.available, r.latency, jnp.nan))

    simulate(config, key, record=(*QUANTITIES, waiting))
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.engine.horizon import evaluated_at, evaluated_rounds
from pause_jax.engine.state import Round, Run, State
from pause_jax.learning.learner import all_finite
from pause_jax.registry import nearest
from pause_jax.struct import ConfigError

# Dimensions that the library knows; others are a quantity's own.
DIMENSIONS = ("round", "eval_round", "client", "slot")


class Quantity(NamedTuple):
    """One recorded quantity.

    Attributes:
      name: of the attribute of a ``Result``, and of the variable of a sweep's data set.
      value: what it is. Of a :class:`Round` if the first dimension is ``round`` (every round) or
        ``eval_round`` (those that are evaluated), or if there is a ``reduce``; else of a
        :class:`Run` at its end.
      dims: names of its dimensions; ``round``, ``eval_round``, ``client``, ``slot`` or one's own.
      unit: ``s`` for seconds; empty without one.
      gap: what stands where configs of a sweep differ in rounds, clients or slots, and in rounds
        that were not played. There a truth value is False, and a whole number that has no gap, or
        a ``reduce``, is -1.
      reduce: from the values of all rounds [T, ...] to the quantity; None to keep them.
      doc: its documentation.
    """

    name: str
    value: Callable[[Any], Array]
    dims: tuple[str, ...]
    unit: str
    gap: float
    reduce: Callable[[Array], Array] | None
    doc: str

    @property
    def per_round(self) -> bool:
        """Whether it has a value in every round."""
        return self.reduce is not None or self.dims[:1] in (("round",), ("eval_round",))


def quantity(
    *dims: str,
    unit: str = "",
    gap: float = math.nan,
    reduce: Callable[[Array], Array] | None = None,
) -> Callable[[Callable[[Any], Array]], Quantity]:
    """Declare a quantity: a decorator of its function, whose name and docstring it takes.

    Raises:
      ConfigError: for a dimension that is nearly one of the library's, or without parentheses.
    """
    for dim in dims:
        if not isinstance(dim, str):
            raise ConfigError(
                f"@quantity on {getattr(dim, '__name__', dim)!r}: must have its dimensions in "
                'parentheses, say @quantity("round"), or none: @quantity().'
            )
        if dim not in DIMENSIONS and nearest(dim, DIMENSIONS):
            raise ConfigError(f"@quantity({dim!r}): no such dimension.{nearest(dim, DIMENSIONS)}")

    def declare(value: Callable[[Any], Array]) -> Quantity:
        doc = inspect.getdoc(value) or ""
        return Quantity(value.__name__, value, dims, unit, gap, reduce, doc)

    return declare


@quantity("round", gap=False)
def played(r: Round) -> Array:
    """Whether the round was played, bool: no round starts after ``max_seconds``."""
    return jnp.asarray(True)


@quantity(gap=-1)
def num_played(run: Run) -> Array:
    """Rounds that were played, int32."""
    return run.state.played


@quantity("round", "slot", gap=-1)
def clients(r: Round) -> Array:
    """Chosen clients, int32; -1 for an empty slot."""
    return jnp.where(r.selection.active, r.selection.clients, -1)


@quantity("round", unit="s")
def latency(r: Round) -> Array:
    """Seconds of each round: (3), after the wait for queries."""
    return r.seconds


@quantity("round", unit="s")
def query_seconds(r: Round) -> Array:
    """Seconds of it that the policy's queries took."""
    return r.query_seconds


@quantity("round", unit="s")
def clock(r: Round) -> Array:
    """Simulated seconds at the end of each round."""
    return r.after.clock


@quantity("round")
def max_spent(r: Round) -> Array:
    """Largest budget spent by any client so far, in units of ``epsilon_unit``; infinite without
    privacy.
    """
    return jnp.max(r.config.privacy.budget.spent(r.after.stats.counts))


@quantity("client")
def spent(run: Run) -> Array:
    """Budget spent by each client at the end."""
    return run.config.privacy.budget.spent(run.state.stats.counts)


@quantity("client", gap=-1)
def counts(run: Run) -> Array:
    """Rounds in which each client took part, int32."""
    return run.state.stats.counts


@quantity("client", gap=-1)
def queried(run: Run) -> Array:
    """Rounds in which the policy asked each client before it chose and had an answer, int32."""
    return run.state.queried


@quantity("client", gap=-1)
def data_size(run: Run) -> Array:
    """Samples of each client, int32; ones without learning."""
    return run.state.learning.partition.size


@quantity("round")
def energy(r: Round) -> Array:
    """Energy (18) of the cohort in the policy's own search; NaN if it has none."""
    return r.info.energy


@quantity("round")
def reward(r: Round) -> Array:
    """Realised reward (9)."""
    return r.score.reward


@quantity("round")
def genie_reward(r: Round) -> Array:
    """Realised reward of the genie's cohort, given the same history."""
    return r.score.genie_reward


@quantity("round")
def regret(r: Round) -> Array:
    """C^G(genie) - C^G(cohort), (10), given the same history; signed, see ``Score``."""
    return r.score.regret


@quantity("round")
def optimality_gap(r: Round) -> Array:
    """Exact optimum minus ``energy``; NaN if the policy has no search."""
    return r.info.optimality_gap


@quantity("round")
def acceptance_rate(r: Round) -> Array:
    """Share of accepted moves of annealing; NaN otherwise."""
    return r.info.acceptance_rate


@quantity("round")
def train_loss(r: Round) -> Array:
    """Mean loss of the cohort's mini-batches; NaN without learning."""
    return r.trained.mean_loss


@quantity("eval_round")
def test_loss(r: Round) -> Array:
    """Mean loss on the test set; NaN without learning, and of a learner without that metric."""
    return r.metrics.get("test_loss", jnp.asarray(jnp.nan))


@quantity("eval_round", unit="1")
def test_accuracy(r: Round) -> Array:
    """Accuracy on the test set, in [0, 1]; NaN if the model is not finite, and for regression."""
    return r.metrics.get("test_accuracy", jnp.asarray(jnp.nan))


@quantity("eval_round", unit="s")
def eval_clock(r: Round) -> Array:
    """Simulated seconds at each evaluation."""
    return r.after.clock


def _first(happened: Array) -> Array:
    return jnp.where(jnp.any(happened), jnp.argmax(happened) + 1, 0).astype(jnp.int32)


@quantity(gap=-1, reduce=_first)
def first_nonfinite_round(r: Round) -> Array:
    """First round after which the model was not finite, int32; 0 if none."""
    return ~all_finite(r.after.learning.variables)


QUANTITIES: dict[str, Quantity] = {
    each.name: each
    for each in (
        *(played, num_played, clients, latency, query_seconds, clock, max_spent, spent, counts),
        *(queried, data_size, energy, reward, genie_reward, regret, optimality_gap),
        *(acceptance_rate, train_loss, test_loss, test_accuracy, eval_clock),
        *(first_nonfinite_round,),
    )
}


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
    found: dict[str, Quantity] = {}
    for each in record:
        if isinstance(each, str):
            if each not in QUANTITIES:
                raise ConfigError(
                    f"record: {each!r} is no quantity of the library.{nearest(each, QUANTITIES)} "
                    f"It has {', '.join(QUANTITIES)}; declare your own with @quantity(...)."
                )
            each = QUANTITIES[each]
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
    gaps = {q.name: math.nan if q.reduce else q.gap for q in quantities if q.per_round}
    return {name: _filled(like[name], gap) for name, gap in gaps.items()}


def _filled(like: Any, gap: float) -> Array:
    if jnp.issubdtype(like.dtype, jnp.bool_):
        gap = False
    elif jnp.issubdtype(like.dtype, jnp.integer) and math.isnan(gap):
        gap = -1
    return jnp.full(like.shape, gap, like.dtype)


def finished(
    quantities: Quantities, config: SimConfig, state: State, record: Record
) -> dict[str, Array]:
    """All quantities of a run, from its last state and the record of its rounds [T, ...]."""
    run, evaluated = Run(config, state), evaluated_at(config, state.played)
    # What was not reached is taken from its own round, which was not played.
    places = jnp.where(evaluated > 0, evaluated, evaluated_rounds(config)) - 1
    values = {}
    for q in quantities:
        if not q.per_round:
            values[q.name] = _value(q, run)
        elif q.reduce is not None:
            values[q.name] = q.reduce(record[q.name])
        else:
            every = record[q.name]
            values[q.name] = every[places] if q.dims[0] == "eval_round" else every
    return values


def recorded_bytes(quantities: Quantities, config: SimConfig) -> int:
    """Bytes of the record of a run, a quantity's own dimensions counted as 1."""
    sizes = {"client": config.num_clients, "slot": config.cohort_size}
    entries = [math.prod(sizes.get(dim, 1) for dim in q.dims) for q in quantities if q.per_round]
    return 4 * config.num_rounds * sum(entries)


def _value(q: Quantity, of: Round | Run) -> Array:
    """A value, if its shape is what its dimensions say.

    Raises:
      ConfigError: if it is not.
    """
    given = q.value(of)
    if given is None:
        raise ConfigError(f"record: {q.name} returned nothing; it must return an array.")
    value = jnp.asarray(given)
    dims = q.dims[1:] if q.per_round else q.dims
    sizes = {"client": of.config.num_clients, "slot": of.config.cohort_size}
    fits = q.reduce is not None or (
        value.ndim == len(dims)
        and all(sizes.get(dim, size) == size for dim, size in zip(dims, value.shape, strict=True))
    )
    if not fits:
        words = ", ".join(f"{dim} = {sizes[dim]}" if dim in sizes else dim for dim in dims)
        raise ConfigError(
            f"record: {q.name} gave shape {value.shape}{' in a round' * q.per_round}; its "
            f"dimensions {q.dims} ask for [{words}]."
        )
    return value
