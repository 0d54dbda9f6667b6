"""Built-in recorded quantities."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from pause_jax.config import Asynchronous
from pause_jax.run.record.quantity import Quantity, metric, quantity
from pause_jax.run.rounds.state import Round, Run


@quantity("round", gap=False)
def played(r: Round) -> Array:
    """Whether the round was simulated, bool (False once the clock has reached ``max_seconds``)."""
    return jnp.asarray(True)


@quantity(gap=-1)
def num_played(run: Run) -> Array:
    """Total number of simulated rounds, int32."""
    return run.state.played


@quantity("round", "slot", gap=-1)
def clients(r: Round) -> Array:
    """Client chosen for each slot, int32 (-1 for an empty slot)."""
    return jnp.where(r.selection.active, r.selection.clients, -1)


@quantity("round", "slot", gap=False)
def in_time(r: Round) -> Array:
    """Whether the slot's update arrived in time and was averaged, bool (False for empty slots)."""
    return r.in_time


@quantity("round", unit="s")
def latency(r: Round) -> Array:
    """Duration of each round (Eq. (3) of PAUSE), including ``query_seconds``."""
    return r.seconds


@quantity("round", unit="s")
def query_seconds(r: Round) -> Array:
    """Part of ``latency`` spent waiting for answers to the policy's query."""
    return r.query_seconds


@quantity("round", unit="s")
def clock(r: Round) -> Array:
    """Time at the end of each round, in simulated seconds.

    The rounding error is about one float32 ulp. The clock saturates at 1e18 seconds.
    """
    return r.after.clock


@quantity("round", unit="B")
def downloaded(r: Round) -> Array:
    """Bytes sent by the server: one model for each client that was chosen or asked for its loss."""
    return r.downloads.astype(jnp.float32) * r.work.download_bytes


@quantity("round", unit="B")
def uploaded(r: Round) -> Array:
    """Bytes of updates sent by clients, including late and stale updates."""
    return r.uploads.astype(jnp.float32) * r.work.upload_bytes


@quantity("round")
def max_spent(r: Round) -> Array:
    """Largest epsilon spent by any client, per ``epsilon_unit`` (infinite under ``NoPrivacy``)."""
    return jnp.max(r.config.privacy.budget.spent(r.after.counts))


@quantity("client")
def spent(run: Run) -> Array:
    """Epsilon spent by each client in the run (infinite for participants under ``NoPrivacy``)."""
    return run.config.privacy.budget.spent(run.state.counts)


@quantity("client")
def budget(run: Run) -> Array:
    """Total epsilon that each client may spend, eps_bar_k (infinite under ``NoPrivacy``)."""
    return jnp.broadcast_to(run.config.privacy.budget.total(), run.state.counts.shape)


@quantity("client", gap=-1)
def counts(run: Run) -> Array:
    """Total number of rounds in which each client took part, int32."""
    return run.state.counts


@quantity("client", gap=-1)
def queried(run: Run) -> Array:
    """Total number of rounds in which each client answered the policy's query, int32."""
    return run.state.queried


@quantity("client", gap=-1)
def data_size(run: Run) -> Array:
    """Local sample count of each client, int32 (1 if ``learning`` is None)."""
    return run.state.learning.partition.size


@quantity("round")
def energy(r: Round) -> Array:
    """Energy of the cohort (Eq. (18) of PAUSE), or NaN if the policy does not search."""
    return r.info.energy


@quantity("round")
def reward(r: Round) -> Array:
    """Realised reward of the cohort (Eq. (9) of PAUSE)."""
    return r.score.reward


@quantity("round")
def genie_reward(r: Round) -> Array:
    """Reward that the genie's cohort would have realised in this round (NaN if not tracked)."""
    return r.score.genie_reward


@quantity("round")
def regret(r: Round) -> Array:
    """Signed regret, C^G(genie) - C^G(cohort), or NaN if not tracked (see ``Score``)."""
    return r.score.regret


@quantity("round")
def optimality_gap(r: Round) -> Array:
    """Energy of the exact optimum minus ``energy``, or NaN if the policy does not search.

    The gap is infinite if only the optimum has infinite energy. If both cohorts have infinite
    energy, the gap is the difference between their total weights.
    """
    return r.info.optimality_gap


