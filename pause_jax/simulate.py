"""``simulate(config, key) -> Result``: the round, and the scan over rounds.

``init`` and ``advance`` are the pure steps that ``simulate`` and ``sweep`` share: a run may be
advanced a few rounds at a time, with the same result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

import optax

from pause_jax.bandit import ClientStats, empty_stats, update_stats
from pause_jax.config import Learning, SimConfig, canonical, validate
from pause_jax.learning.client import LocalTraining, Variables, local_steps, train_locally
from pause_jax.learning.data import Dataset
from pause_jax.learning.partition import Partition
from pause_jax.learning.server import aggregate, all_finite, evaluate
from pause_jax.policies import Context, Observation, Selection
from pause_jax.reward import (
    additive_terms,
    cohort_problem,
    cohort_value,
    generalization_reward,
)
from pause_jax.search import exact
from pause_jax.struct import ConfigError, PyTree, static


class Streams(NamedTuple):
    """Independent key streams; `world` and `data` do not depend on the policy."""

    world: Array
    data: Array
    model: Array
    policy: Array
    training: Array
    privacy: Array


class State(NamedTuple):
    """Everything that one round hands to the next."""

    keys: Streams
    partition: Partition
    policy: Any
    stats: ClientStats
    variables: Variables | None
    opt_state: Any
    clock: Array


class Record(NamedTuple):
    """What is recorded of a round."""

    clients: Array
    latency: Array
    clock: Array
    max_spent: Array
    energy: Array
    reward: Array
    genie_reward: Array
    regret: Array
    optimality_gap: Array
    acceptance_rate: Array
    train_loss: Array
    test_loss: Array
    test_accuracy: Array
    finite: Array


class Result(PyTree):
    """The outcome of a run: a pytree, so it vmaps.

    T rounds, m slots, K clients, E evaluated rounds.

    Attributes:
      config: the config that made it.
      clients: int32 [T, m], chosen clients; -1 for an empty slot.
      latency: float [T], seconds of each round (3).
      clock: float [T], simulated seconds at the end of each round.
      max_spent: float [T], largest budget spent by any client so far, in units of ``epsilon_unit``;
        infinite without privacy.
      spent: float [K], budget spent by each client at the end.
      counts: int32 [K], rounds in which each client took part.
      data_size: int32 [K], samples of each client; ones without learning.
      energy: float [T], energy (18) of the cohort in the policy's own search; NaN if it has none.
      reward: float [T], realised reward (9).
      genie_reward: float [T], realised reward of the genie's cohort, given the same history.
      regret: float [T], C^G(genie) - C^G(cohort), (10), given the same history; >= 0.
      optimality_gap: float [T], exact optimum minus ``energy``; NaN if the policy has no search.
      acceptance_rate: float [T], of annealing; NaN otherwise.
      train_loss: float [T], mean loss of the cohort's mini-batches; NaN without learning.
      eval_rounds: int32 [E].
      test_loss, test_accuracy: float [E]; accuracy in [0, 1], NaN if the model is not finite.
      variables: final model (Flax variables); None without learning.
      first_nonfinite_round: int32, first round after which the model was not finite; 0 if none.
      epsilon_unit: what the budgets protect: ``coordinate`` (one coordinate of an update),
        ``update`` (a whole update) or ``none``.
      unnoised: names of what left clients without noise, besides sizes and latencies.
    """

    config: SimConfig
    clients: Array
    latency: Array
    clock: Array
    max_spent: Array
    spent: Array
    counts: Array
    data_size: Array
    energy: Array
    reward: Array
    genie_reward: Array
    regret: Array
    optimality_gap: Array
    acceptance_rate: Array
    train_loss: Array
    eval_rounds: Array
    test_loss: Array
    test_accuracy: Array
    variables: Variables | None
    first_nonfinite_round: Array
    epsilon_unit: str = static("none")
    unnoised: tuple[str, ...] = static(())


def simulate(config: SimConfig, key: Array, data: Dataset | None = None) -> Result:
    """Simulate federated learning under a selection policy.

    Pure: the same config and key give the same result, bit for bit. May be vmapped over keys and
    over stacked configs (``pause_jax.stack``); ``sweep`` does both and labels the result.

    Args:
      config: what to simulate.
      key: a typed key, ``jax.random.key(seed)``. Two policies with the same key meet the same world
        (latencies, availability), the same partition and the same initial model.
      data: a data set to use instead of the one that the config names.

    Returns:
      The result.

    Raises:
      ConfigError: before any work, if the config or the key cannot run.
    """
    config, data = prepare(config, data)
    check_key(key)
    return _simulate(config, data, key)


def prepare(config: SimConfig, data: Dataset | None = None) -> tuple[SimConfig, Dataset | None]:
    """Validate a config, load its data, and make its numbers arrays: the host's part of a run.

    Raises:
      ConfigError: if the config or its data set cannot run.
    """
    validate(config)
    learning = config.learning
    if learning is None:
        return canonical(config), None
    data = learning.data.load() if data is None else data
    num_train = data.y_train.shape[0]
    used = learning.data.num_train
    if used is not None and used > num_train:
        raise ConfigError(
            f"learning.data.num_train = {used}: must be <= {num_train}, the training samples that "
            f"{learning.data.name} has."
        )
    learning.partition.check_samples(_num_samples(learning, data), config.num_clients)
    _check_model(learning, data)
    return canonical(config), data


def check_key(key: Array) -> None:
    """Raise ConfigError unless ``key`` is one typed key or an array of them."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ConfigError(
            f"key = {key!r}: must be a typed JAX key. Make one with jax.random.key(0)."
        )


