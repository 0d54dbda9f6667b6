"""What is recorded of a round: the record, its rewards, its evaluation."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit import ClientStats
from pause_jax.config import SimConfig
from pause_jax.learning.client import LocalTraining, Variables
from pause_jax.learning.server import evaluate
from pause_jax.policies import Context, Selection
from pause_jax.reward import additive_terms, cohort_problem, cohort_value, generalization_reward
from pause_jax.search import exact


class Record(NamedTuple):
    """What is recorded of a round."""

    clients: Array
    latency: Array
    query_seconds: Array
    clock: Array
    max_spent: Array
    energy: Array
    reward: Array
    genie_reward: Array
    regret: Array
    optimality_gap: Array
    acceptance_rate: Array
    train_loss: Array
    test_loss: Array
    test_accuracy: Array
    finite: Array


def rewards(
    config: SimConfig,
    context: Context,
    stats: ClientStats,
    latency: Array,
    selection: Selection,
    available: Array,
    round: Array,
) -> tuple[Array, Array, Array]:
    """Realised reward of the cohort and of the genie's, and the expected regret."""
    m = context.num_selected
    g = generalization_reward(stats.counts, round, context.share, m, config.reward.beta)
    terms = additive_terms(config.reward, g, config.privacy.budget.remaining(stats.counts), m)
    speed = context.min_latency / latency
    active = selection.active
    reward = cohort_value(speed, terms, selection.clients, active)
    if not config.track_regret:
        nan = jnp.asarray(jnp.nan)
        return reward, nan, nan
    problem = cohort_problem(context.expected_speed, config.reward, terms)
    genie, _ = exact(problem.index, problem.weight, m, available=available)
    genie_reward = cohort_value(speed, terms, genie, available[genie])
    best = cohort_value(context.expected_speed, terms, genie, available[genie])
    own = cohort_value(context.expected_speed, terms, selection.clients, active)
    return reward, genie_reward, jnp.maximum(best - own, 0.0)


def evaluate_if_due(
    config: SimConfig, training: LocalTraining | None, variables: Variables | None, round: Array
) -> tuple[Array, Array]:
    """Test loss and accuracy in the rounds that are evaluated, NaN in the others."""
    nan = jnp.asarray(jnp.nan)
    if training is None or variables is None:
        return nan, nan
    # `round` is not batched under vmap over runs, so this stays a branch and skips the work.
    due = (round % config.eval_every == 0) | (round == config.num_rounds)
    return lax.cond(
        due,
        lambda v: evaluate(training.module, v, training.dataset),
        lambda v: (nan, nan),
        variables,
    )
