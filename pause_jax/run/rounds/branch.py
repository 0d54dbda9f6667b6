"""Conditional that skips unneeded work, even under vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap


def when(wanted: Array, work: Callable[[], Any], otherwise: Any) -> Any:
    """Return ``work()`` if ``wanted``, else ``otherwise``, separately for each run under vmap.

    Under vmap, ``lax.cond`` becomes a select, which always computes ``work``. This function skips
    ``work`` unless at least one run needs it. Both results must have the same shapes and dtypes.
    """

    def worked() -> Any:
        return jax.tree.map(lambda new, old: _choose(wanted, new, old), work(), otherwise)

    return lax.cond(_by_any(wanted), worked, lambda: otherwise)


@custom_vmap
def _by_any(wanted: Array) -> Array:
    """Return an unbatched flag that is True if any vmapped run needs the computation."""
    return wanted


@_by_any.def_vmap
def _(axis_size: int, in_batched: list[bool], wanted: Array) -> tuple[Array, bool]:
    return _by_any(jnp.any(wanted, axis=0)), False


@custom_vmap
def _choose(wanted: Array, new: Array, old: Array) -> Array:
    """Return ``new`` where ``wanted`` is True, else ``old``. Without vmap, return ``new``."""
    return new


@_choose.def_vmap
def _(
    axis_size: int, in_batched: list[bool], wanted: Array, new: Array, old: Array
) -> tuple[Array, bool]:
    axes = [0 if batched else None for batched in in_batched]
    if in_batched[0]:
        return jax.vmap(jnp.where, axes, axis_size=axis_size)(wanted, new, old), True
    return _choose(wanted, new, old), in_batched[1]
