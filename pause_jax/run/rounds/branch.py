"""A branch that skips its work also under vmap, where no run wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap


def when(wanted: Array, work: Callable[[], Any], otherwise: Any) -> Any:
    """Return ``work()`` if wanted, else ``otherwise``; under vmap for each run.

    A plain ``lax.cond`` becomes a select under vmap and always works. This one works only if any of
    the runs wants it. Both results have the same shapes and dtypes.
    """

    def worked() -> Any:
        return jax.tree.map(lambda new, old: _choose(wanted, new, old), work(), otherwise)

    return lax.cond(_by_any(wanted), worked, lambda: otherwise)


@custom_vmap
def _by_any(wanted: Array) -> Array:
    """Return whether any of the vmapped runs wants it: one answer for all."""
    return wanted


@_by_any.def_vmap
def _(axis_size: int, in_batched: list[bool], wanted: Array) -> tuple[Array, bool]:
    return _by_any(jnp.any(wanted, axis=0)), False


@custom_vmap
def _choose(wanted: Array, new: Array, old: Array) -> Array:
    """Return what a run keeps where any run wanted the work; without vmap that is the run."""
    return new


@_choose.def_vmap
def _(
    axis_size: int, in_batched: list[bool], wanted: Array, new: Array, old: Array
) -> tuple[Array, bool]:
    axes = [0 if batched else None for batched in in_batched]
    if in_batched[0]:
        return jax.vmap(jnp.where, axes, axis_size=axis_size)(wanted, new, old), True
    return _choose(wanted, new, old), in_batched[1]
