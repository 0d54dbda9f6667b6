"""The steps of runs and how they are compiled: for a single run, or a batch spread over devices.

A program plays runs of any length: the number of rounds to play is an argument, and the program has
room for so many. So 100 and 300 rounds, another ``eval_every``, one run and many compile once.
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
from pause_jax.learning import Execution, LearnerState, of_any_data
from pause_jax.learning.learner import update_size
from pause_jax.policies import OneOf
from pause_jax.rng.keys import Streams, streams
from pause_jax.run.horizon import Length, length_of
from pause_jax.run.record.recorder import Quantities, Record, recorded_bytes
from pause_jax.run.record.result import Result, result_at_end
from pause_jax.run.rounds.loop import advance, init
from pause_jax.run.rounds.state import State
from pause_jax.run.setup import built

# Rounds that a call has room for: the first of these of which twenty are enough for the run.
ROOMS = tuple(256 * 16**n for n in range(5))
CALLS = 20
# Bytes of a run's record that a call may have room for; of more, it has room for what it plays.
MOST_ROOM = 16 * 2**20
# Weights of a cohort in training: a run of fewer waits for the compiler, not for the rounds.
SMALL = 20_000
RUN, SAME = PartitionSpec("run"), PartitionSpec()
Begun = tuple[Streams, LearnerState]


class ProgramSpec(NamedTuple):
    """What a program for runs of some length is compiled for.

    Attributes:
      room: rounds that one call has room for.
      any_length: whether it serves all lengths; else only that of its config, which custom parts
        may read.
    """

    room: int
    any_length: bool

    def config_of(self, config: SimConfig) -> SimConfig:
        """Return the config that the program gets: if it serves many, without what it ignores."""
        ignored = {"num_rounds": 1, "eval_every": 1, "learning": of_any_data(config.learning)}
        return config.replace(**ignored) if self.any_length else config

    def call_arguments(
        self, config: SimConfig, segment: np.ndarray
    ) -> tuple[np.ndarray, np.int32, Length]:
        """Return the arguments (rounds, count, length) of a call that plays a segment."""
        rounds = np.arange(segment[0], segment[0] + self.room, dtype=np.int32)
        return rounds, np.int32(len(segment)), jax.tree.map(np.int32, length_of(config))


def program_spec(
    config: SimConfig, quantities: Quantities, longest: int | None = None
) -> ProgramSpec:
    """Choose the program for a run whose calls play ``longest`` rounds at most; all if None."""
    longest, ours = longest or config.num_rounds, all_ours(config, quantities)
    room = next(n for n in ROOMS if CALLS * n >= config.num_rounds)
    heavy = recorded_bytes(quantities, config.replace(num_rounds=room)) > MOST_ROOM
    return ProgramSpec(room if ours and not heavy else longest, ours)


def all_ours(config: SimConfig, quantities: Quantities) -> bool:
    """Whether no part of a run is a custom class or a custom quantity."""
    parts = (type(part) for _, part in nested(config))
    functions = (q.value for q in quantities)
    return all(is_ours(part) for part in (*parts, *functions))


class Steps(NamedTuple):
    """The pure steps of a run, or of a batch of them. ``policy`` is its number in a
    ``OneOf``, 0 without one.

    Attributes:
      learn: (num_clients, learning, data, key) -> (streams of keys, the learner's state), one
        program for all policies.
      init: (config, data, streams, policy, that state) -> state before round 1.
      advance_quick: :meth:`advance`, compiled quickly: for small single runs, or no learning.
      advance_full: compiled fully: for the others.
      finish: (config, state) -> :func:`pause_jax.run.record.result.result_at_end`.
    """

    learn: Any
    init: Any
    advance_quick: Any
    advance_full: Any
    finish: Any

    def first(self, config: SimConfig, data: Any, key: Array, policy: Any) -> State:
        """Return the state before round 1."""
        streams, learning = self.learn(config.num_clients, config.learning, data, key)
        return self.init(config, data, streams, policy, learning)

    def shapes(self) -> Steps:
        """Return steps of which :meth:`first` gives shapes alone; what it traces serves these."""
        return self._replace(learn=self.learn.eval_shape, init=self.init.eval_shape)

    def advance(self, config: SimConfig, state: State) -> Any:
        """Choose the step for runs of that config and state (or shapes of one):
        (config, data, state, rounds, count, length, policy) -> (state, record), see
        :func:`pause_jax.run.rounds.loop.advance`. Compiled, it uses the given state up.
        """
        runs, weights = state.clock.size, update_size(state.learning) * config.cohort_size
        small = not weights or (runs == 1 and weights <= SMALL)
        return self.advance_quick if small else self.advance_full


def plain_steps(quantities: Quantities, execution: Execution | None, any_length: bool) -> Steps:
    """Return the steps of a single run, not compiled: for a trace of the user's."""

    def learn_run(num_clients: int, learning: Any, data: Any, key: Array) -> Begun:
        begun = streams(key)
        return begun, built(learning, data, num_clients).init(begun)

    def init_run(
        config: SimConfig, data: Any, streams: Streams, policy: Array, learning: LearnerState
    ) -> State:
        return init(_of_policy(config, policy), data, streams, learning)

    def advance_run(
        config: SimConfig,
        data: Any,
        state: State,
        rounds: Array,
        count: Array,
        length: Length,
        policy: Array,
    ) -> tuple[State, Record]:
        return advance(
            config=_of_policy(config, policy),
            data=data,
            state=state,
            rounds=rounds,
            quantities=quantities,
            execution=execution,
            length=length if any_length else length_of(config),
            count=count,
        )

    def finish_run(config: SimConfig, state: State) -> Result:
        return result_at_end(config, state, quantities)

    step = _in_float32(advance_run)
    return Steps(_in_float32(learn_run), _in_float32(init_run), step, step, finish_run)


def _in_float32(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step with products of float32's precision. Training sets its own (``Execution``)."""

    @functools.wraps(step)  # a profile and the cache name the program by its step
    def precise(*given: Any) -> Any:
        with jax.default_matmul_precision("highest"):  # accelerators have less by default
            return step(*given)

    return precise


@functools.cache
def compiled_steps(
    mesh: Mesh | None, quantities: Quantities, execution: Execution, any_length: bool
) -> Steps:
    """Return the compiled steps of a single run, or of a batch over a mesh with the axis ``run``.

    Devices do not communicate: each plays its own runs.
    """
    plain = plain_steps(quantities, execution, any_length)
    quickly, fully = compiler_options(quickly=True), compiler_options(quickly=False)
    once = compiler_options(quickly=True, level=0)
    advance = _spread(mesh, plain.advance_full, RUN, SAME, RUN, SAME, SAME, SAME, SAME)
    return Steps(
        *compiled_beginning(mesh),
        advance_quick=jax.jit(advance, donate_argnums=2, compiler_options=quickly),
        advance_full=jax.jit(advance, donate_argnums=2, compiler_options=fully),
        finish=jax.jit(_spread(mesh, plain.finish, RUN, RUN), compiler_options=once),
    )


@functools.cache
def compiled_beginning(mesh: Mesh | None) -> tuple[Any, Any]:
    """Return ``learn`` and ``init``, compiled once for all that is recorded and all executions."""
    plain, once = plain_steps((), None, False), compiler_options(quickly=True, level=0)

    def learn_run(num_clients: int, *given: Any) -> Begun:
        return _spread(mesh, functools.partial(plain.learn, num_clients), RUN, SAME, RUN)(*given)

    start = _spread(mesh, plain.init, RUN, SAME, RUN, SAME, RUN)
    learn = jax.jit(learn_run, static_argnums=0, compiler_options=once)
    return learn, jax.jit(start, donate_argnums=4, compiler_options=once)


def _spread(
    mesh: Mesh | None, step: Callable[..., Any], *specs: PartitionSpec
) -> Callable[..., Any]:
    """Return a step of many runs over the devices of a mesh; the step itself without one."""
    if mesh is None:
        return step
    batched = [spec == RUN for spec in specs]

    def on_device(*given: Any) -> Any:
        own = [x for x, each in zip(given, batched, strict=True) if each]
        number = jax.tree.leaves(own)[0].shape[0]
        if number > 1:
            return jax.vmap(step, in_axes=tuple(0 if each else None for each in batched))(*given)
        one = (
            jax.tree.map(lambda leaf: leaf[0], x) if each else x
            for x, each in zip(given, batched, strict=True)
        )
        return jax.tree.map(lambda x: jnp.asarray(x)[None], step(*one))

    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=RUN, check_vma=False)


def _of_policy(config: SimConfig, number: Array) -> SimConfig:
    """Return the config with the policy of that number, if it has several."""
    if isinstance(config.policy, OneOf):
        return config.replace(policy=config.policy.replace(number=number))
    return config
