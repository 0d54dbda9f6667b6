"""What a recorded quantity is: a function of a round, with its name, dimensions, unit and gap.

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

# Dimensions that the library knows; others are a quantity's own.
DIMENSIONS = ("round", "eval_round", "client", "slot")


class Quantity(NamedTuple):
    """One recorded quantity.

    Attributes:
      name: of the attribute of a ``Result``, and of the variable of a sweep's data set.
      value: what it is. Of a :class:`Round` if the first dimension is ``round`` (every round) or
        ``eval_round`` (those that are evaluated); else of a :class:`Run` at its end.
      dims: names of its dimensions; ``round``, ``eval_round``, ``client``, ``slot`` or one's own.
      unit: ``s`` for seconds; empty without one.
      gap: what stands where configs of a sweep differ in rounds, clients or slots, and in rounds
        that were not played. There a truth value is False, and a whole number that has no gap
        is -1.
      doc: its documentation.
    """

    name: str
    value: Callable[[Any], Array]
    dims: tuple[str, ...]
    unit: str
    gap: float
    doc: str

    @property
    def per_round(self) -> bool:
        """Whether it has a value in every round."""
        return self.dims[:1] in (("round",), ("eval_round",))


def quantity(
    *dims: str, unit: str = "", gap: float = math.nan
) -> Callable[[Callable[[Any], Array]], Quantity]:
    """Declare a quantity: a decorator of its function, whose name and docstring it takes.

    Args:
      *dims: names of the value's axes, such as ``"round"`` or ``"client"``.
      unit: of the value, for labels.
      gap: what stands where no value is, such as in rounds that were not played.

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
        return Quantity(value.__name__, value, dims, unit, gap, doc)

    return declare


@functools.cache
def metric(name: str) -> Quantity:
    """The quantity of one of the learner's metrics; NaN of a learner that has no such metric."""

    def value(r: Round) -> Array:
        return r.metrics.get(name, jnp.asarray(jnp.nan))

    return Quantity(name, value, ("eval_round",), "", math.nan, f"The metric {name}.")