def _check_model(learning: Learning, data: Dataset) -> None:
    shape = data.x_train.shape[1:]
    module = learning.model.module(data.num_classes)
    sample = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    try:
        variables = jax.eval_shape(module.init, jax.random.key(0), sample)
    except Exception as error:
        raise ConfigError(
            f"learning.model = {learning.model.name}: cannot be applied to inputs of shape {shape} "
            f"of {learning.data.name} ({type(error).__name__}). Use the model mlp, or a data set "
            "with larger images."
        ) from error
    if any(0 in leaf.shape for leaf in jax.tree.leaves(variables)):
        raise ConfigError(
            f"learning.model = {learning.model.name}: inputs of shape {shape} of "
            f"{learning.data.name} are too small for it. Use the model mlp."
        )


@jax.jit
def _simulate(config: SimConfig, data: Dataset | None, key: Array) -> Result:
    state = init(config, data, key)
    state, record = advance(config, data, state, jnp.arange(1, config.num_rounds + 1))
    return finish(config, state, record)


def init(config: SimConfig, data: Dataset | None, key: Array) -> State:
    """The state before round 1: partition, model, policy."""
    keys = Streams(*jax.random.split(key, len(Streams._fields)))
    num_clients = config.num_clients
    if config.learning is None or data is None:
        ones = jnp.ones(num_clients, jnp.int32)
        partition = Partition(jnp.zeros(0, jnp.int32), 0 * ones, ones, jnp.ones(num_clients))
        variables = opt_state = None
    else:
        learning = config.learning
        partition = learning.partition.assign(
            keys.data,
            data.y_train,
            _num_samples(learning, data),
            num_clients,
            data.num_classes,
        )
        training = _training(learning, data, num_clients)
        variables = training.module.init(keys.model, data.to_input(data.x_train[:1]))
        opt_state = None
        if learning.keep_optimizer_state:
            fresh = training.optimizer.init(variables["params"])
            opt_state = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), fresh)
    policy = config.policy.build(_context(config, partition))
    return State(
        keys=keys,
        partition=partition,
        policy=policy.init(),
        stats=empty_stats(num_clients),
        variables=variables,
        opt_state=opt_state,
        clock=jnp.zeros(()),
    )


