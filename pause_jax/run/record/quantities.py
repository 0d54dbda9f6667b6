"""The quantities that the library records: each once, with its value, dimensions, unit and gap."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from pause_jax.config import Asynchronous
from pause_jax.run.record.quantity import Quantity, quantity
from pause_jax.run.rounds.state import Round, Run


@quantity("round", gap=False)
def played(r: Round) -> Array:
    """Whether the round was played, bool: no round starts after ``max_seconds``."""
    return jnp.asarray(True)


@quantity(gap=-1)
def num_played(run: Run) -> Array:
    """Rounds that were played, int32."""
    return run.state.played


@quantity("round", "slot", gap=-1)
def clients(r: Round) -> Array:
    """Chosen clients, int32; -1 for an empty slot."""
    return jnp.where(r.selection.active, r.selection.clients, -1)


@quantity("round", "slot", gap=False)
def in_time(r: Round) -> Array:
    """Whether the slot's update was averaged in its round, bool: not lost, stale or dropped."""
    return r.in_time


@quantity("round", unit="s")
def latency(r: Round) -> Array:
    """Seconds of each round: (3), after the wait for queries."""
    return r.seconds


@quantity("round", unit="s")
def query_seconds(r: Round) -> Array:
    """Seconds of it that the policy's queries took."""
    return r.query_seconds


@quantity("round", unit="s")
def clock(r: Round) -> Array:
    """Simulated seconds at the end of each round: the exact sum of all rounds, rounded to float32.
    The clock stops at 1e18 seconds.
    """
    return r.after.clock


@quantity("round", unit="B")
def downloaded(r: Round) -> Array:
    """Bytes that the server sent: the model, to each chosen client and each asked for its loss."""
    return r.downloads.astype(jnp.float32) * r.work.download_bytes


@quantity("round", unit="B")
def uploaded(r: Round) -> Array:
    """Bytes of the updates that clients sent, stale ones included."""
    return r.uploads.astype(jnp.float32) * r.work.upload_bytes


@quantity("round")
def max_spent(r: Round) -> Array:
    """Largest budget spent by any client so far, in units of ``epsilon_unit``; infinite without
    privacy.
    """
    return jnp.max(r.config.privacy.budget.spent(r.after.counts))


@quantity("client")
def spent(run: Run) -> Array:
    """Budget spent by each client at the end."""
    return run.config.privacy.budget.spent(run.state.counts)


@quantity("client")
def budget(run: Run) -> Array:
    """Budget of each client, eps_bar_k; infinite without privacy."""
    return jnp.broadcast_to(run.config.privacy.budget.total(), run.state.counts.shape)


@quantity("client", gap=-1)
def counts(run: Run) -> Array:
    """Rounds in which each client took part, int32."""
    return run.state.counts


@quantity("client", gap=-1)
def queried(run: Run) -> Array:
    """Rounds in which the policy asked each client before it chose and had an answer, int32."""
    return run.state.queried


@quantity("client", gap=-1)
def data_size(run: Run) -> Array:
    """Samples of each client, int32; ones without learning."""
    return run.state.learning.partition.size


@quantity("round")
def energy(r: Round) -> Array:
    """Energy (18) of the cohort in the policy's own search; NaN if it has none."""
    return r.info.energy


@quantity("round")
def reward(r: Round) -> Array:
    """Realised reward (9)."""
    return r.score.reward


@quantity("round")
def genie_reward(r: Round) -> Array:
    """Realised reward of the genie's cohort, given the same history."""
    return r.score.genie_reward


@quantity("round")
def regret(r: Round) -> Array:
    """C^G(genie) - C^G(cohort), (10), given the same history; signed, see ``Score``."""
    return r.score.regret


@quantity("round")
def optimality_gap(r: Round) -> Array:
    """Exact optimum minus ``energy``; NaN if the policy has no search, infinite where the search
    missed an untried client, whose index is infinite.
    """
    return r.info.optimality_gap


