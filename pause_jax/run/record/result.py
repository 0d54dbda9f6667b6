"""The outcome of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from jax import Array

from pause_jax.base.struct import PyTree, static
from pause_jax.config import SimConfig
from pause_jax.learning.learner import Variables, released_in_the_clear, update_size
from pause_jax.run.record.quantities import QUANTITIES
from pause_jax.run.record.quantity import DIMENSIONS, Quantity
from pause_jax.run.record.recorder import Quantities, at_end, in_rounds
from pause_jax.run.rounds.horizon import evaluated_at
from pause_jax.run.rounds.state import State


class Result(PyTree):
    """The outcome of a run: a pytree, so it vmaps.

    What was recorded are attributes too, with dimensions round (T), eval_round (E), slot (m) and
    client (K):

    {quantities}

    Attributes:
      config: the config that made it.
      values: what was recorded, by name.
      eval_rounds: int32 [E], the rounds that were evaluated. A run that ``max_seconds`` ended was
        evaluated after its last round, in the place of the next planned one; -1 after it.
      variables: final model (Flax variables); None without learning.
      epsilon_unit: what the budgets protect: ``coordinate`` (one coordinate of an update),
        ``update`` (a whole update) or ``none``.
      num_parameters: d, entries of an update; 0 without learning.
      unnoised: what left clients without noise, besides sizes and latencies: running statistics
        of the model, and what the policy reads of the data.
      client_ids: of clients 0, ..., K - 1, in the data and the fleet's files; empty where they are
        called by these numbers, and where the key draws them from more clients of the data.
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
        recorded = f"recorded were {', '.join(values)}" if values else "nothing was recorded"
        raise AttributeError(f"a Result has no {name!r}; {recorded}.")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.values]


def described(q: Quantity) -> str:
    """One entry of a documentation: name, dimensions, unit, meaning."""
    unit = f" ({q.unit})" if q.unit not in ("", "1") else ""
    return textwrap.fill(
        f"* ``{q.name}`` [{', '.join(q.dims)}]{unit}: {q.doc}", 96, subsequent_indent="  "
    )


Result.__doc__ = (Result.__doc__ or "").replace(
    "{quantities}", "\n".join(map(described, QUANTITIES.values())).replace("\n", "\n    ")
)

# Names that a quantity cannot have: those of a result, and of a sweep's coordinates.
RESERVED = ("config", "values", "eval_rounds", "variables", "replace", "epsilon_unit",
            "num_parameters", "unnoised", "client_ids", "client_id", "seed", "key", "word",
            "config_toml", "data_digest", *DIMENSIONS)  # fmt: skip


def result_at_end(config: SimConfig, state: State, quantities: Quantities) -> Result:
    """Build the result of a run from its last state, without what its rounds recorded; pure.

    ``eval_rounds`` holds the number of rounds that were played.
    """
    learning = state.learning
    releases: tuple[Any, ...] = () if config.learning is None else config.policy.releases
    return Result(
        config=config,
        values=at_end(quantities, config, state),
        eval_rounds=state.played,
        variables=learning.variables,
        epsilon_unit=config.privacy.unit,
        num_parameters=update_size(learning),
        unnoised=released_in_the_clear(learning) + releases,
    )


def with_rounds(
    result: Result, config: SimConfig, record: Mapping[str, Any], quantities: Quantities
) -> Result:
    """Add the record of the rounds to the result of :func:`result_at_end`.

    Args:
      result: of the run's end; arrays of NumPy if the record has them.
      config: of the run, with its length.
      record: of all rounds, leaves [T, ...].
      quantities: what is recorded, in the order of the result.
    """
    played = result.eval_rounds
    values = result.values | in_rounds(quantities, config, played, record)
    return result.replace(
        config=config,
        values={q.name: values[q.name] for q in quantities},
        eval_rounds=evaluated_at(config, played),
    )