def advance(
    config: SimConfig, data: Dataset | None, state: State, rounds: Array
) -> tuple[State, Record]:
    """Play the given rounds.

    Args:
      config: canonical config.
      data: its data set.
      state: after the round before ``rounds[0]``.
      rounds: int [R], consecutive round numbers; the first round is 1.

    Returns:
      (state, record with leaves [R, ...]).
    """
    context = _context(config, state.partition)
    policy = config.policy.build(context)
    training = None
    if config.learning is not None and data is not None:
        training = _training(config.learning, data, config.num_clients)

    def play(state: State, round: Array) -> tuple[State, Record]:
        latency = config.latency.sample(
            jax.random.fold_in(state.keys.world, 2 * round), config.num_clients
        )
        present = jax.random.bernoulli(
            jax.random.fold_in(state.keys.world, 2 * round + 1),
            config.availability,
            (config.num_clients,),
        )
        # A client whose budget is spent can release nothing more, so it cannot be chosen.
        epsilon = config.privacy.epsilon(state.stats.counts + 1)
        available = present & (epsilon > 0)
        selection, info = policy.select(
            jax.random.fold_in(state.keys.policy, round), state.policy, round, available
        )
        clients, active = selection.clients, selection.weights > 0

        variables, opt_state = state.variables, state.opt_state
        loss = jnp.full(clients.shape, jnp.nan)
        if training is not None:
            assert variables is not None
            variables, opt_state, loss = _train_round(
                config, training, state, selection, epsilon[clients], round
            )

        observation = Observation(latency[clients], loss)
        stats = update_stats(
            state.stats, clients, context.min_latency / observation.latency, active
        )
        seconds = jnp.max(jnp.where(active, observation.latency, 0.0))
        clock = state.clock + seconds
        reward, genie_reward, regret = _rewards(
            config, context, state.stats, latency, selection, available, round
        )
        test_loss, test_accuracy = _evaluate_if_due(config, training, variables, round)
        record = Record(
            clients=jnp.where(active, clients, -1),
            latency=seconds,
            clock=clock,
            max_spent=jnp.max(config.privacy.spent(stats.counts)),
            energy=info.energy,
            reward=reward,
            genie_reward=genie_reward,
            regret=regret,
            optimality_gap=info.optimality_gap,
            acceptance_rate=info.acceptance_rate,
            train_loss=jnp.sum(jnp.where(active, selection.weights * loss, 0.0)),
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            finite=jnp.asarray(True) if variables is None else all_finite(variables),
        )
        new_policy = policy.update(state.policy, selection, observation)
        state = State(
            keys=state.keys,
            partition=state.partition,
            policy=new_policy,
            stats=stats,
            variables=variables,
            opt_state=opt_state,
            clock=clock,
        )
        return state, record

    return lax.scan(play, state, rounds)


def finish(config: SimConfig, state: State, record: Record) -> Result:
    """The result of a run from its final state and the record of all its rounds."""
    due = np.arange(1, config.num_rounds + 1)
    due = due[(due % config.eval_every == 0) | (due == config.num_rounds)]
    bad = ~record.finite
    rest = {k: v for k, v in (state.variables or {}).items() if k != "params"}
    return Result(
        config=config,
        clients=record.clients,
        latency=record.latency,
        clock=record.clock,
        max_spent=record.max_spent,
        spent=config.privacy.spent(state.stats.counts),
        counts=state.stats.counts,
        data_size=state.partition.size,
        energy=record.energy,
        reward=record.reward,
        genie_reward=record.genie_reward,
        regret=record.regret,
        optimality_gap=record.optimality_gap,
        acceptance_rate=record.acceptance_rate,
        train_loss=record.train_loss,
        eval_rounds=jnp.asarray(due, jnp.int32),
        test_loss=record.test_loss[due - 1],
        test_accuracy=record.test_accuracy[due - 1],
        variables=state.variables,
        first_nonfinite_round=jnp.where(jnp.any(bad), jnp.argmax(bad) + 1, 0),
        epsilon_unit=config.privacy.unit,
        unnoised=_leaf_names(rest),
    )


def _leaf_names(tree: Any) -> tuple[str, ...]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)


def _num_samples(learning: Learning, data: Dataset) -> int:
    return learning.data.num_train or int(data.y_train.shape[0])


def _context(config: SimConfig, partition: Partition) -> Context:
    num_clients = config.num_clients
    return Context(
        num_clients=num_clients,
        num_selected=config.cohort_size,
        data_size=partition.size.astype(jnp.float32),
        share=partition.share,
        reward=config.reward,
        privacy=config.privacy,
        min_latency=jnp.asarray(config.latency.min_latency),
        expected_speed=config.latency.expected_speed(num_clients),
        expected_latency=config.latency.expected_latency(num_clients),
    )