@quantity("round")
def acceptance_rate(r: Round) -> Array:
    """Share of accepted moves of annealing; NaN otherwise."""
    return r.info.acceptance_rate


@quantity("round")
def train_loss(r: Round) -> Array:
    """Mean loss of the cohort's mini-batches; NaN without learning."""
    return r.trained.mean_loss


@quantity("eval_round")
def test_loss(r: Round) -> Array:
    """Mean loss on the test set; NaN without learning, and of a learner without that metric."""
    return r.metrics.get("test_loss", jnp.asarray(jnp.nan))


@quantity("eval_round", unit="1")
def test_accuracy(r: Round) -> Array:
    """Accuracy on the test set, in [0, 1]; NaN if the model is not finite, and for regression."""
    return r.metrics.get("test_accuracy", jnp.asarray(jnp.nan))


@quantity("eval_round", unit="s")
def eval_clock(r: Round) -> Array:
    """Simulated seconds at each evaluation."""
    return r.after.clock


@quantity(gap=-1)
def first_nonfinite_round(run: Run) -> Array:
    """First round after which the model was not finite, int32; 0 if none."""
    return run.state.health.first_nonfinite


@quantity(gap=-1)
def first_broken_round(run: Run) -> Array:
    """First round in which a custom policy or latency model broke its contract, int32; 0 if none
    did.
    """
    return run.state.health.first_broken


@quantity(gap=-1)
def broken_rules(run: Run) -> Array:
    """What was broken in it, int32: ``pause_jax.run.contract.words`` says it."""
    return run.state.health.broken_rules


# All of the above, in their order.
QUANTITIES: dict[str, Quantity] = {
    name: each for name, each in globals().items() if isinstance(each, Quantity)
}


@quantity("round", "slot", gap=-1)
def staleness(r: Round) -> Array:
    """Server steps between the start of the slot's client and its answer, int32; 0 in rounds, -1
    for an empty slot.
    """
    steps = 0 if r.step is None else r.step.staleness
    return jnp.where(r.selection.active, steps, -1)


@quantity("round", "slot", unit="s")
def took(r: Round) -> Array:
    """Seconds from the start of the slot's client to its answer."""
    return jnp.where(r.selection.active, r.latency[r.selection.clients], jnp.nan)


def _finish(r: Round) -> Array:
    """Seconds from the last step to the answer of each slot, [slot]; NaN of an empty one."""
    finish = r.query_seconds + took.value(r) if r.step is None else r.step.finish
    return jnp.where(r.selection.active, finish, jnp.nan)


@quantity("round", "slot", unit="s")
def answered(r: Round) -> Array:
    """Simulated seconds at which the slot's client answered."""
    return r.before.clock + _finish(r)


@quantity("round")
def in_flight(r: Round) -> Array:
    """Clients under way when the server stepped; 0 in rounds."""
    return jnp.asarray(0 if r.step is None else r.step.under_way, jnp.float32)


@quantity("round", unit="s")
def waiting(r: Round) -> Array:
    """Mean seconds from a client's answer to the server step; NaN without any."""
    wait = jnp.maximum(r.seconds - _finish(r), 0.0)
    number = jnp.sum(r.selection.active)
    return jnp.nansum(wait) / jnp.where(number > 0, number, jnp.nan)


@quantity("round")
def useful(r: Round) -> Array:
    """Updates that were averaged, each by the factor of its staleness."""
    clock, factor = r.config.clock, jnp.ones(r.in_time.shape)
    if r.step is not None and isinstance(clock, Asynchronous):
        factor = clock.staleness.factor(r.step.staleness.astype(jnp.float32))
    return jnp.sum(jnp.where(r.in_time, factor, 0.0))


# Recorded by default where rounds overlap; elsewhere by name.
STEP_QUANTITIES: dict[str, Quantity] = {
    each.name: each for each in (staleness, took, answered, in_flight, waiting, useful)
}

# Those that a learner's metrics of the same names give.
METRICS = ("test_loss", "test_accuracy")
