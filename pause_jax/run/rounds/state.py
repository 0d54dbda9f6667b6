"""Run state, round scores, and the inputs from which recorded quantities are computed."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

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


class Health(NamedTuple):
    """First round with a non-finite model, first with broken rules, and bit mask of those rules."""

    first_nonfinite: Int[Array, ""]
    first_broken: Int[Array, ""]
    broken_rules: Int[Array, ""]


def healthy() -> Health:
    """Return a health record that reports no problems (all fields are 0)."""
    return Health(*(jnp.zeros((), jnp.int32) for _ in Health._fields))


def examined(health: Health, round: Array, variables: Any, rules: Array) -> Health:
    """Update the run's health after a round, given the new model and the rules that were broken."""
    is_first = (health.first_broken == 0) & (rules > 0)
    nonfinite = (health.first_nonfinite == 0) & ~all_finite(variables)
    return Health(
        first_nonfinite=jnp.where(nonfinite, round, health.first_nonfinite).astype(jnp.int32),
        first_broken=jnp.where(is_first, round, health.first_broken).astype(jnp.int32),
        broken_rules=jnp.where(is_first, rules, health.broken_rules).astype(jnp.int32),
    )


class State(NamedTuple):
    """State passed from one round to the next.

    Attributes:
      learning: state of the learner, including the partition and the model.
      counts: int32 [K], number of participations of each client, which determines its spent budget.
      queried: int32 [K], number of rounds in which each client answered a query from the policy.
      clock: scalar, simulated seconds, computed as a compensated sum of round durations.
      clock_rest: scalar, rounding error of ``clock``, in seconds.
      stale: late updates to average in the next round, or None if late updates are lost.
      flight: clients in flight and buffered answers if rounds overlap, otherwise None.
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
    """Realised rewards of the cohort and of the genie's cohort, and the regret of a round.

    Attributes:
      regret: signed regret C^G(genie) - C^G(cohort), as in Eq. (10) of PAUSE. The genie chooses m
        clients, or all available clients if there are fewer. For a cohort as large as the genie's,
        the regret is >= 0 up to rounding (relative error 1e-6). The genie's cohort has regret 0.
        A smaller cohort (for example, from FedCS) can have negative regret, because it may omit
        slow clients and clients with negative g.
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
    """Compute the reward and regret of a selection from the participation counts before the round.

    If ``with_genie`` is False, skip the slow search and set ``genie_reward`` and ``regret`` to NaN.
    """
    m = context.num_selected
    remaining = context.privacy.budget.remaining(counts)
    expected = context.speed_at(round)
    problem = problem_of(expected, context.reward, counts, round, context.share, remaining, m)
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
    """Return -1 for each empty slot, followed by the sorted active clients, int [m]."""
    return jnp.sort(jnp.where(active, clients, -1))


@dataclasses.dataclass(frozen=True)
class Round:
    """Finished round, from which per-round quantities are computed.

    ``score``, ``metrics`` and ``client_metrics`` are expensive, so they are computed only if a
    quantity reads them.

    Attributes:
      config: canonical config.
      context: context from which the policy was built.
      number: round number t >= 1.
      before, after: states before and after the round.
      latency: float [K], latency of every client in this round, in seconds.
      available: bool [K], clients that could be chosen.
      selection: clients selected in the round (or buffered for the server step), with weights.
      info: diagnostics of the policy's selection.
      trained: losses and released updates of the cohort.
      in_time: bool [m], slots whose update was averaged in this round.
      work: bytes transferred and samples processed per client and round, for work factors of 1.
      downloads: number of clients that received the model, for training or for a query.
      uploads: number of clients that sent an update, on time or late.
      seconds: duration of the round in seconds.
      query_seconds: part of ``seconds`` spent on the policy's queries.
      step: details of the server step, in the slot order of ``selection`` (None if synchronous).
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
        """Reward and regret of the round."""
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
        """Metrics of the learner, NaN in rounds without an evaluation."""
        return when(
            self._is_evaluated,
            lambda: self.learner.evaluate(self.after.learning),
            {name: jnp.asarray(jnp.nan) for name in self.learner.metrics},
        )

    @functools.cached_property
    def client_metrics(self) -> dict[str, Array]:
        """Metrics on each client's held-out samples, NaN in rounds without an evaluation."""
        evaluate = self.learner.evaluate_clients
        assert evaluate is not None, "check_client_scores checks this"
        nan = jnp.full(self.config.num_clients, jnp.nan)
        return when(
            self._is_evaluated,
            lambda: evaluate(self.after.learning),
            dict.fromkeys(self.learner.metrics, nan),
        )

    @property
    def _is_evaluated(self) -> Array:
        return is_evaluated(self.length, self.number) | has_ended(self.config, self.after.clock)


class Run(NamedTuple):
    """Finished run, from which per-run quantities are computed."""

    config: SimConfig
    state: State
