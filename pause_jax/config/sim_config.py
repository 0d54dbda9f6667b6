"""Configuration of a simulation, and its validation."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.reward import Reward
from pause_jax.base.checks import check_fields, marked
from pause_jax.base.spelling import shown
from pause_jax.base.struct import Config, ConfigError, Sizes, nested, node, number, static
from pause_jax.config.clock import Clock, Synchronous
from pause_jax.learning import Learning
from pause_jax.policies import Pause, PolicyConfig
from pause_jax.privacy import Mechanism, PerCoordinateLaplace
from pause_jax.world.availability import AvailabilityTrace
from pause_jax.world.latency import Latency, TwoGroups


class SimConfig(Config):
    """Configuration of a simulation, with everything that it depends on except the key.

    Changing a static field recompiles the program, except for ``num_rounds`` and ``eval_every`` in
    most runs without custom parts. All other numbers can be swept and vmapped.

    Attributes:
      num_clients: K (static).
      num_selected: m, clients chosen per round. The policy ``all`` chooses K (static).
      num_rounds: T, maximum number of rounds, or of server steps if rounds overlap (static).
      clock: rule for server steps: after each round, or as updates arrive.
      max_seconds: simulated seconds after which no round starts; None for no limit. The last round
        passes this time, as in the PAUSE authors' code. After it, the run neither trains nor adds
        noise nor spends budget (``Result.played``).
      eval_every: rounds between evaluations of the model, which is also evaluated after the last
        round played (static).
      track_regret: whether to compute the genie's choice and the regret in every round (static).
      policy: policy that chooses the clients.
      reward: weights of the reward, and thus of the regret.
      latency: latency model.
      availability_trace: trace that connects clients over time, such as daily or in intervals. None
        if clients are always connected.
      availability: probability that a connected client is available in a round, independently.
      dropout: probability that a chosen client is lost within the round, independently; None for
        no drop-out. A lost client sends nothing, which the server notices when the answer is due.
        The participation counts, because the update may already have been on the way.
      deadline: seconds from the choice to the end of a round; None for no deadline.
      wait_for: number of updates that ends a round (over-selection: choose more clients); None to
        wait for all (static).
      stale_updates: handling of an update that is on its way when its round ends. ``lost``: the
        server tells the client to stop. ``next``: the server averages it, with its weight, in the
        next round. Client state (``keep_optimizer_state``) advances only with updates that reach
        the server, in time or late (static).
      privacy: mechanism that releases updates, with its budget schedule.
      when_spent: handling of clients with a spent budget, which release nothing. ``exclude``
        prevents policies from choosing them. With ``drop``, policies do not know about spent
        budgets. A chosen client then takes part for its usual latency but sends neither an update
        nor a loss, and the server averages the updates that it receives (static).
      learning: data, model and local training; None to simulate only the bandit.
    """

    num_clients: int = static(default=30, at_least=1)
    num_selected: int = static(default=5, at_least=1)
    # Round t folds 2 t and 2 t + 1, which must fit in int32, into its keys.
    num_rounds: int = static(default=200, at_least=1, at_most=2**30 - 1)
    clock: Clock = node(factory=Synchronous, of=Clock)
    max_seconds: float | None = number(default=None, above=0, optional=True)
    eval_every: int = static(default=10, at_least=1)
    track_regret: bool = static(default=True)
    policy: PolicyConfig = node(factory=Pause, of=PolicyConfig)
    reward: Reward = node(factory=Reward, of=Reward)
    latency: Latency = node(factory=TwoGroups, of=Latency)
    availability_trace: AvailabilityTrace | None = node(
        factory=lambda: None, of=AvailabilityTrace, optional=True
    )
    availability: float = number(default=1.0, above=0, at_most=1)
    dropout: float | None = number(default=None, at_least=0, at_most=1, optional=True)
    deadline: float | None = number(default=None, above=0, optional=True)
    wait_for: int | None = static(default=None, at_least=1, optional=True, kind=int)
    stale_updates: str = static(default="lost", choices=("lost", "next"))
    privacy: Mechanism = node(factory=PerCoordinateLaplace, of=Mechanism)
    when_spent: str = static(default="exclude", choices=("exclude", "drop"))
    learning: Learning | None = node(factory=Learning, of=Learning, optional=True)

    @property
    def cohort_size(self) -> int:
        """Number of clients that the policy chooses at a time, for example in each round."""
        return self.policy.cohort_size(self.num_clients, self.clock.asked_for(self.num_selected))

    @property
    def num_slots(self) -> int:
        """Maximum number of answers that a round, or a server step, waits for."""
        return self.clock.answers(self.cohort_size)

    @property
    def overlaps(self) -> bool:
        """Whether clients may start while others are under way."""
        return self.clock.overlaps(self.cohort_size)

    @property
    def sizes(self) -> Sizes:
        """Sizes on which the rules of the parts may depend."""
        asked_for = self.clock.asked_for(self.num_selected)
        return Sizes(self.num_clients, asked_for, self.cohort_size)

    def check(self, path: str, sizes: Sizes) -> None:
        if self.num_selected > self.num_clients:
            raise ConfigError(
                f"num_selected = {self.num_selected}: must be <= num_clients = {self.num_clients}. "
                "Choose fewer clients a round or make the network larger."
            )
        for name in ("deadline", "wait_for"):
            if self.overlaps and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} = {getattr(self, name)}: ends a round, and clock = "
                    f"{self.clock.name!r} has none. Leave it out; clock.buffer says when the "
                    "server steps."
                )
        if self.overlaps and self.policy.needs_rounds:
            raise ConfigError(
                f"policy = {self.policy.name!r}: {self.policy.needs_rounds}, and clock = "
                f"{self.clock.name!r} has no rounds. Choose another policy, or clock = "
                "Synchronous()."
            )
        if self.wait_for is not None and self.wait_for > self.cohort_size:
            raise ConfigError(
                f"wait_for = {self.wait_for}: must be <= num_selected = {self.cohort_size}, the "
                "clients that are chosen. Wait for fewer, or choose more."
            )
        least, known = self.latency.min_latency, not isinstance(self.deadline, jax.core.Tracer)
        known &= not isinstance(least, jax.core.Tracer)
        if known and self.deadline is not None and self.deadline < least:
            raise ConfigError(
                f"deadline = {self.deadline}: no update can be in time, as none takes less than "
                f"latency.min_latency = {least} seconds. Wait longer."
            )
        if self.stale_updates == "next" and self.wait_for is None and self.deadline is None:
            raise ConfigError(
                "stale_updates = 'next': no update is late while a round waits for all. Set "
                "deadline or wait_for."
            )


def validate(config: SimConfig) -> None:
    """Check a config before any work starts.

    Raises:
      ConfigError: if a rule is violated. The message has the value, the rule and the fix.
        ``simulate`` checks the rules that need the data set after reading it.
    """
    if not isinstance(config, SimConfig):
        raise ConfigError(f"config = {shown(config)}: must be a pause_jax.SimConfig.")
    check_fields(config)
    for path, part in nested(config):
        part.check(path, config.sizes)


def loaded(config: SimConfig) -> SimConfig:
    """Return the config after its world and its budgets have read their files."""
    availability_trace = config.availability_trace and config.availability_trace.loaded()
    return config.replace(
        latency=config.latency.loaded(),
        availability_trace=availability_trace,
        privacy=config.privacy.with_budget(config.privacy.budget.loaded()),
    )


def with_budgets(config: SimConfig, key: Array) -> SimConfig:
    """Return the config with the budget of each client; ``key`` comes from ``keys.budgets``."""
    mechanism = config.privacy
    own = mechanism.budget.of_clients(key, config.num_clients)
    return config.replace(privacy=mechanism.with_budget(own))


def canonical(config: SimConfig) -> SimConfig:
    """Return the config with every traced number converted to a float32 array.

    Configs of equal structure then share one trace, while a Python float and an array would compile
    twice. Within a user's ``jit``, a number that breaks its rule becomes NaN.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), marked(config))


def stack(configs: Sequence[SimConfig]) -> SimConfig:
    """Stack configs of equal structure along a new leading axis, for vmap.

    Raises:
      ConfigError: if a config is invalid, or if the static parts of the configs differ.
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
