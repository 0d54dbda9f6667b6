"""What steps return, brought to the host: records of all rounds and of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from pause_jax.run.rounds.state import State


def collected(tree: Any) -> Any:
    """Return all runs as NumPy arrays, in every process; what is traced as it is.

    Raises:
      RuntimeError: if another process died.
    """
    leaves = jax.tree.leaves(tree)
    if any(map(_is_tracer, leaves)):
        return tree
    if all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
        return jax.tree.map(np.asarray, tree)
    try:
        return multihost_utils.process_allgather(tree, tiled=True)
    except (RuntimeError, ValueError) as error:  # which one depends on the transport
        raise RuntimeError(
            f"another process died or cannot be reached; see its own output. {error}"
        ) from error


def first_rounds(record: Any, count: int, *, batched: bool) -> Any:
    """Return the first rounds of a record [R, ...] or [N, R, ...]; on the host, if it is whole."""

    def first(x: Any) -> Any:
        if isinstance(x, jax.ShapeDtypeStruct):
            shape = (len(x), count, *x.shape[2:]) if batched else (count, *x.shape[1:])
            return jax.ShapeDtypeStruct(shape, x.dtype)
        if not _is_tracer(x):
            if not getattr(x, "is_fully_addressable", True):
                return x
            x = np.asarray(x)
        return x[:, :count] if batched else x[:count]

    return jax.tree.map(first, record)


def joined(records: list[Any], segments: Sequence[np.ndarray], *, batched: bool) -> Any:
    """Return the record of all rounds from those of the segments."""
    parts = [
        first_rounds(record, len(segment), batched=batched)
        for record, segment in zip(records, segments, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *x: np.concatenate(x, axis=int(batched)), *parts)


def is_traced(*inputs: Any) -> bool:
    """Whether a computation with these inputs is only traced now."""
    leaves = jax.tree.leaves((jnp.zeros(()), inputs))
    return any(map(_is_tracer, leaves))


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def check_for_nan(state: State, rounds: str) -> None:
    """Stand in for JAX's check (``jax_debug_nans``) of programs whose NaN mark what has no value.

    Args:
      state: after some rounds.
      rounds: their numbers, in words.

    Raises:
      FloatingPointError: if the mode is on and the model holds NaN.
    """
    if not jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return
    leaves = jax.tree.leaves(state.learning.variables)
    if any(map(_is_tracer, leaves)):
        return
    if any(bool(jnp.any(jnp.isnan(leaf))) for leaf in leaves):
        raise FloatingPointError(
            f"rounds {rounds}: the model holds NaN (jax_debug_nans is on). Without the mode, "
            "first_nonfinite_round of the result says in which round it began."
        )
