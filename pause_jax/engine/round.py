"""One federated round, and the scan over rounds.

``init`` and ``advance`` are the pure steps that ``simulate`` and ``sweep`` share: a run may be
advanced a few rounds at a time, with the same result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from pause_jax import keys
from pause_jax.bandit import ClientStats, empty_stats, update_stats
from pause_jax.config import SimConfig
from pause_jax.engine.recorder import Record, evaluate_if_due, rewards
from pause_jax.learning.client import LocalLoss, LocalTraining, Variables
from pause_jax.learning.cohort import (
    ClientKeys,
    Trained,
    local_training,
    max_size,
    num_samples,
    query_losses,
    train_cohort,
)
from pause_jax.learning.data import Dataset
from pause_jax.learning.partition import Partition
from pause_jax.learning.server import all_finite
from pause_jax.policies import Answer, Context, Observation, Query, Selection, check_selected


class State(NamedTuple):
    """Everything that one round hands to the next."""

    keys: keys.Streams
    partition: Partition
    policy: Any
    stats: ClientStats
    queried: Array
    variables: Variables | None
    opt_state: Any
    clock: Array


def init(config: SimConfig, data: Dataset | None, key: Array) -> State:
    """The state before round 1: partition, model, policy."""
    streams = keys.streams(key)
    num_clients = config.num_clients
    if config.learning is None or data is None:
        ones = jnp.ones(num_clients, jnp.int32)
        partition = Partition(jnp.zeros(0, jnp.int32), 0 * ones, ones, jnp.ones(num_clients))
        variables = opt_state = None
    else:
        learning = config.learning
        partition = learning.partition.assign(
            streams.data,
            data.y_train,
            num_samples(learning, data),
            num_clients,
            data.num_classes,
        )
        training = local_training(learning, data, num_clients)
        variables = dict(training.module.init(streams.model, data.to_input(data.x_train[:1])))
        opt_state = None
        if learning.keep_optimizer_state:
            fresh = training.optimizer.init(variables["params"])
            opt_state = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), fresh)
    policy = config.policy.build(_context(config, data, partition, variables))
    return State(
        keys=streams,
        partition=partition,
        policy=policy.init(),
        stats=empty_stats(num_clients),
        queried=jnp.zeros(num_clients, jnp.int32),
        variables=variables,
        opt_state=opt_state,
        clock=jnp.zeros(()),
    )


def advance(
    config: SimConfig,
    data: Dataset | None,
    state: State,
    rounds: Array,
    mesh: Mesh | None = None,
) -> tuple[State, Record]:
    """Play the given rounds.

    Args:
      config: canonical config.
      data: its data set.
      state: after the round before ``rounds[0]``.
      rounds: int [R], consecutive round numbers; the first round is 1.
      mesh: devices that share each cohort's training, with the one axis ``client``.

    Returns:
      (state, record with leaves [R, ...]).
    """
    context = _context(config, data, state.partition, state.variables)
    policy = config.policy.build(context)
    training = None
    if config.learning is not None and data is not None:
        training = local_training(config.learning, data, config.num_clients)

    def play(state: State, round: Array) -> tuple[State, Record]:
        world_key = keys.latency(state.keys.world, round)
        latency = config.latency.sample(world_key, config.num_clients)
        present = jax.random.bernoulli(
            keys.availability(state.keys.world, round),
            config.availability,
            (config.num_clients,),
        )
        epsilon = config.privacy.budget.epsilon(state.stats.counts + 1)
        available = present & (epsilon > 0) if config.when_spent == "exclude" else present
        policy_key = keys.choice(state.keys.policy, round)
        query_seconds = jnp.zeros(())
        if policy.query is not None:
            features = config.latency.features(world_key, config.num_clients)
            ask_key, policy_key = keys.question_and_choice(state.keys.policy, round)
            state, query_seconds = _query(
                config, training, policy.query, state, ask_key, round, available, latency, features
            )
        selection, info = check_selected(
            policy.select(policy_key, state.policy, round, available), context.num_selected
        )
        clients, active = selection.clients, selection.active

        sent = selection
        if config.when_spent == "silent":
            sent = without_silent(selection, epsilon[clients])
        trained = _train(config, training, state, sent, epsilon[clients], round, mesh)
        observation = Observation(
            latency[clients], trained.loss.mean, trained.loss.square, trained.released
        )
        stats = update_stats(
            state.stats, clients, context.min_latency / observation.latency, active
        )
        seconds = query_seconds + jnp.max(jnp.where(active, observation.latency, 0.0))
        clock = state.clock + seconds
        reward, genie_reward, regret = rewards(
            config, context, state.stats, latency, selection, available, round
        )
        test_loss, test_accuracy = evaluate_if_due(config, training, trained.variables, round)
        record = Record(
            clients=jnp.where(active, clients, -1),
            latency=seconds,
            query_seconds=query_seconds,
            clock=clock,
            max_spent=jnp.max(config.privacy.budget.spent(stats.counts)),
            energy=info.energy,
            reward=reward,
            genie_reward=genie_reward,
            regret=regret,
            optimality_gap=info.optimality_gap,
            acceptance_rate=info.acceptance_rate,
            train_loss=jnp.where(
                jnp.any(sent.active) & (training is not None),
                jnp.sum(jnp.where(sent.active, sent.weights * trained.loss.mean, 0.0)),
                jnp.nan,
            ),
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            finite=jnp.asarray(True) if training is None else all_finite(trained.variables),
        )
        new_policy = policy.update(state.policy, selection, observation)
        state = State(
            keys=state.keys,
            partition=state.partition,
            policy=new_policy,
            stats=stats,
            queried=state.queried,
            variables=trained.variables,
            opt_state=trained.opt_state,
            clock=clock,
        )
        return state, record

    return lax.scan(play, state, rounds)


def _context(
    config: SimConfig, data: Dataset | None, partition: Partition, variables: Variables | None
) -> Context:
    num_clients = config.num_clients
    data_size = partition.size.astype(jnp.float32)
    local_samples, update_size = data_size, 0
    if config.learning is not None and data is not None and variables is not None:
        bound = local_training(config.learning, data, num_clients).max_samples
        local_samples = jnp.minimum(data_size, bound)
        update_size = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    return Context(
        num_clients=num_clients,
        num_selected=config.cohort_size,
        num_rounds=config.num_rounds,
        update_size=update_size,
        num_features=config.latency.num_features,
        data_size=data_size,
        local_samples=local_samples,
        share=partition.share,
        reward=config.reward,
        privacy=config.privacy,
        min_latency=jnp.asarray(config.latency.min_latency),
        expected_speed=config.latency.expected_speed(num_clients),
        expected_latency=config.latency.expected_latency(num_clients),
    )


def _query(
    config: SimConfig,
    training: LocalTraining | None,
    query: Query,
    state: State,
    key: Array,
    round: Array,
    available: Array,
    latency: Array,
    features: Array,
) -> tuple[State, Array]:
    """Put the policy's question to the clients; returns the state and the seconds it took."""
    clients, asked = query.ask(key, state.policy, round, available)
    loss = jnp.ones(clients.shape)
    if query.wants == "loss" and training is not None:
        assert config.learning is not None
        assert state.variables is not None
        loss = query_losses(
            training,
            state.variables,
            state.partition,
            clients,
            keys.of_clients(keys.answers(state.keys.training, round), clients),
            state.keys.inputs,
            query.batch_size,
            max_size(config.learning, training.dataset, config.num_clients),
        )
    told = query.hear(state.policy, clients, asked, Answer(loss, features[clients]))
    waited = jnp.where(asked, query.seconds(latency)[clients], 0.0)
    queried = state.queried.at[clients].add(asked.astype(jnp.int32))
    return state._replace(policy=told, queried=queried), jnp.max(waited)


def without_silent(selection: Selection, epsilon: Array) -> Selection:
    """The slots that send an update; the server averages what it receives."""
    weights = jnp.where(epsilon > 0, selection.weights, 0.0)
    total, received = jnp.sum(selection.weights), jnp.sum(weights)
    return selection._replace(weights=weights * total / jnp.where(received > 0, received, 1.0))


def _train(
    config: SimConfig,
    training: LocalTraining | None,
    state: State,
    selection: Selection,
    epsilon: Array,
    round: Array,
    mesh: Mesh | None,
) -> Trained:
    """A round of training; without learning nothing changes, and losses are 1."""
    clients = selection.clients
    if training is None or state.variables is None:
        loss = LocalLoss(jnp.ones(clients.shape), jnp.ones(clients.shape))
        return Trained(state.variables, state.opt_state, loss, jnp.zeros((clients.size, 0)))
    return train_cohort(
        training,
        config.privacy,
        state.variables,
        state.opt_state,
        state.partition,
        clients,
        selection.weights,
        epsilon,
        ClientKeys(
            keys.of_clients(keys.cohort(state.keys.training, round), clients),
            keys.of_clients(keys.cohort(state.keys.privacy, round), clients),
            state.keys.inputs,
        ),
        mesh,
    )
