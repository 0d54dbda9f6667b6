"""An asynchronous server, slow and obvious: one event after another from a queue (``heapq``).

Written from ``docs/guides/event_clock.md``. A client trains alone, when it starts, from the model
as it is then. What is shared with the oracle of rounds (choices, local training, the mechanism) is
in ``simulator``.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from pause_jax.rng import keys
from tests.reference import oracles, round_keys
from tests.reference.local_sgd import Model
from tests.reference.sgd import Moments
from tests.reference.simulator import Choice, Simulator


class Start(NamedTuple):
    """A client under way."""

    client: int
    at: float
    finish: float
    version: int  # server steps that its model had seen
    weight: float  # of its group's, which sum to one
    peers: int  # size of its group
    sends: bool
    update: Any  # (theta, rest), released; None without learning
    loss: float
    staleness: int = 0  # of its answer


class Answer(NamedTuple):
    """What a server step records of a client."""

    client: int
    at: float
    took: float
    staleness: int
    averaged: bool
    weight: float  # by which the model moved


class EventQueue(Simulator):
    """One run of a config whose clock is asynchronous.

    Attributes:
      answers: of each server step, in the order of their coming.
      seconds: simulated, at each server step.
      losses: the last loss that each client reported, for the policy that reads it.
    """

    def __init__(self, config, key, data=None):
        super().__init__(config, key, data)
        clock = config.clock
        self.concurrency, self.buffer_size = clock.concurrency, clock.buffer
        self.m = clock.open_slots or config.num_selected
        self.groups = math.ceil(self.buffer_size / self.m)
        self.queue: list[tuple[float, int, Start]] = []
        self.heard_counts = [0] * self.num_clients
        self.losses = [math.inf] * self.num_clients
        self.decisions = self.order = self.version = 0
        self.buffer: list[Start] = []
        self.answers: list[list[Answer]] = []
        self.seconds: list[float] = []
        self.unheard: list[Start] = []
        self.stepped = 0.0
        self.took: dict[int, float] = {}  # by each client's last answer
        self.stale = [0] * self.num_clients  # server steps, over all answers that were reported
        self.reads_losses = config.policy.name == "largest_loss"

    def play(self) -> EventQueue:
        """Play all server steps."""
        for _ in range(self.config.num_rounds):
            self.step()
        return self

    def step(self) -> None:
        """From one server step to the next."""
        while self.free() >= self.m and self.ask():
            pass
        groups, asked = 1, True
        while len(self.buffer) < self.buffer_size:
            if not asked and groups < self.groups and self.free() >= self.m:
                self.ask()
                groups, asked = groups + 1, True
            if not self.queue:
                break
            due = self.due()
            if self.buffer and due < self.queue[0][0]:
                self.clock = due
                break
            self.clock, _, start = heapq.heappop(self.queue)
            self.took[start.client] = start.finish - start.at
            start = start._replace(staleness=self.version - start.version)
            self.buffer.append(start)
            self.unheard.append(start)
            asked = False
        self.average()
        self.report()
        self.seconds.append(self.clock)
        self.stepped = self.clock

    def due(self) -> float:
        """When a server that keeps a pace steps without waiting for another answer."""
        pace = self.config.clock.pace
        if pace is None:
            return math.inf
        longest = max(self.took.get(start.client, math.inf) for _, _, start in self.queue)
        return max(self.clock, self.stepped + longest / float(pace))

    def free(self) -> int:
        return self.concurrency - len(self.queue)

    def ask(self) -> bool:
        """Start a group; whether anybody started."""
        if not self.reads_losses:
            self.report()
        config, everyone = self.config, range(self.num_clients)
        self.decisions += 1
        t, world = self.decisions, self.streams.world
        self.factor_of = self.factors(t)
        model = self.latency_at(self.factor_of)
        latency = model.sample(round_keys.latency(world, t), self.num_clients)
        present = jax.random.bernoulli(
            round_keys.availability(world, t), config.availability, (self.num_clients,)
        )
        lost = jax.random.bernoulli(
            round_keys.dropout(world, t), config.dropout or 0.0, (self.num_clients,)
        )
        epsilon = [self.epsilon(count + 1) for count in self.counts]
        engaged = {start.client for _, _, start in self.queue} | {s.client for s in self.buffer}
        available = [
            k
            for k in everyone
            if present[k] and k not in engaged and (epsilon[k] > 0 or config.when_spent == "drop")
        ]
        choice = self.choose(t, available, latency, self.added(t))
        total = sum(choice.weight.values())
        for k in choice.cohort:
            sends = epsilon[k] > 0 and not (config.dropout is not None and bool(lost[k]))
            update, loss = self.trained(k, epsilon[k]) if sends and self.learner else (None, 1.0)
            start = Start(
                client=k,
                at=self.clock,
                finish=self.clock + float(latency[k]),
                version=self.version,
                weight=choice.weight[k] / total,
                peers=len(choice.cohort),
                sends=sends,
                update=update,
                loss=loss,
            )
            heapq.heappush(self.queue, (start.finish, self.order, start))
            self.order += 1
            self.counts[k] += 1
        return bool(choice.cohort)

    def trained(self, k: int, epsilon: float) -> tuple[Any, float]:
        """What the server will receive of a client that starts now, and its loss."""
        old, number = self.model, self.version + 1
        before = self.moments.get(k, Moments())
        local, moments, loss = self.learner.train(old, k, number, before, self.factor_of[k])
        if self.config.learning.keep_optimizer_state:
            self.moments[k] = moments
        key = jax.random.fold_in(round_keys.cohort(self.streams.privacy, number), k)
        clear, update = np.split(local.theta - old.theta, [self.learner.in_the_clear])
        sent = np.concatenate([clear, self.release(key, update, epsilon)])
        rest = jax.tree.map(lambda new, before: new - before, local.rest, old.rest)
        return (sent, rest), loss

    def average(self) -> None:
        """Move the model by what is in the buffer."""
        clock, number = self.config.clock, len(self.buffer)
        stale = [start.staleness for start in self.buffer]
        bound = math.inf if clock.max_staleness is None else float(clock.max_staleness)
        plain = [start.weight * start.peers / number for start in self.buffer]
        comes = [start.sends and s <= bound for start, s in zip(self.buffer, stale, strict=True)]
        received = sum(w for w, there in zip(plain, comes, strict=True) if there)
        answers = []
        for start, s, w, there in zip(self.buffer, stale, plain, comes, strict=True):
            weight = w * sum(plain) / received * self.factor(s) if there else 0.0
            if there and self.learner:
                theta, rest = start.update
                moved = jax.tree.map(
                    lambda x, d, weight=weight: x + weight * d, self.model.rest, rest
                )
                self.model = Model(self.model.theta + weight * theta, moved)
            took = start.finish - start.at
            answers.append(Answer(start.client, start.finish, took, s, there, weight))
        self.answers.append(answers)
        self.averaged = {
            start.client: there for start, there in zip(self.buffer, comes, strict=True)
        }
        self.version, self.buffer = self.version + 1, []

    def factor(self, staleness: int) -> float:
        """How much less a stale update counts."""
        return (1 + staleness) ** -float(self.config.clock.staleness.exponent)

    def report(self) -> None:
        """Tell the policy of the answers that it has not been told of."""
        for start in self.unheard:
            k, took = start.client, start.finish - start.at
            speed = float(self.config.latency.min_latency) / took
            self.stale[k] += start.staleness
            self.heard_counts, self.mean_speed = oracles.update(
                self.heard_counts, self.mean_speed, [k], [speed]
            )
            if self.reads_losses and self.averaged[k]:
                self.losses[k] = start.loss
        if self.unheard and self.config.policy.name == "round_robin":
            turns = [(s.client - self.cursor) % self.num_clients for s in self.unheard]
            self.cursor = (self.cursor + max(turns) + 1) % self.num_clients
        self.unheard = []

    def choose(self, t: int, available: list[int], latency, added) -> Choice:
        """The policies of rounds; random; and one that reads losses."""
        name = self.config.policy.name
        key = keys.choice(self.streams.policy, t)
        if name == "random":
            score = jax.random.gumbel(jax.random.split(key)[0], (self.num_clients,))
        elif name in ("largest_loss", "least_stale"):
            known = self.losses if name == "largest_loss" else [-s for s in self.stale]
            score = jax.numpy.asarray(known) + 1e-3 * jax.numpy.arange(self.num_clients)
        else:
            cursor = self.cursor
            choice = super().choose(t, available, latency, added)
            self.cursor = cursor  # it moves with the answers
            return choice
        cohort = sorted(available, key=lambda k: (-float(score[k]), -k))[: self.m]
        return Choice(tuple(cohort), {k: self.size[k] for k in cohort})
