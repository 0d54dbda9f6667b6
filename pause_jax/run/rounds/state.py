"""What one round hands to the next, what it is worth, and what it shows to the recorder."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Info, Selection
from pause_jax.bandit.reward import cohort_value, problem_of
from pause_jax.bandit.search import exact
from pause_jax.config import SimConfig
from pause_jax.learning import Learner, LearnerState, StaleUpdates, Trained
from pause_jax.learning.learner import all_finite
from pause_jax.policies import Context
from pause_jax.rng.keys import Streams
from pause_jax.run.events.flight import Flight, Step
from pause_jax.run.rounds.branch import when
from pause_jax.run.rounds.horizon import Length, has_ended, is_evaluated
from pause_jax.world.latency import Work

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Health(NamedTuple):
    """What went wrong in a run so far: the first rounds (0 for none), and the rules broken then."""

    first_nonfinite: Int[Array, ""]
    first_broken: Int[Array, ""]
    broken_rules: Int[Array, ""]


def healthy() -> Health:
    """Return the health of a run before its first round."""
    return Health(*(jnp.zeros((), jnp.int32) for _ in Health._fields))


def examined(health: Health, round: Array, variables: Any, rules: Array) -> Health:
    """Return the health after a round."""
    is_first = (health.first_broken == 0) & (rules > 0)
    nonfinite = (health.first_nonfinite == 0) & ~all_finite(variables)
    return Health(
        first_nonfinite=jnp.where(nonfinite, round, health.first_nonfinite).astype(jnp.int32),
        first_broken=jnp.where(is_first, round, health.first_broken).astype(jnp.int32),
        broken_rules=jnp.where(is_first, rules, health.broken_rules).astype(jnp.int32),
    )


class State(NamedTuple):
    """Everything that one round hands to the next.

    Attributes:
      keys: the key streams of the run.
      learning: data and model.
      policy: the policy's own state.
      counts: int32 [K], rounds in which each client took part; what it has spent follows from it.
      queried: int32 [K], rounds in which the policy asked each client and had an answer.
      played: int32 scalar, rounds that were played.
      clock: scalar, simulated seconds, rounded once from the exact sum of all rounds.
      clock_rest: scalar, seconds that this rounding left out.
      health: what went wrong so far.
      availability_trace: the state of the availability trace.
      stale: stale updates, which are averaged in the next round; None if late ones are lost.
      flight: who is under way, of a clock that overlaps; None with rounds.
    """

    keys: Streams
    learning: LearnerState
    policy: Any
    counts: Int[Array, " K"]
    queried: Int[Array, " K"]
    played: Int[Array, ""]
    clock: Float[Array, ""]
    clock_rest: Float[Array, ""]
    health: Health
    availability_trace: Any = ()
    stale: StaleUpdates | None = None
    flight: Flight | None = None


class Score(NamedTuple):
    """What a round was worth, scalars.

    Attributes:
      reward: realised reward of the cohort.
      genie_reward: realised reward of the genie's cohort.
      regret: C^G(genie) - C^G(cohort), (10), signed. The genie chooses min(m, available) clients;
        a cohort of as many has a regret >= 0 up to rounding, 1e-6 of the two values, and the
        genie's own has exactly 0. A smaller cohort (FedCS keeps a deadline, draws with repetition
        leave slots empty) may be worth more than the genie's, and then its regret is negative: its
        slowest client may be faster, and terms of g below zero are missing from its sum.
    """

    reward: Float[Array, ""]
    genie_reward: Float[Array, ""]
    regret: Float[Array, ""]


def score(
    context: Context,
    counts: Array,
    latency: Array,
    selection: Selection,
    available: Array,
    round: Array,
    *,
    with_genie: bool,
) -> Score:
    """Score a choice, given the participations before it.

    Without the genie, whose search takes long, its figures are NaN.
    """
    m = context.num_selected
    remaining = context.privacy.budget.remaining(counts)
    problem = problem_of(
        context.speed_at(round), context.reward, counts, round, context.share, remaining, m
    )
    speed = context.min_latency / latency
    clients = selection.clients
    active = selection.active
    realised = cohort_value(speed, problem.terms, clients, active)
    if not with_genie:
        nan = jnp.asarray(jnp.nan)
        return Score(realised, nan, nan)
    genie, _ = exact(problem.index, problem.weight, m, available=available)
    is_filled = available[genie]
    best = cohort_value(problem.index, problem.terms, genie, is_filled)
    behind = best - cohort_value(problem.index, problem.terms, clients, active)
    same = jnp.all(_sorted(genie, is_filled) == _sorted(clients, active))
    regret = jnp.where(same & jnp.any(active), 0.0, behind)
    return Score(realised, cohort_value(speed, problem.terms, genie, is_filled), regret)


def _sorted(clients: Array, active: Array) -> Array:
    """Return the clients that take part, ascending, after -1 for each empty slot: int [m]."""
    return jnp.sort(jnp.where(active, clients, -1))


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that was played: all that a recorded quantity may be computed from.

    What costs something (``score``, ``metrics``) is computed when a quantity asks for it.

    Attributes:
      config: canonical.
      length: of the run.
      context: what the policy was built from.
      learner: of this run.
      number: t >= 1.
      before, after: the states around it.
      latency: float [K], seconds of every client in this round.
      available: bool [K], who could be chosen.
      selection: the policy's choice.
      info: its diagnostics.
      trained: what training showed the server.
      in_time: bool [m], whose update was averaged in this round.
      work: what a client's round consists of.
      downloads: clients that received the model, for training or for a question.
      uploads: clients that sent an update, also one that was late.
      seconds: that the round lasted.
      query_seconds: those of them that the policy's questions took.
      step: the answers of a server step, whose slots the others have; None of a round.
    """

    config: SimConfig
    length: Length
    context: Context
    learner: Learner
    number: Int[Array, ""]
    before: State
    after: State
    latency: Float[Array, " K"]
    available: Bool[Array, " K"]
    selection: Selection
    info: Info
    trained: Trained
    in_time: Bool[Array, " m"]
    work: Work
    downloads: Int[Array, ""]
    uploads: Int[Array, ""]
    seconds: Float[Array, ""]
    query_seconds: Float[Array, ""]
    step: Step | None = None

    @functools.cached_property
    def score(self) -> Score:
        """Reward and regret."""
        return score(
            self.context,
            self.before.counts,
            self.latency,
            self.selection,
            self.available,
            self.number if self.step is None else self.step.decision,
            with_genie=self.config.track_regret and self.step is None,
        )

    @functools.cached_property
    def metrics(self) -> dict[str, Array]:
        """The learner's metrics in the rounds that are evaluated, NaN in the others."""
        due = is_evaluated(self.length, self.number) | has_ended(self.config, self.after.clock)
        return when(
            due,
            lambda: self.learner.evaluate(self.after.learning),
            {name: jnp.asarray(jnp.nan) for name in self.learner.metrics},
        )


class Run(NamedTuple):
    """A run at its end: what a quantity that is recorded once is computed from."""

    config: SimConfig
    state: State
