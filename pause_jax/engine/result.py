"""The outcome of a run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.engine.recorder import Record
from pause_jax.engine.round import State
from pause_jax.learning.client import Variables
from pause_jax.struct import PyTree, static


class Result(PyTree):
    """The outcome of a run: a pytree, so it vmaps.

    T rounds, m slots, K clients, E evaluated rounds.

    Attributes:
      config: the config that made it.
      clients: int32 [T, m], chosen clients; -1 for an empty slot.
      latency: float [T], seconds of each round: (3), after the wait for queries.
      query_seconds: float [T], seconds of it that the policy's queries took.
      clock: float [T], simulated seconds at the end of each round.
      max_spent: float [T], largest budget spent by any client so far, in units of ``epsilon_unit``;
        infinite without privacy.
      spent: float [K], budget spent by each client at the end.
      counts: int32 [K], rounds in which each client took part.
      queried: int32 [K], rounds in which the policy asked each client before it chose.
      data_size: int32 [K], samples of each client; ones without learning.
      energy: float [T], energy (18) of the cohort in the policy's own search; NaN if it has none.
      reward: float [T], realised reward (9).
      genie_reward: float [T], realised reward of the genie's cohort, given the same history.
      regret: float [T], C^G(genie) - C^G(cohort), (10), given the same history; >= 0.
      optimality_gap: float [T], exact optimum minus ``energy``; NaN if the policy has no search.
      acceptance_rate: float [T], of annealing; NaN otherwise.
      train_loss: float [T], mean loss of the cohort's mini-batches; NaN without learning.
      eval_rounds: int32 [E].
      test_loss, test_accuracy: float [E]; accuracy in [0, 1], NaN if the model is not finite.
      variables: final model (Flax variables); None without learning.
      first_nonfinite_round: int32, first round after which the model was not finite; 0 if none.
      epsilon_unit: what the budgets protect: ``coordinate`` (one coordinate of an update),
        ``update`` (a whole update) or ``none``.
      num_parameters: d, entries of an update; 0 without learning.
      unnoised: what left clients without noise, besides sizes and latencies: running statistics
        of the model, and what the policy reads of the data.
    """

    config: SimConfig
    clients: Array
    latency: Array
    query_seconds: Array
    clock: Array
    max_spent: Array
    spent: Array
    counts: Array
    queried: Array
    data_size: Array
    energy: Array
    reward: Array
    genie_reward: Array
    regret: Array
    optimality_gap: Array
    acceptance_rate: Array
    train_loss: Array
    eval_rounds: Array
    test_loss: Array
    test_accuracy: Array
    variables: Variables | None
    first_nonfinite_round: Array
    epsilon_unit: str = static(default="none")
    num_parameters: int = static(default=0, at_least=0)
    unnoised: tuple[str, ...] = static(default=())


def finish(config: SimConfig, state: State, record: Record) -> Result:
    """The result of a run from its final state and the record of all its rounds."""
    due = np.arange(1, config.num_rounds + 1)
    due = due[(due % config.eval_every == 0) | (due == config.num_rounds)]
    bad = ~record.finite
    parameters = jax.tree.leaves((state.variables or {}).get("params"))
    rest = {k: v for k, v in (state.variables or {}).items() if k != "params"}
    return Result(
        config=config,
        clients=record.clients,
        latency=record.latency,
        query_seconds=record.query_seconds,
        clock=record.clock,
        max_spent=record.max_spent,
        spent=config.privacy.budget.spent(state.stats.counts),
        counts=state.stats.counts,
        queried=state.queried,
        data_size=state.partition.size,
        energy=record.energy,
        reward=record.reward,
        genie_reward=record.genie_reward,
        regret=record.regret,
        optimality_gap=record.optimality_gap,
        acceptance_rate=record.acceptance_rate,
        train_loss=record.train_loss,
        eval_rounds=jnp.asarray(due, jnp.int32),
        test_loss=record.test_loss[due - 1],
        test_accuracy=record.test_accuracy[due - 1],
        variables=state.variables,
        first_nonfinite_round=jnp.where(jnp.any(bad), jnp.argmax(bad) + 1, 0),
        epsilon_unit=config.privacy.unit,
        num_parameters=sum(leaf.size for leaf in parameters),
        unnoised=_leaf_names(rest) + (() if config.learning is None else config.policy.releases),
    )


def _leaf_names(tree: Any) -> tuple[str, ...]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