def _training(learning: Learning, data: Dataset, num_clients: int) -> LocalTraining:
    bound = learning.partition.max_size(_num_samples(learning, data), num_clients)
    max_samples = min(learning.max_steps * learning.batch_size, bound)
    make = {"adam": optax.adam, "sgd": optax.sgd}[learning.optimizer]
    return LocalTraining(
        module=learning.model.module(data.num_classes),
        optimizer=make(learning.learning_rate),
        dataset=data,
        batch_size=learning.batch_size,
        max_samples=max_samples,
        equal_steps=-(-max_samples // learning.batch_size) if learning.partition.equal else None,
        noisy_inputs=learning.partition.min_quality < 1,
    )


def _train_round(
    config: SimConfig,
    training: LocalTraining,
    state: State,
    selection: Selection,
    epsilon: Array,
    round: Array,
) -> tuple[Variables, Any, Array]:
    """Local training of the cohort, release of its updates, aggregation."""
    assert state.variables is not None
    clients, active = selection.clients, selection.weights > 0

    def client_keys(stream: Array) -> Array:
        of_round = jax.random.fold_in(stream, round)
        return jax.vmap(lambda client: jax.random.fold_in(of_round, client))(clients)

    keep = state.opt_state is not None
    if keep:
        opt_state = jax.tree.map(lambda x: x[clients], state.opt_state)
    else:
        opt_state = training.optimizer.init(state.variables["params"])
    num_steps: Array | int
    if training.equal_steps is None:
        steps = local_steps(training, state.partition.size[clients])
        num_steps = jnp.max(jnp.where(active, steps, 0))
    else:
        num_steps = training.equal_steps
    train = jax.vmap(train_locally, in_axes=(None, None, 0 if keep else None, None, 0, 0, None, None))
    updates, opt_state, loss = train(
        training,
        state.variables,
        opt_state,
        state.partition,
        clients,
        client_keys(state.keys.training),
        jax.random.fold_in(state.keys.data, 1),
        num_steps,
    )

    def release(key: Array, update: Any, epsilon: Array) -> Any:
        flat, unravel = ravel_pytree(update)
        return unravel(config.privacy.privatize(key, flat, epsilon))

    released = jax.vmap(release)(client_keys(state.keys.privacy), updates["params"], epsilon)
    # Running statistics, if the model has any, leave in the clear: Result.unnoised names them.
    updates = {**updates, "params": released}
    variables = aggregate(state.variables, updates, selection.weights)

    if keep:
        taken = jax.tree.map(
            lambda new, old: jnp.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old[clients]),
            opt_state,
            state.opt_state,
        )
        opt_state = jax.tree.map(
            lambda old, new: old.at[clients].set(new), state.opt_state, taken
        )
    return variables, opt_state if keep else None, loss


def _rewards(
    config: SimConfig,
    context: Context,
    stats: ClientStats,
    latency: Array,
    selection: Selection,
    available: Array,
    round: Array,
) -> tuple[Array, Array, Array]:
    """Realised reward of the cohort and of the genie's, and the expected regret."""
    m = context.num_selected
    g = generalization_reward(stats.counts, round, context.share, m, config.reward.beta)
    terms = additive_terms(config.reward, g, config.privacy.remaining(stats.counts), m)
    speed = context.min_latency / latency
    active = selection.weights > 0
    reward = cohort_value(speed, terms, selection.clients, active)
    if not config.track_regret:
        nan = jnp.asarray(jnp.nan)
        return reward, nan, nan
    problem = cohort_problem(context.expected_speed, config.reward, terms)
    genie, _ = exact(problem.index, problem.weight, m, available=available)
    genie_reward = cohort_value(speed, terms, genie, available[genie])
    best = cohort_value(context.expected_speed, terms, genie, available[genie])
    own = cohort_value(context.expected_speed, terms, selection.clients, active)
    return reward, genie_reward, jnp.maximum(best - own, 0.0)


def _evaluate_if_due(
    config: SimConfig, training: LocalTraining | None, variables: Variables | None, round: Array
) -> tuple[Array, Array]:
    nan = jnp.asarray(jnp.nan)
    if training is None or variables is None:
        return nan, nan
    # `round` is not batched under vmap over runs, so this stays a branch and skips the work.
    due = (round % config.eval_every == 0) | (round == config.num_rounds)
    return lax.cond(
        due,
        lambda v: evaluate(training.module, v, training.dataset),
        lambda v: (nan, nan),
        variables,
    )
