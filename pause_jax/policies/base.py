"""Interface of a selection policy.

A policy consists of three pure functions for a single run, and a query if it asks clients before it
selects. The config builds them during tracing, which allows sweeps over every number in the config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Info, Observation, Selection
from pause_jax.bandit.reward import Reward
from pause_jax.base.struct import Config, ConfigError, nested
from pause_jax.privacy import Mechanism

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Answer(NamedTuple):
    """Answers of the asked clients, in the order of the clients returned by ``Query.ask``.

    Attributes:
      loss: float [d], mean loss of the current global model on local data if ``wants`` is ``loss``.
        1 without learning, NaN if not reported.
      features: float [d, F], features of the coming round from the latency model (see
        ``Latency.features``).
      reported: bool [d], whether an asked client reported its loss. With ``when_spent="drop"``,
        clients with a spent budget do not report.
    """

    loss: Float[Array, " d"]
    features: Float[Array, "d F"]
    reported: Bool[Array, " d"] | bool = True


class Query(NamedTuple):
    """Question to clients before the choice. Its duration is part of the round.

    Attributes:
      ask: (key, state, round, available [K]) -> (int32 [d] distinct clients, bool [d] whether each
        client is asked).
      receive: (state, clients [d], asked [d], Answer) -> state for ``select``.
      wants: requested quantity, ``loss`` or ``features``.
      batch_size: size of the mini-batch for a loss; None for all local data.
      seconds: (latency of the round [K]) -> float [K], seconds until each client answers. The round
        waits for the slowest asked client.
    """

    ask: Callable[[Array, Any, Array, Array], tuple[Array, Array]]
    receive: Callable[[Any, Array, Array, Answer], Any]
    wants: str
    batch_size: int | None
    seconds: Callable[[Array], Array]


# Bound on finite noise powers, because policies add them up and fading schedules overflow float32.
MOST_NOISE = 1e30
# A policy's choice and its diagnostics.
Selected = tuple[Selection, Info]


class Policy(NamedTuple):
    """Functions of a selection policy.

    Attributes:
      init: () -> state.
      select: (key, state, round, available [K]) -> (Selection, Info).
      update: (state, Selection, Observation) -> state.
      query: question to clients before ``select``; None for a policy that asks nothing.
    """

    init: Callable[[], Any]
    select: Callable[[Array, Any, Array, Array], Selected]
    update: Callable[[Any, Selection, Observation], Any]
    query: Query | None = None


class Context(NamedTuple):
    """Network information available when a policy is built.

    Attributes:
      num_clients: K.
      num_selected: m, size of this policy's cohort.
      num_rounds: T, length of the run; may be traced.
      update_size: d, entries of a client's update; 0 without learning.
      num_features: F, number of latency features of a client.
      data_size: float [K], samples of each client, ``|D_k|``.
      local_samples: float [K], samples that a client trains on in a round, at most ``|D_k|``.
      share: float [K], quality-weighted share of the data; sums to one.
      reward: weights of the reward.
      privacy: privacy mechanism, with one budget per client where budgets differ. A policy may read
        its schedule, not its releases.
      min_latency: tau_min, seconds.
      expected_speed: float [K], mu_k, averaged over rounds if it varies. For the genie only.
      expected_latency: float [K], E[tau_k], seconds. For policies that assume known latencies.
      varying: (round) -> float [K], mu_k in that round; None if mu_k is constant.
      forecast: (clock, ahead) -> float [K], probability that a client available at ``clock`` is
        available ``ahead`` seconds later; None if unknown.
      output_layer: () -> int [C, 1 + H], positions in a flat update of the bias and the H incoming
        weights of each of the C outputs. Returns None if the output layer is unknown, and is None
        on a server that does not know the model.
      validates: whether observations include ``server_loss``.
    """

    num_clients: int
    num_selected: int
    num_rounds: Array | int
    update_size: int
    num_features: int
    data_size: Float[Array, " K"]
    local_samples: Float[Array, " K"]
    share: Float[Array, " K"]
    reward: Reward
    privacy: Mechanism
    min_latency: Float[Array, ""]
    expected_speed: Float[Array, " K"]
    expected_latency: Float[Array, " K"]
    varying: Callable[[Array], Array] | None = None
    forecast: Callable[[Array, Array], Array] | None = None
    output_layer: Callable[[], Any] | None = None
    validates: bool = False

    @property
    def budget(self) -> Array:
        """Total budget eps_bar_k of each client, float [K]; infinite without privacy."""
        return jnp.broadcast_to(self.privacy.budget.total(), (self.num_clients,))

    def noise_power(self, participations: Array) -> Array:
        """Return the expected squared norm of the noise in each client's next release, float [K].

        It is infinite if the budget is spent, at most ``MOST_NOISE`` otherwise, and 0 without
        privacy. Without learning, d = 1 keeps the differences between clients.
        """
        epsilon = self.privacy.budget.epsilon(participations + 1)
        left, dimension = epsilon > 0, self.update_size or 1
        power = self.privacy.noise_power(jnp.where(left, epsilon, 1.0), dimension)
        return jnp.where(left, jnp.minimum(power, MOST_NOISE), jnp.inf)

    def speed_at(self, round: Array) -> Array:
        """Return mu_k in round t, float [K]. For the genie only."""
        return self.expected_speed if self.varying is None else self.varying(round)


class PolicyConfig(Config):
    """Base class of policy configs.

    Attributes:
      reads: names of the data and training results that the policy reads: fields of
        :class:`Observation` (``loss``, ``square_loss``, ``update``, ``server_loss``) and
        ``answer.loss`` of a query. Undeclared fields are None.
      observes: short description of the observed quantities.
      assumes: short description of the quantities assumed known.
      reference: source of the rule.
      alone: whether a sweep compiles the policy separately, because it asks clients, calls back to
        Python or stores whole updates. Custom policies are always compiled separately.
      needs_rounds: reason why the policy cannot run with overlapping rounds; empty if it can. With
        overlap, ``round`` counts decisions, T counts server steps, and ``update`` may receive
        answers to earlier decisions.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    observes: ClassVar[str] = "nothing"
    assumes: ClassVar[str] = "nothing"
    reference: ClassVar[str] = ""
    alone: ClassVar[bool] = False
    needs_rounds: ClassVar[str] = ""

    @final
    @property
    def releases(self) -> tuple[str, ...]:
        """Quantities that clients send without noise, in addition to sizes and latencies."""
        return tuple(words for reading, words in UNNOISED.items() if reading in readings(self))

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        """Return the number of clients chosen per round."""
        return num_selected

    def build(self, context: Context) -> Policy:
        """Build the policy for one network."""
        raise NotImplementedError(f"{type(self).__name__} has no build(context) -> Policy.")


