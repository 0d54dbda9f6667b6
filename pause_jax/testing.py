"""Contract checks for custom policies, mechanisms and learners.

Each check runs the component on small problems, and raises an AssertionError that describes the
first violation. A check takes a few seconds, needs no fixtures, and passes for built-in components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.base.struct import Config
from pause_jax.config import SimConfig, config_file
from pause_jax.learning import Digits, Learner, LearnerState, Learning, Linear
from pause_jax.policies import Context, Policy, PolicyConfig, Random, policy_of, readings
from pause_jax.policies.dry_round import dry_round
from pause_jax.privacy import Budget, Mechanism
from pause_jax.rng import keys
from pause_jax.run.preflight import prepare
from pause_jax.run.record.quantity import quantity
from pause_jax.run.record.result import chosen, with_metrics
from pause_jax.run.rounds.state import Round
from pause_jax.run.setup import learner_of, setup_of
from pause_jax.run.simulate import simulate

__all__ = ["check_learner", "check_mechanism", "check_policy"]

ROUNDS = 30
TRAINED_ROUNDS = 10
ANOTHER_TRACE = (
    "a new value of a traced number caused recompilation, because the number determines a shape or "
    "a branch. Declare the field with static()."
)


@quantity("round", "slot")
def weights(r: Round) -> Array:
    """Weight of each slot's update in the average."""
    return r.selection.weights


@quantity("round", "slot", gap=-1)
def filled(r: Round) -> Array:
    """Client number in each slot, including empty slots."""
    return r.selection.clients


@quantity("round", "client")
def available(r: Round) -> Array:
    """Availability of each client."""
    return r.available


# Recorded quantities that depend on the policy. The regret is omitted, because compiling the
# genie's search would take most of the time.
RECORDED = ("clients", "clock", "counts", "queried", "energy", "optimality_gap", "acceptance_rate")


def check_policy(policy: PolicyConfig, *, num_clients: int = 12, num_selected: int = 3) -> None:
    """Check a selection policy against its contract.

    The policy runs without learning, at availability probabilities of 1, 0.5 and 0.02, and also
    with learning if it reads losses or updates. Chosen clients must be distinct. Weights must be
    finite, >= 0, and 0 for unavailable clients, and must sum to 1 in rounds with participants. The
    policy must be pure, ``reads`` must be complete, and the state must keep its structure. The same
    key must produce the same run, and runs under vmap must equal single runs. A new value of a
    traced number must not cause recompilation. A named config must round-trip through TOML.

    Args:
      policy: config of the policy.
      num_clients: K, number of simulated clients.
      num_selected: m, number of clients to select per round.

    Raises:
      AssertionError: if the policy violates the contract. The message names the violated clause
        and, for an invalid choice, the round.
      ConfigError, TypeError: if the policy cannot run. ConfigError is also raised if ``reads`` is
        incomplete or the structure of the state changes.

    Examples:
      >>> from pause_jax.policies import Fastest
      >>> from pause_jax.testing import check_policy
      >>> check_policy(Fastest(), num_clients=6, num_selected=2)
    """
    config = SimConfig(
        num_clients=num_clients,
        num_selected=num_selected,
        num_rounds=ROUNDS,
        policy=policy,
        learning=None,
    )
    record = (*RECORDED, weights, filled, available)
    run, traces = _counted(lambda config, key: simulate(config, key, record=record))
    config, _ = prepare(config)
    key = jax.random.key(0)
    learner = learner_of(config, None)
    streams = keys.streams(key)
    context = setup_of(config, learner, learner.init(streams), streams.world).context
    check_pure(config.policy, context)
    for share in (1.0, 0.5, 0.02):
        result = run(config.replace(availability=jnp.float32(share)), key)
        _check_choices(result, f"availability {share:g}")
    _require(len(traces) == 1, ANOTHER_TRACE)
    if readings(policy):
        digits = Digits(num_train=10 * num_clients)
        learning = Learning(data=digits, model=Linear(), max_steps=1, validation=20)
        trained = config.replace(policy=policy, learning=learning, num_rounds=TRAINED_ROUNDS)
        _check_choices(simulate(trained, key, record=record), "in training")
    one, again = run(config, key), run(config, key)
    _same(one, again, "two runs with the same config and key differ: the policy must be pure")
    several = jax.random.split(key, 3)
    np.testing.assert_array_equal(
        jax.vmap(run, in_axes=(None, 0))(config, several).clients,
        [run(config, each).clients for each in several],
        "clients chosen under vmap must equal the clients chosen in single runs",
    )
    _check_toml(config.replace(policy=policy), policy)


