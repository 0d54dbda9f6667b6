"""What a run is made of: its learner, its world and its policy, from a config and data."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Execution, Learner, LearnerState, bandit_only
from pause_jax.learning.learner import model_bytes, output_layer, update_size
from pause_jax.policies import Context, Policy, policy_of
from pause_jax.run.context import context_of
from pause_jax.run.horizon import Length, length_of
from pause_jax.run.rounds.world import World, world_of
from pause_jax.world.latency import Work


class Setup(NamedTuple):
    """The parts of a run.

    Attributes:
      config: canonical.
      length: of the run.
      learner: what clients and server do with data and model.
      work: what a client's round consists of.
      world: latency and availability.
      context: what the policy is built from.
      policy: who chooses.
    """

    config: SimConfig
    length: Length
    learner: Learner
    work: Work
    world: World
    context: Context
    policy: Policy


def learner_of(config: SimConfig, data: Any, execution: Execution | None = None) -> Learner:
    """Build the learner of a canonical config.

    Args:
      config: the config.
      data: what ``Learning.load`` returned; None without learning.
      execution: how cohorts are trained; the library's choice if left out.

    Raises:
      TypeError: if ``build`` returns something else.
      ConfigError: if the learner cannot average the stale updates that the config asks for.
    """
    learning = config.learning
    if learning is None:
        return bandit_only(config.num_clients)
    name = type(learning).__name__
    learner = learning.build(data, config.num_clients, execution)
    if not isinstance(learner, Learner):
        raise TypeError(
            f"{name}.build returned {type(learner).__name__}: must be "
            "Learner(init, train, ask, evaluate)."
        )
    if config.stale_updates == "next" and learner.stale is None:
        raise ConfigError(
            f"stale_updates = 'next': the learner of {name} cannot average stale updates. Give it "
            "`stale`, or set stale_updates = 'lost'."
        )
    return learner


def setup_of(
    config: SimConfig, learner: Learner, learning: LearnerState, length: Length | None = None
) -> Setup:
    """Build the parts of a run from its learner.

    Args:
      config: canonical config.
      learner: from :func:`learner_of`.
      learning: any state of the run's learner; sizes and shapes are read.
      length: of the run, if it is not that of the config.
    """
    length = length_of(config) if length is None else length
    data_size, local_samples = _samples(learner, learning)
    size = float(model_bytes(learning))
    latency, work = config.latency.with_work(Work(size, size, local_samples))
    context = context_of(
        config,
        latency,
        data_size=data_size,
        local_samples=local_samples,
        share=learning.partition.share,
        update_size=update_size(learning),
        num_rounds=length.num_rounds,
    )
    context = context._replace(
        output_layer=functools.partial(output_layer, learning),
        validates=learner.server_loss is not None,
    )
    return Setup(
        config=config,
        length=length,
        learner=learner,
        work=work,
        world=world_of(config, latency),
        context=context,
        policy=policy_of(config.policy, context),
    )


def _samples(learner: Learner, learning: LearnerState) -> tuple[Array, Array]:
    """Samples that each client has, and that it trains on in a round, float [K] each."""
    data_size = learning.partition.size.astype(jnp.float32)
    if learner.max_samples is None:
        return data_size, data_size
    return data_size, jnp.minimum(data_size, learner.max_samples)
