"""Compiled step functions for a single run or for a batch of runs distributed over devices.

Runs with different ``num_rounds`` or ``eval_every`` can share a program.
``docs/guides/programs.md`` lists the inputs that require a separate program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from pause_jax.base.compilation import compiler_options
from pause_jax.base.struct import is_ours, nested
from pause_jax.config import SimConfig
from pause_jax.learning import Execution, of_any_data
from pause_jax.learning.learner import update_size
from pause_jax.policies import OneOf
from pause_jax.run.record.result import Quantities, Record, Result, recorded_bytes, result_at_end
from pause_jax.run.rounds.horizon import Length, length_of
from pause_jax.run.rounds.loop import advance, init
from pause_jax.run.rounds.state import State

# Standard values of ``ProgramSpec.room``. A run uses the smallest value for which CALLS calls
# suffice, unless the run has custom components or its record would exceed MOST_ROOM.
ROOMS = tuple(256 * 16**n for n in range(5))
CALLS = 20
# Maximum record size per call, in bytes, for standard values of ``ProgramSpec.room``.
MOST_ROOM = 16 * 2**20
# Maximum product of cohort size and update size for which compilation takes longer than the run.
SMALL = 20_000
# Partition specs for arguments with a leading run axis and for arguments shared by all runs.
RUN, SAME = PartitionSpec("run"), PartitionSpec()


class Segment(NamedTuple):
    """Consecutive rounds simulated by one call to ``advance``.

    Attributes:
      rounds: int32 [R], consecutive round numbers. R is ``ProgramSpec.room``.
      to_play: int32 scalar, number of rounds to simulate, starting with ``rounds[0]``.
    """

    rounds: Any
    to_play: Any
    length: Length


class Steps(NamedTuple):
    """Pure step functions for a run or for a batch of runs.

    Attributes:
      init: (config, data, key, policy) -> (state before round 1, expected latency of the fastest
        client in seconds). ``policy`` is an index into a ``OneOf``, or 0 for any other policy.
      advance: (config, data, state, segment, policy) -> (state, record), see
        :func:`pause_jax.run.rounds.loop.advance`. The compiled step donates the input state.
      finish: (config, state) -> result, see :func:`pause_jax.run.record.result.result_at_end`.
    """

    init: Any
    advance: Any
    finish: Any


def plain_steps(quantities: Quantities, execution: Execution | None, any_length: bool) -> Steps:
    """Return the uncompiled steps of a single run.

    The run length comes from the segment if ``any_length`` is True, otherwise from the config.
    """

    def init_run(config: SimConfig, data: Any, key: Array, policy: Array) -> tuple[State, Array]:
        return init(_with_policy(config, policy), data, key)

    def advance_run(
        config: SimConfig, data: Any, state: State, segment: Segment, policy: Array
    ) -> tuple[State, Record]:
        return advance(
            config=_with_policy(config, policy),
            data=data,
            state=state,
            rounds=segment.rounds,
            quantities=quantities,
            execution=execution,
            length=segment.length if any_length else length_of(config),
            count=segment.to_play,
        )

    def finish_run(config: SimConfig, state: State) -> Result:
        return result_at_end(config, state, quantities)

    return Steps(_in_float32(init_run), _in_float32(advance_run), finish_run)


def _in_float32(step: Callable[..., Any]) -> Callable[..., Any]:
    """Make a step compute matrix products in float32, except in training (see ``Execution``)."""

    @functools.wraps(step)  # profiles and the cache identify programs by function name
    def precise(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):  # accelerators default to a lower precision
            return step(*arguments)

    return precise


def _with_policy(config: SimConfig, number: Array) -> SimConfig:
    """Select policy ``number`` if the config's policy is a ``OneOf``."""
    if isinstance(config.policy, OneOf):
        return config.replace(policy=config.policy.replace(number=number))
    return config


class ProgramSpec(NamedTuple):
    """Static properties of a program, in addition to the structure of its config.

    Attributes:
      room: maximum number of rounds per call.
      any_length: whether the program supports runs of any length. Custom components may read the
        run length, so programs with custom components support only the length in the config.
      options: name of the set of compiler options, ``small`` or ``large``.
    """

    room: int
    any_length: bool
    options: str

    def config_of(self, config: SimConfig) -> SimConfig:
        """Return the config after resetting the fields that the program ignores."""
        return _of_any_length(config) if self.any_length else config

    def segment(self, config: SimConfig, first: int, to_play: int) -> Segment:
        """Return the segment of ``to_play`` rounds that starts at round ``first``."""
        rounds = np.arange(first, first + self.room, dtype=np.int32)
        return Segment(rounds, np.int32(to_play), jax.tree.map(np.int32, length_of(config)))


