"""A branch that skips its work also under vmap, where no run wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap


def when(wanted: Array, work: Callable[[], Any], otherwise: Any) -> Any:
    """``work()`` if wanted, else ``otherwise``: each run under vmap its own.

    By itself ``lax.cond`` becomes a select there and works always; here it does so where any of the
    runs wants it.

    Args:
      wanted: bool scalar.
      work: without arguments.
      otherwise: of the shapes and kinds that the work returns.
    """

    def worked() -> Any:
        return jax.tree.map(lambda new, old: _own(wanted, new, old), work(), otherwise)

    return lax.cond(_by_any(wanted), worked, lambda: otherwise)


@custom_vmap
def _by_any(wanted: Array) -> Array:
    """Whether any of the runs side by side wants it: one answer for all."""
    return wanted


@_by_any.def_vmap
def _(axis_size: int, in_batched: list[bool], wanted: Array) -> tuple[Array, bool]:
    return _by_any(jnp.any(wanted, axis=0)), False


@custom_vmap
def _own(wanted: Array, new: Array, old: Array) -> Array:
    """What a run keeps where somebody wanted the work: a run by itself is that somebody."""
    return new


@_own.def_vmap
def _(
    axis_size: int, in_batched: list[bool], wanted: Array, new: Array, old: Array
) -> tuple[Array, bool]:
    def chosen(wanted: Array, new: Array, old: Array) -> Array:
        return jnp.where(wanted, new, old)

    axes = [0 if batched else None for batched in in_batched]
    if in_batched[0]:
        return jax.vmap(chosen, axes, axis_size=axis_size)(wanted, new, old), True
    return _own(wanted, new, old), in_batched[1]