# Fields of an observation that reveal a client's data or require its training.
PROTECTED = ("loss", "square_loss", "update", "server_loss")
# Quantity that clients send without noise for each reading.
UNNOISED = {
    "loss": "the training loss of each chosen client",
    "square_loss": "the squared training loss of each chosen client",
    "answer.loss": "the loss of each asked client",
}


def readings(config: PolicyConfig) -> tuple[str, ...]:
    """Return the readings that a policy and its nested configs declare, without duplicates."""
    declared = [getattr(part, "reads", ()) for _, part in nested(config)]
    return tuple(dict.fromkeys(reading for reads in declared for reading in reads))


def learns_of_training(config: PolicyConfig) -> bool:
    """Return whether ``update`` reads results of training, such as losses or updates."""
    return any(reading in PROTECTED for reading in readings(config))


def policy_of(config: PolicyConfig, context: Context) -> Policy:
    """Build a policy and limit its observations to the readings that its config declares.

    Raises:
      TypeError: if ``build`` does not return a :class:`Policy`.
      ConfigError: if the config overrides ``releases``, or the query asks for undeclared losses.
        ``update`` raises it during tracing if it reads an undeclared field, or returns a state
        whose structure, shapes or dtypes differ from the initial state.
    """
    name = type(config).__name__
    built = config.build(context)
    if not isinstance(built, Policy):
        raise TypeError(
            f"{name}.build returned {type(built).__name__}: must be Policy(init, select, update)."
        )
    if type(config).releases is not PolicyConfig.releases:
        raise ConfigError(f"{name}.releases: follows from `reads`. Declare `reads` alone.")
    declared = readings(config)
    if built.query is not None and built.query.wants == "loss" and "answer.loss" not in declared:
        raise _undeclared(name, "asks for losses", declared, ["answer.loss"])
    form = jax.eval_shape(built.init)
    absent = [field for field in PROTECTED if field not in declared]

    def update(state: Any, selection: Selection, observation: Observation) -> Any:
        def updated(without: Sequence[str]) -> Any:
            return built.update(
                state,
                selection,
                observation._replace(**dict.fromkeys(without)),  # type: ignore[arg-type]
            )

        try:
            later = updated(absent)
        except Exception:
            # Using None raises many kinds of errors. Name the fields whose absence causes this one.
            missing = [field for field in absent if _fails(updated, [field])]
            if not missing or _fails(updated, []):
                raise
            fields = " and ".join(f"observation.{field}" for field in missing)
            raise _undeclared(name, f"reads {fields}", declared, missing) from None
        return _of_form(name, form, later)

    return built._replace(update=update)


