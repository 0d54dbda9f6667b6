"""Interface for selection policies: pure functions that a config builds during tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from pause_jax.bandit.protocol import Info, Observation, Selection
from pause_jax.bandit.reward import Reward
from pause_jax.base.struct import Config, ConfigError, nested
from pause_jax.privacy import Mechanism


class Answer(NamedTuple):
    """Clients' answers to a query, in the order in which ``Query.ask`` returned the clients.

    Attributes:
      loss: float [d], mean loss of the global model on each client's data or mini-batch; NaN if the
        client does not report, and 1 if no model is trained or ``wants`` is ``features``.
      features: float [d, F], latency features for the coming round (see ``Latency.features``).
      reported: bool [d], whether each client reported its loss. With ``when_spent="drop"``, clients
        whose budget is spent do not report their loss.
    """

    loss: Float[Array, " d"]
    features: Float[Array, "d F"]
    reported: Bool[Array, " d"] | bool = True


class Query(NamedTuple):
    """Request for client information before each selection. The request lengthens the round.

    Attributes:
      ask: (key, state, round, available [K]) -> (clients, asked). ``clients``, int32 [d], are
        distinct. ``asked``, bool [d], marks the clients that receive the request.
      receive: (state, clients [d], asked [d], Answer) -> state passed to ``select``.
      wants: requested quantity, ``loss`` or ``features``.
      batch_size: number of samples used to compute a client's loss; None for all of its samples.
      seconds: (latencies [K]) -> float [K], seconds until each client answers. The server
        waits for the slowest queried client.
    """

    ask: Callable[[Array, Any, Array, Array], tuple[Array, Array]]
    receive: Callable[[Any, Array, Array, Answer], Any]
    wants: str
    batch_size: int | None
    seconds: Callable[[Array], Array]


# Upper bound on finite noise powers, which keeps sums over clients finite in float32.
MOST_NOISE = 1e30
Selected = tuple[Selection, Info]


class Policy(NamedTuple):
    """Functions that define a selection policy.

    Attributes:
      init: () -> state.
      select: (key, state, round, available [K]) -> (Selection, Info).
      update: (state, Selection, Observation) -> state.
      query: request to clients before ``select``; None if the policy sends no request.
    """

    init: Callable[[], Any]
    select: Callable[[Array, Any, Array, Array], Selected]
    update: Callable[[Any, Selection, Observation], Any]
    query: Query | None = None


class Context(NamedTuple):
    """Network and run properties passed to ``PolicyConfig.build``.

    Attributes:
      num_clients: number of clients K.
      num_selected: m, this policy's cohort size.
      num_rounds: T, number of rounds in the run (may be traced).
      update_size: d, number of entries in a client's update (0 if it is empty or d is unknown).
      num_features: F, number of latency features per client.
      data_size: float [K], each client's number of samples, ``|D_k|``.
      local_samples: float [K], expected number of samples that each client processes per round.
      share: float [K], quality-weighted data shares, which sum to one.
      reward: reward parameters.
      privacy: privacy mechanism, with per-client budgets if budgets differ. A policy may read the
        budget schedule, but must not call ``privatize``.
      min_latency: minimum latency tau_min in seconds.
      expected_speed: float [K], mu_k, averaged over rounds if it varies. Only the genie may use it.
      expected_latency: float [K], E[tau_k] in seconds, for policies that assume known latencies.
      varying: (round) -> float [K], mu_k in that round; None if mu_k is constant.
      forecast: (clock, ahead) -> float [K], probability that a client connected at ``clock`` is
        connected ``ahead`` seconds later; None if unknown.
      output_layer: () -> int [C, 1 + H], the positions of each output's bias and H incoming weights
        in a flattened update; None in a ``Selector``, or if the output layer is unknown.
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
        """Each client's total budget eps_bar_k, float [K] (infinite under ``NoPrivacy``)."""
        return jnp.broadcast_to(self.privacy.budget.total(), (self.num_clients,))

    def noise_power(self, participations: Array) -> Array:
        """Return the expected squared norm of the noise in each client's next release, float [K].

        The result is infinite if the budget is spent, 0 under ``NoPrivacy``, and otherwise at most
        ``MOST_NOISE``. An ``update_size`` of 0 is treated as 1 to keep clients distinguishable.
        """
        epsilon = self.privacy.budget.epsilon(participations + 1)
        left, dimension = epsilon > 0, self.update_size or 1
        power = self.privacy.noise_power(jnp.where(left, epsilon, 1.0), dimension)
        return jnp.where(left, jnp.minimum(power, MOST_NOISE), jnp.inf)

    def speed_at(self, round: Array) -> Array:
        """Return the expected speeds mu_k in a round, float [K], for the genie only."""
        return self.expected_speed if self.varying is None else self.varying(round)