def program_spec(
    config: SimConfig,
    data: Any,
    quantities: Quantities,
    *,
    longest: int | None = None,
    num_runs: int = 1,
) -> ProgramSpec:
    """Choose a program for ``num_runs`` runs. If no standard ``room`` fits, use ``longest``."""
    any_length = all_ours(config, quantities)
    room = next(n for n in ROOMS if CALLS * n >= config.num_rounds)
    heavy = recorded_bytes(quantities, config.replace(num_rounds=room)) > MOST_ROOM
    if heavy or not any_length:
        room = longest or config.num_rounds
    weights = update_size(state_shapes(config, data).learning) * config.cohort_size
    small = not weights or (num_runs == 1 and weights <= SMALL)
    return ProgramSpec(room, any_length, "small" if small else "large")


def all_ours(config: SimConfig, quantities: Quantities) -> bool:
    """Return whether all config classes and quantities belong to the library."""
    parts = (type(part) for _, part in nested(config))
    return all(map(is_ours, (*parts, *(q.value for q in quantities))))


def _of_any_length(config: SimConfig) -> SimConfig:
    return config.replace(num_rounds=1, eval_every=1, learning=of_any_data(config.learning))


def state_shapes(config: SimConfig, data: Any) -> State:
    """Return the shapes and dtypes of the state before round 1, without compiling a program."""
    if all_ours(config, ()):
        config = _of_any_length(config)
    leaves, structure = jax.tree.flatten((config, data))
    kinds = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return _state_shapes(structure, kinds)


@functools.cache
def _state_shapes(structure: Any, kinds: tuple[tuple[tuple[int, ...], Any], ...]) -> State:
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kinds]
    config, data = jax.tree.unflatten(structure, leaves)
    state, _ = compiled_init(None).eval_shape(config, data, jax.random.key(0), np.int32(0))
    return state


@functools.cache
def compiled_init(mesh: Mesh | None) -> Any:
    """Return the compiled ``init``, which depends on neither quantities nor execution options."""
    init_run = plain_steps((), None, any_length=False).init
    program = _over_devices(mesh, init_run, RUN, SAME, RUN, SAME)
    return jax.jit(program, compiler_options=compiler_options("small"))


@functools.cache
def compiled_steps(
    spec: ProgramSpec, quantities: Quantities, execution: Execution, mesh: Mesh | None
) -> Steps:
    """Return the compiled steps of a single run, or of a batch on a mesh with a ``run`` axis."""
    steps = plain_steps(quantities, execution, spec.any_length)
    advance = _over_devices(mesh, steps.advance, RUN, SAME, RUN, SAME, SAME)
    finish = _over_devices(mesh, steps.finish, RUN, RUN)
    return Steps(
        init=compiled_init(mesh),
        advance=jax.jit(advance, donate_argnums=2, compiler_options=compiler_options(spec.options)),
        finish=jax.jit(finish, compiler_options=compiler_options("small")),
    )


def _over_devices(
    mesh: Mesh | None, step: Callable[..., Any], *specs: PartitionSpec
) -> Callable[..., Any]:
    """Distribute a step's runs over a mesh, or return the step unchanged if ``mesh`` is None.

    The devices do not communicate. If a device has several runs, the step is vmapped.
    """
    if mesh is None:
        return step
    axes = tuple(0 if spec == RUN else None for spec in specs)

    def on_device(*arguments: Any) -> Any:
        batched = [x for x, axis in zip(arguments, axes, strict=True) if axis == 0]
        if jax.tree.leaves(batched)[0].shape[0] > 1:
            return jax.vmap(step, in_axes=axes)(*arguments)
        first = (
            x if axis is None else jax.tree.map(lambda leaf: leaf[0], x)
            for x, axis in zip(arguments, axes, strict=True)
        )
        return jax.tree.map(lambda x: jnp.asarray(x)[None], step(*first))

    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=RUN, check_vma=False)