def check_pure(config: PolicyConfig, context: Context) -> None:
    """Raise AssertionError if calling or building a policy again changes its lowered program."""
    policy = policy_of(config, context)
    trace = _trace(policy, context)
    others = {
        "calling it again with the same arguments": policy,
        "building it again from the same config": policy_of(config, context),
    }
    for when, other in others.items():
        _require(
            _trace(other, context) == trace,
            f"{type(config).__name__}: {when} produces a different program. A policy must be pure. "
            "Store persistent values in the state, draw random numbers from the key, and use "
            "only the config, the context and the arguments.",
        )


def _trace(policy: Policy, context: Context) -> str:
    """Return the lowered program of a policy's first round as text, including its constants."""

    def play(key: Array, round: Array, available: Array, value: Array) -> Any:
        return dry_round(policy, context, key, policy.init(), round, available, value)

    available = jnp.ones(context.num_clients, bool)
    play_once = jax.jit(play).lower(jax.random.key(0), jnp.int32(1), available, jnp.float32(1))
    return play_once.as_text()


def _check_choices(result: Any, where: str) -> None:
    cohorts, weights, available = (
        np.asarray(getattr(result, name)) for name in ("filled", "weights", "available")
    )
    rows = zip(cohorts, weights, available, strict=True)
    for t, (cohort, weight, present) in enumerate(rows, start=1):
        shown = f"{where}, round {t}: clients {cohort.tolist()}, weights {weight.tolist()}"
        inside = (cohort >= 0) & (cohort < available.shape[1])
        _require(len(set(cohort.tolist())) == cohort.size, f"{shown}: clients must be distinct")
        _require(inside.all(), f"{shown}: clients must be in 0, ..., K - 1")
        finite = np.isfinite(weight) & (weight >= 0)
        _require(finite.all(), f"{shown}: weights must be finite and >= 0")
        chosen_are_present = present[cohort[weight > 0]].all()
        _require(chosen_are_present, f"{shown}: clients with weight > 0 must be available")
        total = weight.sum()
        _require(total == 0 or abs(total - 1) < 1e-4, f"{shown}: weights must sum to 1")


