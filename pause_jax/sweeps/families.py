"""Policies of a sweep that are one program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax.config import SimConfig
from pause_jax.policies import POLICIES, OneOf, PolicyConfig, Random


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


def one_of(config: SimConfig, choices: tuple[PolicyConfig, ...]) -> SimConfig:
    """The config with its policy as the one of its structure among the choices."""
    if not choices:
        return config
    place = [*map(jax.tree.structure, choices)].index(jax.tree.structure(config.policy))
    own = (*choices[:place], config.policy, *choices[place + 1 :])
    return config.replace(policy=OneOf(choices=own, number=jnp.asarray(place, jnp.int32)))