@quantity("round")
def acceptance_rate(r: Round) -> Array:
    """Fraction of annealing steps that accepted a move, or NaN if the policy does not anneal."""
    return r.info.acceptance_rate


@quantity("round")
def train_loss(r: Round) -> Array:
    """Mean mini-batch loss, weighted by the aggregation weights (NaN if no update arrived)."""
    return r.trained.mean_loss


test_loss = metric(
    "test_loss",
    "Mean loss on the test set (NaN if ``learning`` is None or the learner does not report it).",
)
test_accuracy = metric(
    "test_accuracy",
    "Accuracy on the test set, in [0, 1] (NaN if not computed, or if the model is not finite).",
    unit="1",
)


@quantity("eval_round", unit="s")
def eval_clock(r: Round) -> Array:
    """Time of each evaluation, in simulated seconds."""
    return r.after.clock


@quantity(gap=-1)
def first_nonfinite_round(run: Run) -> Array:
    """First round after which the model was not finite, int32 (0 if it was always finite)."""
    return run.state.health.first_nonfinite


@quantity(gap=-1)
def first_broken_round(run: Run) -> Array:
    """First round in which a custom policy or latency model broke its contract, int32.

    The value is 0 if neither broke its contract.
    """
    return run.state.health.first_broken


@quantity(gap=-1)
def broken_rules(run: Run) -> Array:
    """Bit mask of the rules broken in ``first_broken_round``, int32.

    Use ``pause_jax.run.contract.words`` to decode the mask.
    """
    return run.state.health.broken_rules


# Quantities recorded by default, in this order.
QUANTITIES: dict[str, Quantity] = {
    name: each for name, each in globals().items() if isinstance(each, Quantity)
}


@quantity("round", "slot", gap=-1)
def staleness(r: Round) -> Array:
    """Staleness of each slot's update, in server steps since the client started, int32.

    The value is 0 in synchronous rounds, and -1 for an empty slot.
    """
    steps = 0 if r.step is None else r.step.staleness
    return jnp.where(r.selection.active, steps, -1)


@quantity("round", "slot", unit="s")
def took(r: Round) -> Array:
    """Time from a client's start to its answer (NaN for an empty slot)."""
    return jnp.where(r.selection.active, r.latency[r.selection.clients], jnp.nan)


def _finish(r: Round) -> Array:
    """Return the seconds from the round's start to each answer, [slot] (NaN for empty slots)."""
    finish = r.query_seconds + took.value(r) if r.step is None else r.step.finish
    return jnp.where(r.selection.active, finish, jnp.nan)


@quantity("round", "slot", unit="s")
def answered(r: Round) -> Array:
    """Time of each client's answer, in simulated seconds (NaN for an empty slot)."""
    return r.before.clock + _finish(r)


@quantity("round")
def in_flight(r: Round) -> Array:
    """Total number of clients in flight at the end of a server step (0 in synchronous rounds)."""
    return jnp.asarray(0 if r.step is None else r.step.under_way, jnp.float32)


@quantity("round", unit="s")
def waiting(r: Round) -> Array:
    """Mean time between a client's answer and the server step, or NaN if no client answered."""
    wait = jnp.maximum(r.seconds - _finish(r), 0.0)
    number = jnp.sum(r.selection.active)
    return jnp.nansum(wait) / jnp.where(number > 0, number, jnp.nan)


@quantity("round")
def useful(r: Round) -> Array:
    """Effective number of averaged updates, i.e. the sum of their staleness factors."""
    clock, factor = r.config.clock, jnp.ones(r.in_time.shape)
    if r.step is not None and isinstance(clock, Asynchronous):
        factor = clock.staleness.factor(r.step.staleness.astype(jnp.float32))
    return jnp.sum(jnp.where(r.in_time, factor, 0.0))


# Quantities recorded by default if rounds overlap, otherwise only on request.
STEP_QUANTITIES: dict[str, Quantity] = {
    each.name: each for each in (staleness, took, answered, in_flight, waiting, useful)
}

# Quantities that record the learner metrics of the same name.
METRICS = ("test_loss", "test_accuracy")
