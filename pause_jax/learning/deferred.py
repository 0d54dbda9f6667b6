"""Local SGD in two halves, for updates that are averaged steps after they were trained."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.learning.fedavg import averaged
from pause_jax.learning.learner import Deferred, LearnerState, Release, Trained
from pause_jax.learning.local_sgd import LocalSgd
from pause_jax.learning.staleness import no_stale_updates, no_updates


def deferred_of(sgd: LocalSgd) -> Deferred:
    """The two halves of a learner's round. A round of learning is a server step."""

    def train(
        key: Array, state: LearnerState, selection: Selection, release: Release
    ) -> tuple[LearnerState, Trained, Any]:
        # All of the cohort is stale, and nothing is averaged: the new model is the old one.
        size = selection.clients.shape[0]
        all_stale, none = jnp.ones(size, bool), no_stale_updates(state, size)
        after, trained, stale = sgd.train_stale(key, state, selection, release, all_stale, none)
        return state._replace(clients=after.clients), trained, stale.updates

    def average(state: LearnerState, updates: Any, weights: Array) -> LearnerState:
        variables, server = averaged(sgd.training.server, state, updates, weights)
        rounds = jnp.asarray(state.rounds) + 1
        return state._replace(variables=variables, server=server, rounds=rounds)

    return Deferred(no_updates, train, average)
