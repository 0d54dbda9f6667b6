"""One federated round, and the scan over rounds.

``init`` and ``advance`` are the pure steps that ``simulate`` and ``sweep`` share: a run may be
advanced a few rounds at a time, with the same result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from pause_jax.bandit import ClientStats, empty_stats, update_stats
from pause_jax.config import Learning, SimConfig
from pause_jax.learning.client import LocalTraining, Variables, local_steps, train_locally
from pause_jax.learning.data import Dataset
from pause_jax.learning.partition import Partition
from pause_jax.learning.server import aggregate, all_finite, evaluate
from pause_jax.policies import Context, Observation, Selection
from pause_jax.reward import additive_terms, cohort_problem, cohort_value, generalization_reward
from pause_jax.search import exact


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
            num_samples(learning, data),
            num_clients,
            data.num_classes,
        )
        training = _training(learning, data, num_clients)
        variables = dict(training.module.init(keys.model, data.to_input(data.x_train[:1])))
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
            train_loss=jnp.where(
                jnp.any(active),
                jnp.sum(jnp.where(active, selection.weights * loss, 0.0)),
                jnp.nan,
            ),
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


def num_samples(learning: Learning, data: Dataset) -> int:
    """Training samples in use."""
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
    bound = learning.partition.max_size(num_samples(learning, data), num_clients)
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
    train = jax.vmap(
        train_locally, in_axes=(None, None, 0 if keep else None, None, 0, 0, None, None)
    )
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

        def store(old: Array, new: Array) -> Array:
            took_part = active.reshape(-1, *[1] * (new.ndim - 1))
            return old.at[clients].set(jnp.where(took_part, new, old[clients]))

        opt_state = jax.tree.map(store, state.opt_state, opt_state)
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
