"""Policies that are one program: those of a sweep, and those that a sweep before had together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax.config import SimConfig
from pause_jax.policies import POLICIES, OneOf, PolicyConfig, Random

# By what a program is compiled for, the choices of the programs of this process.
_KNOWN: dict[Any, list[tuple[PolicyConfig, ...]]] = {}


def family_of(config: SimConfig, data: Any) -> Any:
    """What configs have in common that one program serves, whatever their policies are; None of a
    policy that needs a program of its own.
    """
    policy = config.policy
    if type(policy) not in POLICIES or policy.alone:
        return None
    rest = config.replace(policy=Random(), num_rounds=1, eval_every=1)
    shapes = [(np.shape(leaf), str(leaf.dtype)) for leaf in jax.tree.leaves(data)]
    return jax.tree.structure((rest, data)), config.cohort_size, policy.releases, tuple(shapes)


def choices_of(
    family: Any, policies: Sequence[PolicyConfig], *, remembered: bool
) -> tuple[PolicyConfig, ...]:
    """The choices of the program that plays some policies of a family: of the one that was there
    before if it has them all; no choice for a single one that no program has.

    Args:
      family: from :func:`family_of`.
      policies: of one structure each.
      remembered: whether programs of other sweeps count. What they compute may differ in the last
        place.
    """
    wanted = set(map(jax.tree.structure, policies))
    for choices in _KNOWN.get(family, []) if remembered else []:
        if wanted <= set(map(jax.tree.structure, choices)):
            return choices
    if len(policies) == 1:
        return ()
    _KNOWN.setdefault(family, []).append(tuple(policies))
    return tuple(policies)


def one_of(config: SimConfig, choices: tuple[PolicyConfig, ...]) -> SimConfig:
    """The config with its policy as the one of its structure among the choices."""
    if not choices:
        return config
    place = [*map(jax.tree.structure, choices)].index(jax.tree.structure(config.policy))
    own = (*choices[:place], config.policy, *choices[place + 1 :])
    return config.replace(policy=OneOf(choices=own, number=jnp.asarray(place, jnp.int32)))
