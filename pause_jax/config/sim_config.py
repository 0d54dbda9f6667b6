"""The configuration of a simulation, and the door at which it is checked."""

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
    """Everything that a simulation depends on, except the key.

    Fields marked static compile anew when they change, except ``num_rounds`` and ``eval_every`` of
    runs without custom parts; all other numbers can be swept and vmapped.

    Attributes:
      num_clients: K (static).
      num_selected: m, clients chosen a round; the policy ``all`` chooses K (static).
      num_rounds: T, rounds at most; server steps of a clock that overlaps (static).
      clock: when the server steps: round by round, or with updates as they come.
      max_seconds: simulated seconds after which no round starts; None for no such end. The last
        round is the one that passes it, as in the PAUSE authors' program. After it the run stands
        still: no training, no noise, no spending (``Result.played``).
      eval_every: evaluate the model after every so many rounds, and after the last that is played
        (static).
      track_regret: compute the genie's choice and the regret every round (static).
      policy: who chooses the clients.
      reward: weights of the reward; also what regret is measured in.
      latency: the world's latency model.
      availability_trace: when clients are connected at all: by the hour, by intervals, on and off;
        None for always.
      availability: probability that a client which is there is available in a round, independently.
      dropout: probability that a chosen client is lost within the round, independently; None for no
        such thing. It sends nothing, which the server notices when its answer should have come, and
        its participation counts: what it sent may have been on the way.
      deadline: seconds from the choice to the end of a round; None for no such end.
      wait_for: end a round with the first so many updates (over-selection: choose more than that);
        None to wait for all (static).
      stale_updates: what becomes of an update that was on its way when its round ended. ``lost``:
        the server tells the client to stop. ``next``: the server averages it, with its weight, in
        the next round. What a client keeps (``keep_optimizer_state``) advances only with an update
        that reaches the server, in time or late (static).
      privacy: the mechanism that releases updates, with its budget schedule.
      when_spent: a client whose budget is spent releases nothing more. ``exclude``: no policy can
        choose it. ``drop``: policies do not know; a chosen one takes its time, takes part, and
        sends nothing, no loss either, and the server averages the updates that it receives
        (static).
      learning: data, model and local training; None for a simulation of the bandit alone.
    """

    num_clients: int = static(default=30, at_least=1)
    num_selected: int = static(default=5, at_least=1)
    num_rounds: int = static(default=200, at_least=1, at_most=2**30 - 1)  # keys fold 2 t in
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
        """Clients that this config's policy is asked for at a time: in a round, each round."""
        return self.policy.cohort_size(self.num_clients, self.clock.asked_for(self.num_selected))

    @property
    def num_slots(self) -> int:
        """Answers of clients that a round, or a server step, waits for at most."""
        return self.clock.answers(self.cohort_size)

    @property
    def overlaps(self) -> bool:
        """Whether clients may start while others are under way."""
        return self.clock.overlaps(self.cohort_size)

    @property
    def sizes(self) -> Sizes:
        """What the parts' own rules may need to know."""
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
      ConfigError: naming the value, the rule and the fix. Rules that need the data set itself are
        checked by ``simulate`` when it has been read.
    """
    if not isinstance(config, SimConfig):
        raise ConfigError(f"config = {shown(config)}: must be a pause_jax.SimConfig.")
    check_fields(config)
    for path, part in nested(config):
        part.check(path, config.sizes)


def loaded(config: SimConfig) -> SimConfig:
    """The config with what its world and its budgets read from files."""
    availability_trace = config.availability_trace and config.availability_trace.loaded()
    return config.replace(
        latency=config.latency.loaded(),
        availability_trace=availability_trace,
        privacy=config.privacy.with_budget(config.privacy.budget.loaded()),
    )


def with_budgets(config: SimConfig, key: Array) -> SimConfig:
    """The config of a run in which each client has its own budget; the key is ``keys.budgets``."""
    mechanism = config.privacy
    own = mechanism.budget.of_clients(key, config.num_clients)
    return config.replace(privacy=mechanism.with_budget(own))


def canonical(config: SimConfig) -> SimConfig:
    """The config with every traced number as a float32 array.

    Then equal structures share one trace: a Python float and an array would compile twice. A number
    inside of a user's ``jit`` that breaks its rule becomes NaN.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), marked(config))


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