def check_mechanism(mechanism: Mechanism, *, dimension: int = 40) -> None:
    """Check a privacy mechanism against its contract.

    The unit of a mechanism with a budget must be ``coordinate`` or ``update``. A release must have
    the shape and dtype of the update, be finite, and depend on the key unless the unit is ``none``.
    Two releases with the same key must be bit-identical, and releases under vmap must equal single
    releases up to rounding. A new value of a traced number must not cause recompilation. The
    remaining budget fraction must start at 1 and never rise. Epsilons must add up to the spent
    budget. An epsilon must be 0 if and only if the budget is exhausted. A config with a
    ``name`` must round-trip through TOML. ``pause_jax.privacy.audit`` tests the claimed epsilon.

    Args:
      mechanism: config of the mechanism.
      dimension: number of entries in each test update.

    Raises:
      AssertionError: if the mechanism violates the contract. The message names the violated rule.
      ConfigError: if the config is invalid.
    """
    config, _ = prepare(SimConfig(privacy=mechanism, learning=None))
    release, traces = _counted(lambda mechanism, *rest: mechanism.privatize(*rest))
    own, epsilon = config.privacy, jnp.float32(2.0)
    several = jax.random.split(jax.random.key(0), 4)
    updates = jax.random.normal(jax.random.key(1), (4, dimension)).at[3].set(0.0)
    singles = [release(own, *each, epsilon) for each in zip(several, updates, strict=True)]
    for one, update in zip(singles, updates, strict=True):
        for name in ("shape", "dtype"):
            found, expected = getattr(one, name), getattr(update, name)
            _require(found == expected, f"a release has {name} {found}: must be {expected}")
        _require(np.isfinite(one).all(), "a release must be finite")
    _same(
        release(own, several[0], updates[0], epsilon),
        singles[0],
        "two releases with the same key must be equal",
    )
    together = jax.vmap(release, in_axes=(None, 0, 0, None))(own, several, updates, epsilon)
    _close(together, singles, "a release under vmap must equal the release of a single update")
    other = release(own, several[1], updates[0], epsilon)
    if mechanism.unit != "none":
        _require(
            not np.array_equal(other, singles[0]),
            "releases with different keys are equal: the noise is missing",
        )
    release(jax.tree.map(lambda x: x * 0.9, own), several[0], updates[0], epsilon)
    _require(len(traces) == 1, ANOTHER_TRACE)
    _check_budget(own)
    _check_toml(SimConfig(privacy=mechanism, learning=None), mechanism)


def _check_budget(mechanism: Mechanism) -> None:
    @jax.jit
    def schedule(budget: Budget, times: Array) -> tuple[Array, ...]:
        after = budget.epsilon(times + 1), budget.exhausted(times + 1)
        return budget.remaining(times), budget.spent(times), *after

    times = np.arange(60)
    left, spent, epsilon, over = map(np.asarray, schedule(mechanism.budget, times))
    left, spent, epsilon = (each.astype(np.float64) for each in (left, spent, epsilon))
    _require(left[0] == 1, f"remaining(0) = {left[0]}: must be 1")
    _require(np.all((left >= 0) & (left <= 1)), "remaining must stay in [0, 1]")
    _require(np.all(np.diff(left) <= 1e-6), "remaining must never rise")
    _require(np.all(epsilon >= 0), "every epsilon must be >= 0")
    _require(
        np.array_equal(epsilon == 0, over),
        "epsilon must be 0 if and only if the budget is exhausted",
    )
    _require(spent[0] == 0, f"spent(0) = {spent[0]}: must be 0")
    if np.isfinite(epsilon).all():
        added = np.append(0, np.cumsum(epsilon))[: times.size]
        _close(spent, added, "spent(n) must be the sum of the first n epsilons", atol=1e-3)


