"""A policy at work where rounds overlap: its choices are those of a simulation."""

import functools
import heapq
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Asynchronous, ConfigError, SimConfig, simulate
from pause_jax.config import Equal
from pause_jax.deploy.selector import AsynchronousSelector
from pause_jax.policies import named
from pause_jax.privacy import PerCoordinateLaplace, Uniform
from pause_jax.rng import keys
from pause_jax.world.latency import LogNormal
from tests.reference import round_keys

pytestmark = pytest.mark.slow

KEY, K, STEPS = jax.random.key(4), 9, 12
CLOCK = Asynchronous(concurrency=5, buffer=3, open_slots=1)
BASE = SimConfig(
    num_clients=K, num_selected=2, num_rounds=STEPS, learning=None, latency=LogNormal(),
    availability=0.7, privacy=PerCoordinateLaplace(budget=Uniform(horizon=6.0)), clock=CLOCK,
    track_regret=False,
)  # fmt: skip


@functools.cache
def world():
    """Seconds and who is available, each [choices, K]."""
    stream = keys.streams(KEY).world

    def of_choice(t):
        chance = round_keys.availability(stream, t), BASE.availability
        seconds = BASE.latency.at(round_keys.latency(stream, t), t, K)
        return seconds, jax.random.bernoulli(*chance, (K,))

    table = jax.jit(lambda times: jax.lax.map(of_choice, times))(jnp.arange(1, 201))
    return jax.tree.map(np.asarray, table)


class Server:
    """A server that does as the guide says, in the world of a simulation.

    Attributes:
      steps: of each server step, (clients, staleness, weights) of all that were averaged.
    """

    def __init__(self, config, save=None):
        self.config, self.save = config, save
        self.selector = AsynchronousSelector(config, KEY)
        self.queue, self.order, self.took = [], itertools.count(), {}
        self.now = self.stepped = 0.0
        self.told = 0
        self.steps = []

    def start(self):
        """Start a group, if there is room for one; whether anybody started."""
        if not self.selector.free:
            return False
        seconds, present = (each[self.selector.round] for each in world())
        choice = self.selector.ask(np.flatnonzero(present))
        for k in choice.clients.tolist():
            took = float(seconds[k])
            heapq.heappush(self.queue, (self.now + took, next(self.order), k, took))
        return bool(choice.clients.size)

    def step(self):
        while self.start():
            pass
        groups = math.ceil(self.config.clock.buffer / self.config.cohort_size)
        while True:
            if self.selector.is_due():
                break
            running = [self.took.get(k, math.inf) for _, _, k, _ in self.queue]
            pace = self.config.clock.pace
            if pace is not None and running:
                due = self.stepped + max(running) / float(pace)
                if self.selector.is_due(due - self.stepped + 1e-6) and due < self.queue[0][0]:
                    self.now = max(self.now, due)
                    break
            self.now, _, client, took = heapq.heappop(self.queue)
            losses = {client: 1.0}
            self.selector.tell({client: took}, loss=losses, square_loss=losses)
            self.took[client] = took
            if groups > 1 and self.selector.free:
                self.start()
                groups -= 1
            self.told += 1
            if self.save and self.told == 8:  # a loaded one compiles anew
                self.selector.save(self.save)
                self.selector = AsynchronousSelector.load(self.save)
        average = self.selector.step()
        self.stepped = self.now
        self.steps.append(
            [x.tolist() for x in (average.clients, average.staleness, average.weights)]
        )