def _fails(function: Callable[[list[str]], Any], argument: list[str]) -> bool:
    try:
        function(argument)
    except Exception:
        return True
    return False


def _undeclared(name: str, deed: str, declared: tuple[str, ...], missing: list[str]) -> ConfigError:
    return ConfigError(
        f"{name}: {deed}, which it does not declare. Set reads = {(*declared, *missing)!r} in the "
        "class."
    )


def _of_form(name: str, form: Any, state: Any) -> Any:
    """Return the state if its structure, shapes and dtypes match ``form``, else raise."""
    returned = jax.eval_shape(lambda x: x, state)
    leaves, structure = jax.tree_util.tree_flatten_with_path(form)
    returned_leaves, returned_structure = jax.tree_util.tree_flatten_with_path(returned)
    if str(returned_structure) != str(structure):
        raise ConfigError(
            f"{name}.update: returns a state {returned_structure}; must be as in init, {structure}."
        )
    for (path, before), (_, after) in zip(leaves, returned_leaves, strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise ConfigError(
                f"{name}.update: state{jax.tree_util.keystr(path)} is {after.dtype} of shape "
                f"{after.shape}; must be {before.dtype} of shape {before.shape}, as in init."
            )
    return state


def check_selected(selected: Any, num_selected: int) -> Selected:
    """Validate the types, shapes and dtypes of a policy's choice, and return the choice."""
    if not (
        isinstance(selected, tuple)
        and len(selected) == 2
        and isinstance(selected[0], Selection)
        and isinstance(selected[1], Info)
    ):
        raise TypeError(
            f"select returned {type(selected).__name__}: must be (Selection, Info), for example "
            "by_data_size(clients, available, context), no_info()."
        )
    clients, weights = selected[0]
    integers = jnp.issubdtype(jnp.result_type(clients), jnp.integer)
    if not integers or {jnp.shape(clients), jnp.shape(weights)} != {(num_selected,)}:
        raise TypeError(
            f"select chose clients {jnp.shape(clients)} {jnp.result_type(clients)}, weights "
            f"{jnp.shape(weights)}: must be integers [{num_selected}] and weights of that "
            "shape; a weight of 0 marks an empty slot."
        )
    return selected
