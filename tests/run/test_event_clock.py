"""Rounds that overlap, against a queue of events in plain Python."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Asynchronous, SimConfig, simulate
from pause_jax.bandit import no_info, store_active
from pause_jax.config import Polynomial
from pause_jax.learning import UniformWork
from pause_jax.policies import (
    Context,
    Fastest,
    Pause,
    Policy,
    PolicyConfig,
    Random,
    RoundRobin,
    by_data_size,
)
from pause_jax.privacy import NoPrivacy, PerCoordinateLaplace, Uniform
from pause_jax.rng import keys
from pause_jax.world.latency import Network, SpeedNormal
from tests.reference.event_queue import EventQueue
from tests.reference.local_sgd import Learner
from tests.run.test_whole_round import KEY, LEAN
from tests.run.test_whole_round import SGD as LEARNING


class Largest(PolicyConfig):
    """The clients of the largest number, later ones first among equals."""

    start: ClassVar[float] = 0.0

    def number(self, numbers, clients, told, observation):
        """The numbers [K] after an observation."""
        raise NotImplementedError

    def build(self, context: Context) -> Policy:
        def select(key, numbers, round, available):
            order = jnp.arange(context.num_clients)
            score = jnp.where(available, numbers + 1e-3 * order, -jnp.inf)
            clients = jnp.lexsort((-order, -score))[: context.num_selected]
            return by_data_size(clients.astype(jnp.int32), available, context), no_info()

        def update(numbers, selection, observation):
            return self.number(numbers, selection.clients, selection.active, observation)

        return Policy(lambda: jnp.full(context.num_clients, self.start), select, update)


class LargestLoss(Largest):
    """By the loss that they last reported; those that never did come first."""

    name: ClassVar[str] = "largest_loss"
    reads: ClassVar[tuple[str, ...]] = ("loss",)
    start: ClassVar[float] = jnp.inf

    def number(self, numbers, clients, told, observation):
        return store_active(numbers, clients, observation.loss, told & observation.received)


class LeastStale(Largest):
    """By the least staleness of all answers, as far as it has been told of them."""

    name: ClassVar[str] = "least_stale"

    def number(self, numbers, clients, told, observation):
        return numbers.at[clients].add(-jnp.where(told, observation.staleness, 0))


BASE = LEAN.replace(
    num_clients=8, num_selected=1, num_rounds=7, eval_every=7, availability=1.0, learning=LEARNING
)


def at(concurrency: int, buffer: int, open_slots: int | None = None, **rest) -> Asynchronous:
    return Asynchronous(concurrency=concurrency, buffer=buffer, open_slots=open_slots, **rest)


SPENT = PerCoordinateLaplace(sensitivity=0.03, budget=Uniform(total_epsilon=900.0, horizon=2.0))
WITHOUT = BASE.replace(learning=None)
CONFIGS = {
    "fedbuff": BASE.replace(policy=Random(), clock=at(5, 3, staleness=Polynomial(exponent=1.0))),
    "absences": BASE.replace(policy=Random(), availability=0.35, clock=at(5, 3)),
    "everybody_under_way": WITHOUT.replace(
        policy=Random(),
        latency=SpeedNormal(),
        clock=at(8, 2, staleness=Polynomial(exponent=0.0), max_staleness=1.0),
    ),
    "work": BASE.replace(
        policy=Random(),
        privacy=NoPrivacy(),
        dropout=0.3,
        clock=at(5, 3),
        latency=Network(download_bytes=1e4, upload_bytes=1e4),
        learning=LEARNING.replace(
            epochs=3.0, max_steps=60, work=UniformWork(low=0.1, high=1.2), proximal=0.1
        ),
    ),
    # The buffer is above the concurrency.
    "losses": BASE.replace(policy=LargestLoss(), clock=at(2, 3)),
    "more_slots_than_buffer": BASE.replace(policy=Pause(), clock=at(6, 2, 3)),
    "pairs": BASE.replace(
        policy=Random(), availability=0.4, dropout=0.3, num_rounds=9, clock=at(5, 3, 2)
    ),
    "paced_pairs": BASE.replace(
        policy=Random(), num_rounds=14, dropout=0.3, clock=at(4, 8, 2, pace=3.0)
    ),
    "spent_dropped": BASE.replace(
        policy=Fastest(), privacy=SPENT, when_spent="drop", clock=at(4, 3)
    ),
    "moments": BASE.replace(
        policy=Random(),
        privacy=NoPrivacy(),
        dropout=0.3,
        clock=at(5, 3, staleness=Polynomial(exponent=0.0)),
        learning=LEARNING.replace(optimizer="adam", learning_rate=0.01, keep_optimizer_state=True),
    ),
    "one_under_way": WITHOUT.replace(policy=Random(), clock=at(1, 2)),
    "round_robin": WITHOUT.replace(policy=RoundRobin(), clock=at(5, 3)),
    # The buffer is the concurrency.
    "stale": WITHOUT.replace(policy=LeastStale(), num_rounds=12, clock=at(3, 3)),
    "spent_excluded_half_cohorts": WITHOUT.replace(
        policy=Fastest(), privacy=SPENT, num_rounds=9, clock=at(4, 2, 4)
    ),
}


@functools.cache
def learner(name: str) -> Learner:
    """The oracle's, of which all configs of one learning have one."""
    learning = CONFIGS[name].learning
    return Learner(BASE.replace(learning=learning), keys.streams(KEY), learning.data.load())


def queue_of(config: SimConfig) -> EventQueue:
    if config.learning is not None and not config.learning.work.equal:
        return EventQueue(config, KEY, config.learning.data.load()).play()
    queue = EventQueue(config.replace(learning=None), KEY)
    queue.config = config
    if config.learning is not None:
        own = learner("moments" if config.learning.keep_optimizer_state else "fedbuff")
        queue.learner, queue.size = own, [len(held) for held in own.held]
        queue.quality, queue.model = own.quality, own.initial
    return queue.play()


RECORD = ("clients", "staleness", "in_time", "answered", "took", "clock", "counts")


REPEATS = ("more_slots_than_buffer", "pairs", "paced_pairs")  # others have the same parts


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.nightly] * (x in REPEATS)) for x in CONFIGS]
)
def test_run_matches_the_event_queue(name):
    config = CONFIGS[name]
    result, queue = jax.device_get(simulate(config, KEY, record=RECORD)), queue_of(config)
    for s, answers in enumerate(queue.answers):
        clients = result.clients[s]
        here = clients >= 0
        order = np.argsort(clients[here])
        expected = sorted(answers)
        ours = {
            "client": clients,
            "staleness": result.staleness[s],
            "averaged": result.in_time[s],
        }
        for field, values in ours.items():
            wanted = [getattr(a, field) for a in expected]
            assert values[here][order].tolist() == wanted, (s, field)
        for field, values in {"at": result.answered[s], "took": result.took[s]}.items():
            wanted = [getattr(a, field) for a in expected]
            np.testing.assert_allclose(values[here][order], wanted, rtol=1e-5)
    np.testing.assert_allclose(result.clock, queue.seconds, rtol=1e-5)
    assert result.counts.tolist() == queue.counts
    if queue.learner is not None:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            result.variables,
            queue.learner.variables(queue.model),
        )