def check(config, save=None):
    """How many updates each step averages."""
    record = ("clock", "clients", "in_time", "staleness", "counts")
    result, server = jax.device_get(simulate(config, KEY, record=record)), Server(config, save)
    for s in range(STEPS):
        server.step()
        assert server.now == pytest.approx(float(result.clock[s]), rel=1e-5)
        clients, staleness, weights = server.steps[-1]
        row, averaged = result.clients[s], result.in_time[s]
        expected = zip(row[averaged].tolist(), result.staleness[s][averaged].tolist(), strict=True)
        assert sorted(zip(clients, staleness, strict=True)) == sorted(expected)
        # Equal data: all that started alone weigh the same, but for their staleness.
        if config.cohort_size == 1 and clients:
            factor = config.clock.staleness.factor(np.asarray(staleness, np.float32))
            np.testing.assert_allclose(weights, np.asarray(factor) / len(clients), rtol=1e-5)
    np.testing.assert_array_equal(server.selector.counts, result.counts)
    assert server.selector.version == STEPS
    assert np.max(result.staleness) >= 2
    return [len(clients) for clients, *_ in server.steps]


# Buffers are of one size: a server's small programs are the same then.
PAIRS = Asynchronous(concurrency=4, buffer=3, open_slots=2)
PACE = Asynchronous(concurrency=4, buffer=3, open_slots=1, pace=2.5)
BOUNDED = CLOCK.replace(max_staleness=1.0, staleness=Equal())


# They are told before each decision; one that reads losses, as Pisces, at server steps.
def test_fed_with_a_simulation_it_chooses_what_simulate_chooses():
    averaged = check(BASE.replace(policy=named("round_robin"), clock=BOUNDED))
    assert min(averaged) < max(averaged) == 3, "some updates are too stale"


def test_saved_and_loaded_after_some_answers_it_goes_on(tmp_path):
    check(BASE.replace(policy=named("pause_useful_rate"), clock=PAIRS), tmp_path / "selector.npz")


def test_where_it_keeps_a_pace_it_steps_without_a_full_buffer_too(tmp_path):
    config = BASE.replace(policy=named("pisces"), clock=PACE)
    averaged = check(config, tmp_path / "selector.npz")
    assert min(averaged) < max(averaged) == 3


def test_a_start_is_charged_unless_it_was_idle_and_a_failure_is_an_answer_without_an_update():
    selector = AsynchronousSelector(BASE.replace(policy=named("random")), KEY)
    under_way = [int(selector.ask().clients[0]) for _ in range(5)]
    assert selector.counts.sum() == 5
    assert selector.free == 0
    first, second, third, fourth, _ = under_way
    selector.tell({first: 1.0}, failed={second: 9.0}, idle=[third])
    assert selector.counts[third] == 0
    assert selector.free == 3
    assert not selector.is_due()
    selector.tell({fourth: 2.0})
    assert selector.is_due()
    average = selector.step()
    assert sorted(average.clients.tolist()) == sorted([first, fourth])
    np.testing.assert_allclose(average.weights, 0.5)
    assert not selector.is_due()
    assert selector.step().clients.size == 0  # nothing came


def asked(number=5):
    selector = AsynchronousSelector(BASE.replace(policy=named("random")), KEY)
    return selector, [int(selector.ask().clients[0]) for _ in range(number)]


def test_wrong_use_is_one_clear_error():
    selector, clients = asked()
    for act, words in (
        (lambda: selector.ask(), "no group of 1 has room; wait for an answer"),
        (lambda: selector.tell(dict.fromkeys(clients, 1.0)), "5 answers, and the buffer has room"),
        (lambda: selector.tell({clients[0]: -1.0}), "must be finite and > 0"),
        (lambda: selector.tell({clients[0]: 1.0, 9: 1.0}), "was not under way"),
        (lambda: selector.ask(answers={0: 1.0}), "asks nobody"),
    ):
        with pytest.raises(ConfigError, match=words):
            act()
    assert selector.free == 0  # nothing of it was reported
    selector.tell(dict.fromkeys(clients[:3], 1.0))
    with pytest.raises(ConfigError, match="the buffer is full: call step"):
        selector.ask()
    with pytest.raises(ConfigError, match="asks clients before it chooses"):
        AsynchronousSelector(BASE.replace(policy=named("fedcs")), KEY)
    pisces = AsynchronousSelector(BASE.replace(policy=named("pisces")), KEY)
    with pytest.raises(ConfigError, match="pisces: reads"):
        pisces.tell({int(pisces.ask().clients[0]): 1.0})
