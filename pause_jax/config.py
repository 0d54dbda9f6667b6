"""The configuration of a simulation, and the door at which it is checked."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pause_jax.latency import Latency, TwoGroups
from pause_jax.learning import Learning
from pause_jax.policies import Pause, PolicyConfig
from pause_jax.privacy import Mechanism, PerCoordinateLaplace
from pause_jax.reward import Reward
from pause_jax.struct import (
    Config,
    ConfigError,
    Sizes,
    check_fields,
    nested,
    node,
    number,
    static,
)


class SimConfig(Config):
    """Everything that a simulation depends on, except the key.

    Fields marked static compile anew when they change; all other numbers can be swept and vmapped.

    Attributes:
      num_clients: K (static).
      num_selected: m, clients chosen a round; the policy ``all`` chooses K (static).
      num_rounds: T, rounds at most (static).
      max_seconds: simulated seconds after which no round starts; None for no such end. The last
        round is the one that passes it, as in the PAUSE authors' program. After it the run stands
        still: no training, no noise, no spending (``Result.played``).
      eval_every: evaluate the model after every so many rounds, and after the last that is played
        (static).
      track_regret: compute the genie's choice and the regret every round (static).
      policy: who chooses the clients.
      reward: weights of the reward; also what regret is measured in.
      latency: the world's latency model.
      availability: probability that a client is available in a round, independently.
      privacy: the mechanism that releases updates, with its budget schedule.
      when_spent: a client whose budget is spent releases nothing more. ``exclude``: no policy can
        choose it. ``silent``: policies do not know; a chosen one takes its time, takes part, and
        sends nothing, no loss either, and the server averages the updates that it receives
        (static).
      learning: data, model and local training; None for a simulation of the bandit alone.
    """

    num_clients: int = static(default=30, at_least=1)
    num_selected: int = static(default=5, at_least=1)
    num_rounds: int = static(default=200, at_least=1)
    max_seconds: float | None = number(default=None, above=0, optional=True)
    eval_every: int = static(default=10, at_least=1)
    track_regret: bool = static(default=True)
    policy: PolicyConfig = node(factory=Pause, of=PolicyConfig)
    reward: Reward = node(factory=Reward, of=Reward)
    latency: Latency = node(factory=TwoGroups, of=Latency)
    availability: float = number(default=1.0, above=0, at_most=1)
    privacy: Mechanism = node(factory=PerCoordinateLaplace, of=Mechanism)
    when_spent: str = static(default="exclude", choices=("exclude", "silent"))
    learning: Learning | None = node(factory=Learning, of=Learning, optional=True)

    @property
    def cohort_size(self) -> int:
        """Clients that this config's policy chooses a round."""
        return self.policy.cohort_size(self.num_clients, self.num_selected)

    @property
    def sizes(self) -> Sizes:
        """What the parts' own rules may need to know."""
        return Sizes(self.num_clients, self.num_selected, self.cohort_size)

    def check(self, path: str, sizes: Sizes) -> None:
        if self.num_selected > self.num_clients:
            raise ConfigError(
                f"num_selected = {self.num_selected}: must be <= num_clients = {self.num_clients}. "
                "Choose fewer clients a round or make the network larger."
            )


def validate(config: SimConfig) -> None:
    """Check a config before any work starts.

    Raises:
      ConfigError: naming the value, the rule and the fix. Rules that need the data set itself are
        checked by ``simulate`` when it has been read.
    """
    if not isinstance(config, SimConfig):
        raise ConfigError(f"config = {config!r}: must be a pause_jax.SimConfig.")
    check_fields(config)
    for path, part in nested(config):
        part.check(path, config.sizes)


def canonical(config: SimConfig) -> SimConfig:
    """The config with every traced number as a float32 array.

    Then equal structures share one trace: a Python float and an array would compile twice.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), config)


def stack(configs: Sequence[SimConfig]) -> SimConfig:
    """Stack configs of equal structure along a new leading axis, for vmap.

    Raises:
      ConfigError: if one of them cannot run (under vmap its numbers are not known any more), or
        their static parts differ.
    """
    for config in configs:
        validate(config)
    structures = {jax.tree.structure(config) for config in configs}
    if len(structures) != 1:
        raise ConfigError(
            f"{len(configs)} configs of {len(structures)} static structures cannot be stacked: "
            "they may differ in traced numbers only. Use sweep, which groups them."
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(canonical, configs))
