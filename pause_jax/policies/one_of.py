"""Shared program for several policies, which avoids recompiling the simulation for each one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Observation, Selection
from pause_jax.policies.base import (
    Context,
    Policy,
    PolicyConfig,
    Selected,
    check_selected,
    policy_of,
    readings,
)


class OneOf(PolicyConfig):
    """Policy that acts as ``choices[number]``, where ``number`` may be traced.

    ``sweep`` builds this policy for configs that differ only in their policy. All choices have the
    same cohort size, and ``alone`` is False for each. Under vmap, ``number`` must not be batched,
    because a batched switch executes every policy in every round.
    """

    choices: tuple[PolicyConfig, ...]
    number: Array

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(reading for choice in self.choices for reading in readings(choice))

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        return self.choices[0].cohort_size(num_clients, num_selected)

    def build(self, context: Context) -> Policy:
        built = [policy_of(choice, context) for choice in self.choices]

        def select(key: Array, state: Any, round: Array, available: Array) -> Any:
            def choose(place: int) -> Selected:
                chosen = built[place].select(key, state[place], round, available)
                selection, info = check_selected(chosen, context.num_selected)
                weights = selection.weights.astype(context.share.dtype)
                return Selection(selection.clients.astype(jnp.int32), weights), info

            return self._switch(choose)

        def update(state: Any, selection: Selection, observation: Observation) -> Any:
            def learn(place: int) -> Any:
                new = built[place].update(state[place], selection, observation)
                new = jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, state[place])
                return (*state[:place], new, *state[place + 1 :])

            return self._switch(learn)

        return Policy(lambda: tuple(each.init() for each in built), select, update)

    def _switch(self, branch: Any) -> Any:
        branches = [lambda place=place: branch(place) for place in range(len(self.choices))]
        return lax.switch(self.number, branches)
