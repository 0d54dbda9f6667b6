"""Recorded quantities: functions of a round or a run, with a name, dimensions, unit and gap.

::

    @quantity("round", unit="s")
    def waiting(r):
        '''Seconds that the median available client would have taken.'''
        return jnp.nanmedian(jnp.where(r.available, r.latency, jnp.nan))

    simulate(config, key, record=(*QUANTITIES, waiting))
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.base.spelling import nearest
from pause_jax.base.struct import ConfigError
from pause_jax.run.rounds.state import Round

# Dimensions of the library. Custom quantities may have others.
DIMENSIONS = ("round", "eval_round", "client", "slot")


class Quantity(NamedTuple):
    """Recorded quantity.

    Attributes:
      name: name of the attribute of a ``Result``, and of the variable in a sweep's data set.
      value: function that computes the value, from a :class:`Round` if the first dimension is
        ``round`` (every round) or ``eval_round`` (evaluated rounds), otherwise from a :class:`Run`.
      dims: dimension names: ``round``, ``eval_round``, ``client``, ``slot`` or custom names.
      unit: unit of the value, such as ``s`` for seconds; empty if it has no unit.
      gap: fill value where configs of a sweep differ in rounds, clients or slots, and for rounds
        that were not played. For the latter, booleans are False, and integers -1 if the gap is NaN.
      doc: description.
    """

    name: str
    value: Callable[[Any], Array]
    dims: tuple[str, ...]
    unit: str
    gap: float
    doc: str

    @property
    def per_round(self) -> bool:
        """Whether the value is computed in every round."""
        return self.dims[:1] in (("round",), ("eval_round",))


def quantity(
    *dims: str, unit: str = "", gap: float = math.nan
) -> Callable[[Callable[[Any], Array]], Quantity]:
    """Declare a quantity by decorating its function, whose name and docstring it takes over.

    Args:
      *dims: names of the value's axes, such as ``"round"`` or ``"client"``.
      unit: unit of the value, for labels.
      gap: fill value for missing entries, such as rounds that were not played.

    Raises:
      ConfigError: if a dimension of the library is misspelt, or the decorator has no parentheses.
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
        return Quantity(value.__name__, value, dims, unit, gap, doc)

    return declare


@functools.cache
def metric(name: str) -> Quantity:
    """Return the quantity of a learner's metric, which is NaN for learners without the metric."""

    def value(r: Round) -> Array:
        return r.metrics.get(name, jnp.asarray(jnp.nan))

    return Quantity(name, value, ("eval_round",), "", math.nan, f"The metric {name}.")
