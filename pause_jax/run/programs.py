"""The compiled steps of runs: of one by itself, and of a batch spread over devices.

A program plays runs of any length: it is told how many rounds to play, and has room for so many.
So 100 and 300 rounds, another ``eval_every``, one run and many of them compile once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from pause_jax.base.struct import nested
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.learning.learner import update_size
from pause_jax.policies import OneOf
from pause_jax.run.compilation import compiler_options
from pause_jax.run.horizon import Length, length_of
from pause_jax.run.record.recorder import Quantities, Record, filled_up, recorded_bytes
from pause_jax.run.record.result import Result, ended
from pause_jax.run.round import advance, init
from pause_jax.run.state import State

# Rounds that a call has room for: the first of these of which twenty are enough for the run.
ROOMS = tuple(256 * 16**n for n in range(5))
CALLS = 20
# Up to this room what is reduced over the rounds is filled up to the most that the room serves.
FILLED_UP = ROOMS[1]
# Bytes of a run's record that a call may have room for; of more, it has room for what it plays.
MOST_ROOM = 16 * 2**20
# Weights of a cohort in training: a run of fewer waits for the compiler, not for the rounds.
SMALL = 20_000
RUN, SAME = PartitionSpec("run"), PartitionSpec()


class Shape(NamedTuple):
    """What a program for runs of some length is compiled for.

    Attributes:
      room: rounds that one call has room for.
      any_length: whether it serves all lengths; else only that of its config, which parts of the
        user's own may read.
    """

    room: int
    any_length: bool


def shape_of(config: SimConfig, quantities: Quantities, longest: int | None = None) -> Shape:
    """The shape for a run whose calls play ``longest`` rounds at most; all of them if None."""
    longest, ours = longest or config.num_rounds, all_ours(config, quantities)
    room = next(n for n in ROOMS if CALLS * n >= config.num_rounds)
    heavy = recorded_bytes(quantities, config.replace(num_rounds=room)) > MOST_ROOM
    return Shape(room if ours and not heavy else longest, ours)


def all_ours(config: SimConfig, quantities: Quantities) -> bool:
    """Whether no part of a run is a class or a quantity of the user's own."""
    parts = (type(part) for _, part in nested(config))
    functions = (q.value for q in quantities)
    return all(_is_ours(part) for part in (*parts, *functions))


def _is_ours(part: Any) -> bool:
    return str(part.__module__).partition(".")[0] == __name__.partition(".")[0]


class Programs(NamedTuple):
    """The compiled steps; every device plays its own runs and hears of no other.

    Attributes:
      init: (config, data, key, policy) -> state before round 1.
      advance_soon: :meth:`advance` for a small run by itself, and without learning.
      advance_fast: for the others.
      finish: (config, state, record of what is reduced) -> result, see
        :func:`pause_jax.run.record.result.ended`.
    """

    init: Any
    advance_soon: Any
    advance_fast: Any
    finish: Any

    def advance(self, config: SimConfig, state: State) -> Any:
        """The step for runs of that config in that state, or in one of its shapes:
        (config, data, state, rounds, count, length, policy) -> (state, record), see
        :func:`pause_jax.run.round.advance`; the state that is given is used up.
        """
        runs, weights = state.clock.size, update_size(state.learning) * config.cohort_size
        soon = not weights or (runs == 1 and weights <= SMALL)
        return self.advance_soon if soon else self.advance_fast


@functools.cache
def programs(
    mesh: Mesh | None, quantities: Quantities, execution: Execution, any_length: bool
) -> Programs:
    """The steps for the devices of a mesh with the one axis ``run``; of one run, without an axis in
    front, if there is none. ``policy`` is the number of the policy of all of them.
    """

    def spread(step: Callable[..., Any], *specs: PartitionSpec) -> Callable[..., Any]:
        if mesh is None:
            return step

        def batched(*given: Any) -> Any:
            own = [spec == RUN for spec in specs]
            number = jax.tree.leaves(given[own.index(True)])[0].shape[0]
            if number > 1:
                return jax.vmap(step, in_axes=tuple(0 if each else None for each in own))(*given)
            one = (_only(x) if each else x for x, each in zip(given, own, strict=True))
            return jax.tree.map(lambda x: jnp.asarray(x)[None], step(*one))

        return jax.shard_map(batched, mesh=mesh, in_specs=specs, out_specs=RUN, check_vma=False)

    def begin(config: SimConfig, data: Any, key: Array, policy: Array) -> State:
        return init(_of_policy(config, policy), data, key)

    def play(
        config: SimConfig,
        data: Any,
        state: State,
        rounds: Array,
        count: Array,
        length: Length,
        policy: Array,
    ) -> tuple[State, Record]:
        config = _of_policy(config, policy)
        told = length if any_length else length_of(config)
        return advance(config, data, state, rounds, quantities, execution, told, count)

    def end(config: SimConfig, state: State, reduced: Record) -> Result:
        return ended(config, state, reduced, quantities)

    soon, fast = compiler_options(soon=True), compiler_options(soon=False)
    played = spread(play, RUN, SAME, RUN, SAME, SAME, SAME, SAME)
    return Programs(
        init=jax.jit(spread(begin, RUN, SAME, RUN, SAME), compiler_options=soon),
        advance_soon=jax.jit(played, donate_argnums=2, compiler_options=soon),
        advance_fast=jax.jit(played, donate_argnums=2, compiler_options=fast),
        finish=jax.jit(spread(end, RUN, RUN, RUN), compiler_options=soon),
    )


def _only(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)


def _of_policy(config: SimConfig, number: Array) -> SimConfig:
    """The config with the policy of that number, if it has several: one number for all runs."""
    if isinstance(config.policy, OneOf):
        return config.replace(policy=config.policy.replace(number=number))
    return config


def seen_by(shape: Shape, config: SimConfig) -> SimConfig:
    """The config as a program of that shape sees it: without the length that it is told."""
    return config.replace(num_rounds=1, eval_every=1) if shape.any_length else config


def told_of(config: SimConfig, shape: Shape, first: int, count: int) -> tuple[Any, ...]:
    """What ``Programs.advance`` is told of a call: (rounds, count, length)."""
    rounds = np.arange(first, first + shape.room, dtype=np.int32)
    return rounds, np.int32(count), jax.tree.map(np.int32, length_of(config))


def reduced_part(
    quantities: Quantities, config: SimConfig, record: Mapping[str, np.ndarray], shape: Shape
) -> dict[str, np.ndarray]:
    """What of a record [N, T, ...] the program that ends runs reduces over the rounds, filled up
    with rounds that were not played where it serves all lengths.
    """
    fills = shape.any_length and shape.room <= FILLED_UP
    rounds = CALLS * shape.room if fills else config.num_rounds
    return filled_up({q.name: record[q.name] for q in quantities if q.reduce}, rounds)