def check_learner(learning: Learning, *, num_clients: int = 6, num_selected: int = 3) -> None:
    """Check a learner against its contract.

    Training must keep the structure, shapes and dtypes of the state. ``params`` may change only
    through the release, so a release of zeros must leave them unchanged. Training with all-zero
    weights must leave the variables and the client state unchanged. Reordering the slots must not
    change the result, up to rounding. Losses, results of ``ask`` and metrics must have the
    documented shapes. The model must stay finite for 3 rounds. A config with a ``name`` must
    round-trip through TOML.

    Args:
      learning: config of the learner, including its data.
      num_clients: K, number of simulated clients.
      num_selected: m, number of clients to select per round.

    Raises:
      AssertionError: if the learner violates the contract. The message names the violated rule.
      ConfigError: if the config or its data is invalid.
    """
    config = SimConfig(
        num_clients=num_clients,
        num_selected=num_selected,
        num_rounds=3,
        eval_every=2,
        policy=Random(),
        learning=learning,
    )
    learner = learner_of(*prepare(config))
    state = jax.jit(learner.init)(keys.streams(jax.random.key(0)))
    cohort = jnp.arange(num_selected, dtype=jnp.int32) * (num_clients // num_selected)
    size = jnp.shape(state.partition.size)
    _require(size == (num_clients,), f"partition.size has shape {size}: must be [K]")
    _check_training(learner, state, cohort)

    @jax.jit
    def answers(state: LearnerState, cohort: Array) -> tuple[Array, dict[str, Array]]:
        return learner.ask(jax.random.key(1), state, cohort, None), learner.evaluate(state)

    asked, metrics = answers(state, cohort)
    shape = asked.shape
    _require(shape == cohort.shape, f"ask returned shape {shape}: must be {cohort.shape}")
    _require(
        sorted(metrics) == sorted(learner.metrics),
        f"evaluate returned {sorted(metrics)}, but Learner.metrics is {sorted(learner.metrics)}",
    )
    scalars = all(jnp.shape(value) == () for value in metrics.values())
    _require(scalars, "every metric must be a scalar")
    record = chosen(("first_nonfinite_round", "train_loss"))
    record = with_metrics(record, learner.metrics, per_client=learner.evaluate_clients is not None)
    result = simulate(config, jax.random.key(2), record=record)
    _require(int(result.first_nonfinite_round) == 0, "the model must stay finite")
    _check_toml(config, learning)


def _check_training(learner: Learner, state: LearnerState, cohort: Array) -> None:
    key, m = jax.random.key(1), cohort.size
    equal = Selection(cohort, jnp.full(m, 1 / m, jnp.float32))

    @jax.jit
    def train(state: LearnerState, selection: Selection, scale: float) -> tuple[LearnerState, Any]:
        return learner.train(key, state, selection, lambda updates: scale * updates)

    after, trained = train(state, equal, 1.0)
    forms = [
        jax.tree.map(lambda leaf: (jnp.shape(leaf), str(leaf.dtype)), tree)
        for tree in (after, state)
    ]
    _require(forms[0] == forms[1], f"train must keep the shapes and dtypes of the state: {forms}")
    for name in ("loss", "square_loss"):
        shape = getattr(trained, name).shape
        _require(shape == (m,), f"{name} has shape {shape}: must be [m]")
    shape = trained.released.shape
    _require(len(shape) == 2, f"released has shape {shape}: must be [m, d]")

    unchanged, _ = train(state, equal, 0.0)
    before, moved = ((tree.variables or {}).get("params") for tree in (state, unchanged))
    _same(before, moved, "params must not change if the release is zero")
    nobody, _ = train(state, Selection(cohort, jnp.zeros(m)), 1.0)
    for part in ("variables", "clients"):
        _same(
            getattr(state, part),
            getattr(nobody, part),
            f"training with all weights 0 must not change {part}",
        )
    turned, _ = train(state, Selection(cohort[::-1], equal.weights), 1.0)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(turned), strict=True):
        if jnp.issubdtype(a.dtype, jnp.floating):
            _close(a, b, "the order of the slots must not change the result")


def _counted(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[None]]:
    """Return the jitted function, and a list that gains one entry per trace."""
    traces: list[None] = []

    def traced(*args: Any) -> Any:
        traces.append(None)
        return function(*args)

    return jax.jit(traced), traces


def _require(holds: Any, message: str) -> None:
    """Raise AssertionError, even under ``python -O``, if a contract clause is violated."""
    if not holds:
        raise AssertionError(message)


def _check_toml(config: SimConfig, part: Config) -> None:
    if not vars(type(part)).get("name"):
        return
    back = config_file.loads(config_file.dumps(config))
    forms = {jax.tree.structure(back), jax.tree.structure(config)}
    _require(
        len(forms) == 1,
        f"{type(part).__name__} changed in a TOML round trip: {config} became {back}",
    )


def _close(one: Any, other: Any, message: str, atol: float = 1e-4) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=atol, err_msg=message)


def _same(one: Any, other: Any, message: str) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=message)