class PolicyConfig(Config):
    """Base class for policy configs.

    Attributes:
      reads: names of the policy's inputs that depend on clients' data or training: ``answer.loss``
        for a query, and the :class:`Observation` fields ``loss``, ``square_loss``, ``update`` and
        ``server_loss``. These fields are None unless this config or a nested config declares them.
      observes: short description of the observed quantities.
      assumes: short description of the quantities that the policy assumes to be known.
      reference: source of the selection rule.
      alone: whether a sweep compiles the policy separately. Must be True for a policy that queries
        clients, calls back into Python or stores full updates. Custom policies always are.
      needs_rounds: reason why the policy cannot run with overlapping rounds; empty if it can. With
        overlapping rounds, ``round`` counts decisions, T counts server steps, and ``update`` may
        receive observations from earlier decisions.
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
        """Quantities that clients send without noise, in addition to data sizes and latencies."""
        return tuple(words for reading, words in UNNOISED.items() if reading in readings(self))

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        """Return the number of clients chosen per round."""
        return num_selected

    def build(self, context: Context) -> Policy:
        """Build the policy for the client network that ``context`` describes."""
        raise NotImplementedError(
            f"{type(self).__name__}.build is not defined. Define build(context) -> Policy."
        )


# Observation fields that depend on clients' data or training.
PROTECTED = ("loss", "square_loss", "update", "server_loss")
# Descriptions of the quantities that clients send without noise, keyed by name in ``reads``.
UNNOISED = {
    "loss": "the training loss of each chosen client",
    "square_loss": "the squared training loss of each chosen client",
    "answer.loss": "the loss of each queried client",
}


def readings(config: PolicyConfig) -> tuple[str, ...]:
    """Return the ``reads`` entries of a policy and its nested configs, without duplicates."""
    declared = [getattr(part, "reads", ()) for _, part in nested(config)]
    return tuple(dict.fromkeys(reading for reads in declared for reading in reads))


def learns_of_training(config: PolicyConfig) -> bool:
    """Return whether ``update`` reads training results, such as losses or updates."""
    return any(reading in PROTECTED for reading in readings(config))


def policy_of(config: PolicyConfig, context: Context) -> Policy:
    """Build a policy, and hide undeclared losses and updates from its ``update`` function.

    Raises:
      TypeError: if ``build`` does not return a :class:`Policy`.
      ConfigError: if the config overrides ``releases``, or the query requests undeclared losses.
        The returned ``update`` raises ConfigError if it needs an undeclared field, or if the new
        and initial states differ in structure, shape or dtype.
    """
    name = type(config).__name__
    built = config.build(context)
    if not isinstance(built, Policy):
        raise TypeError(
            f"{name}.build returned {type(built).__name__}, but must return Policy(init, select, "
            "update)."
        )
    if type(config).releases is not PolicyConfig.releases:
        raise ConfigError(
            f"{name}.releases: must not be set, because it is derived from `reads`. Remove "
            f"{name}.releases."
        )
    declared = readings(config)
    if built.query is not None and built.query.wants == "loss" and "answer.loss" not in declared:
        raise _undeclared(name, "requests losses", declared, ["answer.loss"])
    form = jax.eval_shape(built.init)
    absent = [field for field in PROTECTED if field not in declared]

    def update(state: Any, selection: Selection, observation: Observation) -> Any:
        def updated(without: Sequence[str]) -> Any:
            hidden = observation._replace(**dict.fromkeys(without))  # type: ignore[arg-type]
            return built.update(state, selection, hidden)

        try:
            later = updated(absent)
        except Exception:
            # Using a field that is None can raise any type of exception. Hide one field at a time.
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
        f"{name}: {deed} without declaring {' and '.join(map(repr, missing))}. Set reads = "
        f"{(*declared, *missing)!r} in the class."
    )


def _of_form(name: str, form: Any, state: Any) -> Any:
    """Return ``state`` if its structure, shapes and dtypes match ``form``, or raise ConfigError."""
    returned = jax.eval_shape(lambda x: x, state)
    leaves, structure = jax.tree_util.tree_flatten_with_path(form)
    returned_leaves, returned_structure = jax.tree_util.tree_flatten_with_path(returned)
    if str(returned_structure) != str(structure):
        raise ConfigError(
            f"{name}.update returned a state with structure {returned_structure}, but init "
            f"returns {structure}. Return the same structure from init and update."
        )
    for (path, before), (_, after) in zip(leaves, returned_leaves, strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise ConfigError(
                f"{name}.update returned state{jax.tree_util.keystr(path)} as {after.dtype} of "
                f"shape {after.shape}, but init returns {before.dtype} of shape {before.shape}. "
                "Keep the dtype and shape."
            )
    return state


def check_selected(selected: Any, num_selected: int) -> Selected:
    """Validate the types, shapes and dtypes of the output of ``select``, and return it."""
    if not (
        isinstance(selected, tuple)
        and len(selected) == 2
        and isinstance(selected[0], Selection)
        and isinstance(selected[1], Info)
    ):
        raise TypeError(
            f"select returned {type(selected).__name__}, but must return (Selection, Info), for "
            "example by_data_size(clients, available, context), no_info()."
        )
    clients, weights = selected[0]
    integers = jnp.issubdtype(jnp.result_type(clients), jnp.integer)
    if not integers or {jnp.shape(clients), jnp.shape(weights)} != {(num_selected,)}:
        raise TypeError(
            f"select returned clients {jnp.shape(clients)} {jnp.result_type(clients)} and weights "
            f"{jnp.shape(weights)}: must be integers [{num_selected}] and weights of the same "
            "shape. Use weight 0 for an empty slot."
        )
    return selected
