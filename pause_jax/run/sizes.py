"""Whether runs fit the machine, asked before any of them begins."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pause_jax.base.memory import check_memory, tree_bytes
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.run.programs import ProgramSpec, all_ours, compiled_steps
from pause_jax.run.record.recorder import Quantities, recorded_bytes

FEWER = "Simulate fewer clients, or a smaller model."
_FITTING: set[Any] = set()  # what was found to fit


def check_size(config: SimConfig, data: Any, quantities: Quantities, num_runs: int = 1) -> None:
    """Refuse runs that are larger than the machine: the system would end the program.

    Args:
      config: canonical, one of the runs'.
      data: its data set.
      quantities: what is recorded.
      num_runs: runs whose records are kept.

    Raises:
      ConfigError: if a state, or what all of them record, does not fit.
    """
    shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(data))
    question = (jax.tree.structure(config), quantities, num_runs, shapes)
    if question in _FITTING:
        return
    sizes = f"num_clients = {config.num_clients}"
    if jax.default_backend() == "cpu":
        before_and_after = 2 * tree_bytes(first_state(config, data, quantities))
        check_memory(before_and_after, f"{sizes}: a round", FEWER)
    check_memory(
        num_runs * recorded_bytes(quantities, config),
        f"{sizes}, num_rounds = {config.num_rounds}: the record of {num_runs} such run"
        + "s" * (num_runs > 1),
        "Simulate fewer clients, rounds or seeds, or record less (record=...).",
    )
    _FITTING.add(question)


def first_state(config: SimConfig, data: Any, quantities: Quantities) -> Any:
    """Shapes of the state before round 1, by the step that a single run takes: traced once."""
    spec = ProgramSpec(1, any_length=all_ours(config, quantities))
    steps = compiled_steps(None, quantities, Execution(), spec.any_length)
    given = spec.config_of(config), data, jax.random.key(0), np.int32(0)
    return steps.shapes().first(*given)
