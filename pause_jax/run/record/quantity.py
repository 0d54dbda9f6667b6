"""Declaration of recorded quantities as functions of a round or a run."""

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

# Built-in dimensions. Custom quantities may define other dimensions.
DIMENSIONS = ("round", "eval_round", "client", "slot")


class Quantity(NamedTuple):
    """Recorded quantity, with its metadata and the function that computes it.

    Attributes:
      name: attribute name in a ``Result``, and variable name in a sweep's dataset.
      value: function that computes the value. Its argument is a :class:`Round` if the first
        dimension is ``round`` or ``eval_round`` (evaluated rounds), otherwise a :class:`Run`.
      dims: dimension names: ``round``, ``eval_round``, ``client``, ``slot`` or custom names.
      unit: unit of the value, such as ``s`` for seconds, or "" if it has none.
      gap: fill value for rounds that were not simulated, and for padding if a sweep's configs have
        different numbers of rounds, clients or slots. In rounds that were not simulated, booleans
        are always False, and integers use -1 instead of NaN.
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
    """Return a decorator that turns a function into a quantity with the same name and docstring.

    Args:
      *dims: names of the value's axes, such as ``"round"`` or ``"client"``.
      unit: unit of the value, for labels.
      gap: fill value for missing entries (see ``Quantity`` for booleans and integers).

    Raises:
      ConfigError: if a built-in dimension is misspelt, or the decorator has no parentheses.
    """
    for dim in dims:
        if not isinstance(dim, str):
            raise ConfigError(
                f"@quantity on {getattr(dim, '__name__', dim)!r}: must have parentheses. Use "
                '@quantity("round"), or @quantity() for a value without dimensions.'
            )
        if dim not in DIMENSIONS and nearest(dim, DIMENSIONS):
            raise ConfigError(
                f"@quantity({dim!r}): must be a known dimension.{nearest(dim, DIMENSIONS)}"
            )

    def declare(value: Callable[[Any], Array]) -> Quantity:
        return Quantity(value.__name__, value, dims, unit, gap, inspect.getdoc(value) or "")

    return declare


@functools.cache
def metric(name: str, doc: str = "", *, unit: str = "") -> Quantity:
    """Return the quantity that records a learner metric (NaN if the learner lacks the metric)."""

    def value(r: Round) -> Array:
        return r.metrics.get(name, jnp.asarray(jnp.nan))

    return Quantity(name, value, ("eval_round",), unit, math.nan, doc or f"The {name} metric.")


def client_metric(name: str) -> str:
    """Return the per-client name of a metric, such as ``client_loss`` for ``test_loss``."""
    return f"client_{name.removeprefix('test_')}"


@functools.cache
def client_score(name: str) -> Quantity:
    """Return the quantity that records a client metric, such as ``client_accuracy``.

    Only the simulator knows client metrics, because clients do not send them to the server.
    """

    def value(r: Round) -> Array:
        found = {client_metric(metric): values for metric, values in r.client_metrics.items()}
        return found.get(name, jnp.full(r.config.num_clients, jnp.nan))

    doc = f"The {name} metric on each client's held-out samples (NaN if a client has none)."
    return Quantity(name, value, ("eval_round", "client"), "", math.nan, doc)
