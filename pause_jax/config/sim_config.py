"""Simulation config and its validation."""

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
    """Complete configuration of a simulation, except for its key.

    Changing a static field triggers recompilation, except for ``num_rounds`` and ``eval_every`` in
    most runs without custom components. All non-static numeric fields can be swept or vmapped over.

    Attributes:
      num_clients: K, number of clients (static).
      num_selected: m, number of clients chosen per round (static); ``all`` chooses all K.
      num_rounds: T, maximum number of rounds, or of server steps if rounds overlap (static).
      clock: clock that determines when clients start and when the server steps.
      max_seconds: simulated seconds after which no round starts; None for no limit. The last round
        may end after ``max_seconds``, as in the PAUSE authors' code. Rounds that do not start spend
        no budget (see ``Result.played``).
      eval_every: number of rounds between model evaluations (static). The model is also evaluated
        after the last simulated round.
      track_regret: whether to compute the genie's choice and the regret in every round (static).
      policy: policy that chooses the clients.
      shuffle_clients: whether the policy sees the clients in a random order in each run, making
        client numbers uninformative. Results use the original client numbers (static).
      reward: reward parameters, which also determine the regret.
      latency: latency model.
      availability_trace: trace of client connections; None if clients are always connected.
      availability: probability that a connected client is available in a round, independently of
        other clients and rounds.
      dropout: probability that a chosen client drops out of a round, independently of other clients
        and rounds; None for no drop-outs. The server notices a drop-out only when the update is
        due. A drop-out counts as a participation and spends budget (the update may have been sent).
      deadline: maximum seconds from client selection to the end of a round; None for no limit.
      wait_for: number of received updates after which a round ends, for over-selection; None to
        wait for all chosen clients (static).
      stale_updates: handling of updates that have not arrived when their round ends. With ``lost``,
        the server tells the clients to stop. With ``next``, the server includes the updates in the
        next round's weighted average. Client state (``keep_optimizer_state``) is saved only if the
        client's update reaches the server, on time or late (static).
      privacy: mechanism that releases updates, with its budget schedule.
      when_spent: rule for clients with a spent budget (static). With ``exclude``, clients with a
        spent budget cannot be chosen. With ``drop``, a chosen client with a spent budget takes its
        usual time but sends neither an update nor a loss. The server averages the received updates.
      learning: data, model and local training; None to simulate only the bandit.
    """

    num_clients: int = static(default=30, at_least=1)
    num_selected: int = static(default=5, at_least=1)
    # Round t folds 2 t and 2 t + 1, which must fit in int32, into the key of the `world` stream.
    num_rounds: int = static(default=200, at_least=1, at_most=2**30 - 1)
    clock: Clock = node(factory=Synchronous, of=Clock)
    max_seconds: float | None = number(default=None, above=0, optional=True)
    eval_every: int = static(default=10, at_least=1)
    track_regret: bool = static(default=True)
    policy: PolicyConfig = node(factory=Pause, of=PolicyConfig)
    shuffle_clients: bool = static(default=False)
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
        """Number of clients that the policy chooses at a time (per round unless rounds overlap)."""
        return self.policy.cohort_size(self.num_clients, self.clock.asked_for(self.num_selected))

    @property
    def num_slots(self) -> int:
        """Maximum number of answers that a round or a server step waits for."""
        return self.clock.answers(self.cohort_size)

    @property
    def overlaps(self) -> bool:
        """Whether clients may start while others are in flight."""
        return self.clock.overlaps(self.cohort_size)

    @property
    def sizes(self) -> Sizes:
        """Simulation sizes passed to the ``check`` method of each nested config."""
        asked_for = self.clock.asked_for(self.num_selected)
        return Sizes(self.num_clients, asked_for, self.cohort_size)

    def check(self, path: str, sizes: Sizes) -> None:
        if self.num_selected > self.num_clients:
            raise ConfigError(
                f"num_selected = {self.num_selected}: must be <= num_clients = {self.num_clients}. "
                "Lower num_selected or raise num_clients."
            )
        for name in ("deadline", "wait_for"):
            if self.overlaps and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} = {getattr(self, name)}: must not be set with clock = "
                    f"{self.clock.name!r}, which has no rounds. Remove {name}, because "
                    "clock.buffer determines when the server steps."
                )
        if self.overlaps and self.policy.needs_rounds:
            raise ConfigError(
                f"policy = {self.policy.name!r}: {self.policy.needs_rounds}, but clock = "
                f"{self.clock.name!r} has no rounds. Choose a different policy, or set clock = "
                "Synchronous()."
            )
        if self.wait_for is not None and self.wait_for > self.cohort_size:
            raise ConfigError(
                f"wait_for = {self.wait_for}: must be <= {self.cohort_size}, the number of clients "
                "chosen per round. Lower wait_for or raise num_selected."
            )
        least, known = self.latency.min_latency, not isinstance(self.deadline, jax.core.Tracer)
        known &= not isinstance(least, jax.core.Tracer)
        if known and self.deadline is not None and self.deadline < least:
            raise ConfigError(
                f"deadline = {self.deadline}: must be >= latency.min_latency = {least}, because no "
                "update arrives earlier. Raise deadline."
            )
        if self.stale_updates == "next" and self.wait_for is None and self.deadline is None:
            raise ConfigError(
                "stale_updates = 'next': requires deadline or wait_for, because otherwise no "
                "update is late. Set wait_for or deadline."
            )


def validate(config: SimConfig) -> None:
    """Check a config before any work starts.

    Raises:
      ConfigError: if a rule is violated. The message states the value, the rule and a fix. Rules
        that depend on the data set are checked by ``simulate`` after it loads the data.
    """
    if not isinstance(config, SimConfig):
        raise ConfigError(f"config = {shown(config)}: must be a pause_jax.SimConfig.")
    check_fields(config)
    for path, part in nested(config):
        part.check(path, config.sizes)


def loaded(config: SimConfig) -> SimConfig:
    """Return the config with its latency and availability files loaded."""
    availability_trace = config.availability_trace and config.availability_trace.loaded()
    return config.replace(latency=config.latency.loaded(), availability_trace=availability_trace)


def with_budgets(config: SimConfig, key: Array) -> SimConfig:
    """Return the config with each client's budget, drawn with ``key`` (see ``keys.budgets``)."""
    own = config.privacy.budget.of_clients(key, config.num_clients)
    return config.replace(privacy=config.privacy.with_budget(own))


def canonical(config: SimConfig) -> SimConfig:
    """Return the config with all traced numbers converted to float32 arrays.

    Configs with the same structure then share one trace, whereas Python floats and arrays would be
    traced separately. Under a user's ``jit``, invalid numbers become NaN.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), marked(config))


def stack(configs: Sequence[SimConfig]) -> SimConfig:
    """Stack configs with the same structure along a new leading axis, for vmap.

    Raises:
      ConfigError: if a config is invalid, or if the configs differ in static fields.
    """
    for config in configs:
        validate(config)
    structures = {jax.tree.structure(config) for config in configs}
    if len(structures) != 1:
        raise ConfigError(
            f"stack: {len(configs)} configs have {len(structures)} different static structures, "
            "but may differ only in traced numbers. Use sweep, which groups configs by structure."
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(canonical, configs))
