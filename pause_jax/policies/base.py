"""The contract of a selection policy.

A policy is three pure functions, written for one run, and a query if it asks clients before it
selects. Its config builds them within the trace, so every number in the config can be swept.
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
    """The answers of asked clients, in the order of ``ask``'s clients.

    Attributes:
      loss: float [d], mean loss of the current global model on local data, if ``wants`` is
        ``loss``; 1 without learning. NaN if not reported.
      features: float [d, F], what the latency model shows of the coming round (see
        ``Latency.features``).
      reported: bool [d], of the asked, which reported their loss; with ``when_spent="drop"`` not
        those whose budget is spent.
    """

    loss: Float[Array, " d"]
    features: Float[Array, "d F"]
    reported: Bool[Array, " d"] | bool = True


class Query(NamedTuple):
    """A question to some clients before the choice. Its time is charged to the round.

    Attributes:
      ask: (key, state, round, available [K]) -> (int32 [d] distinct clients, bool [d] whether each
        is asked).
      receive: (state, clients [d], asked [d], Answer) -> state, which ``select`` then reads.
      wants: ``loss`` or ``features``: what must be computed for the answer.
      batch_size: samples of a mini-batch that a loss is computed on; None for all local data.
      seconds: (latency of the round [K]) -> float [K], seconds until each client's answer; the
        round waits for the slowest.
    """

    ask: Callable[[Array, Any, Array, Array], tuple[Array, Array]]
    receive: Callable[[Any, Array, Array, Answer], Any]
    wants: str
    batch_size: int | None
    seconds: Callable[[Array], Array]


# A schedule that fades makes noise that float32 cannot square; sums of this stay finite.
MOST_NOISE = 1e30
# What a policy chose, and diagnostics of the choice.
Selected = tuple[Selection, Info]


class Policy(NamedTuple):
    """A selection policy.

    Attributes:
      init: () -> state.
      select: (key, state, round, available [K]) -> (Selection, Info).
      update: (state, Selection, Observation) -> state.
      query: what it asks clients before it selects; None for most policies.
    """

    init: Callable[[], Any]
    select: Callable[[Array, Any, Array, Array], Selected]
    update: Callable[[Any, Selection, Observation], Any]
    query: Query | None = None


class Context(NamedTuple):
    """What a policy may know of the network when it is built.

    Attributes:
      num_clients: K.
      num_selected: m, size of this policy's cohort.
      num_rounds: T, length of the run; a traced number with the policies of the library.
      update_size: d, parameters of the model; 0 without learning.
      num_features: F, entries of a client's latency features.
      data_size: float [K], samples of each client, ``|D_k|``.
      local_samples: float [K], samples that a client trains on in a round, at most ``|D_k|``.
      share: float [K], quality-weighted share of the data; sums to one.
      reward: weights of the reward.
      privacy: the mechanism, with each client's own budget where they differ; a policy may read
        its schedule, not its releases.
      min_latency: tau_min, seconds.
      expected_speed: float [K], mu_k, the mean over rounds if it varies. For the genie only.
      expected_latency: float [K], E[tau_k], seconds. For policies that assume it known.
      varying: (round) -> float [K], mu_k of a round; None if it is the same in all.
      forecast: (clock, ahead) -> float [K], probability that a client which is available at
        ``clock`` is so ``ahead`` seconds later; None if nobody can tell.
      output_layer: () -> int [C, 1 + H], for each of the C outputs the places in a flat update of
        its bias and of its H incoming weights, or None if the output layer is not known. None of a
        server that does not know the model.
      validates: whether observations come with ``server_loss``.
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
        """eps_bar_k, each client's own budget, float [K]; infinite without privacy."""
        return jnp.broadcast_to(self.privacy.budget.total(), (self.num_clients,))

    def noise_power(self, participations: Array) -> Array:
        """Expected squared noise in each client's next release, float [K], over all its entries.

        It is infinite where the budget is spent, at most ``MOST_NOISE`` elsewhere, and 0 without
        privacy. Without learning it is that of one entry, so that clients still differ.
        """
        epsilon = self.privacy.budget.epsilon(participations + 1)
        left, dimension = epsilon > 0, self.update_size or 1
        power = self.privacy.noise_power(jnp.where(left, epsilon, 1.0), dimension)
        return jnp.where(left, jnp.minimum(power, MOST_NOISE), jnp.inf)

    def speed_at(self, round: Array) -> Array:
        """mu_k in round t, float [K]. For the genie only."""
        return self.expected_speed if self.varying is None else self.varying(round)


class PolicyConfig(Config):
    """Base of every policy's config.

    Attributes:
      reads: what its policy reads of the clients' data or training: fields of :class:`Observation`
        (``loss``, ``square_loss``, ``update``, ``server_loss``) and ``answer.loss`` of a query. An
        undeclared field is None.
      observes: what it reads of the chosen clients after a round.
      assumes: what must be known beforehand.
      reference: source of the rule.
      alone: whether a sweep compiles it apart from other policies, as it asks clients, calls back
        to Python or keeps whole updates; custom policies always are.
      needs_rounds: why it cannot choose where rounds overlap; empty if it can. There ``round``
        counts decisions and T server steps, and what ``update`` hears of is not the last decision.
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
        """What clients send without noise, besides sizes and latencies."""
        return tuple(words for reading, words in UNNOISED.items() if reading in readings(self))

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        """Clients chosen a round."""
        return num_selected

    def build(self, context: Context) -> Policy:
        """The three functions, for one network."""
        raise NotImplementedError(f"{type(self).__name__} has no build(context) -> Policy.")


# Fields of an observation that show a client's data, or are known only once it has trained.
PROTECTED = ("loss", "square_loss", "update", "server_loss")
# What clients send without noise for a reading.
UNNOISED = {
    "loss": "the training loss of each chosen client",
    "square_loss": "the squared training loss of each chosen client",
    "answer.loss": "the loss of each asked client",
}


def readings(config: PolicyConfig) -> tuple[str, ...]:
    """Return what a policy and the parts in its fields declare to read."""
    declared = [getattr(part, "reads", ()) for _, part in nested(config)]
    return tuple(dict.fromkeys(reading for reads in declared for reading in reads))


def learns_of_training(config: PolicyConfig) -> bool:
    """Return whether ``update`` reads what is known once clients have trained: losses, updates."""
    return any(reading in PROTECTED for reading in readings(config))


def policy_of(config: PolicyConfig, context: Context) -> Policy:
    """Build a policy that receives only what its config declares, and keeps the form of its state.

    Whether ``update`` keeps to both is known, and raises ConfigError, while it is traced.
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
            # A reading of None fails in many ways. Name the fields without which it fails.
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
    """Return the state if its structure, shapes and dtypes are those that ``init`` returned."""
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
    """Return what ``select`` returned if its form is right; values are known in the run only."""
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
