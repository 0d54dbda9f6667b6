"""A whole run, slow and obvious: Algorithm 1 of PAUSE in plain Python, one client after another.

Of the library it takes the draws alone (named keys, latencies, partition, initial model), and the
noise of the mechanisms without Laplace in their name. All else is written out here, in
``local_sgd`` and in ``oracles``, from the papers' equations.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax.rng import keys
from pause_jax.world.latency import Network
from tests.reference import oracles, round_keys, threefry
from tests.reference.local_sgd import Learner, Model
from tests.reference.sgd import Moments

TIE = 1e-6


class Choice(NamedTuple):
    """A cohort, its aggregation weights up to a factor, (18), and seconds spent on questions."""

    cohort: tuple[int, ...]
    weight: dict[int, float]
    energy: float = math.nan
    waited: float = 0.0


@functools.partial(jax.jit, static_argnums=1)
def expectations(latency, num_clients):
    """Expected speed and seconds of each client."""
    return latency.expected_speed(num_clients), latency.expected_latency(num_clients)


class Simulator:
    """One run of a config.

    Attributes:
      counts, mean_speed: T_k and (11), through the round before.
      size, quality: |D_k| and q_k.
      model: the global model theta.
      heard: the clients that sent an update, of every round.
    """

    def __init__(self, config, key, data=None):
        self.config, self.streams = config, keys.streams(key)
        self.num_clients = config.num_clients
        self.m = self.num_clients if config.policy.name == "all" else config.num_selected
        self.epsilon = schedule(config.privacy)
        self.privatize = jax.jit(config.privacy.privatize)
        self.counts, self.mean_speed = [0] * self.num_clients, [0.0] * self.num_clients
        self.queried, self.moments, self.clock, self.cursor = [0] * self.num_clients, {}, 0.0, 0
        self.heard: list[list[int]] = []
        self.learner, self.size = None, [1] * self.num_clients
        self.quality = [1.0] * self.num_clients
        if config.learning is not None:
            self.learner = Learner(config, self.streams, data)
            self.size = [len(held) for held in self.learner.held]
            self.quality, self.model = self.learner.quality, self.learner.initial
        each = [expectations(self.latency_at(level), self.num_clients) for level in self.levels()]
        self.expected_speed, self.expected_latency = np.mean(np.asarray(each), axis=0).tolist()

    def factors(self, t: int) -> np.ndarray:
        """By what each client's work of round t is multiplied."""
        law = self.config.learning and self.config.learning.work
        if not law or law.equal:
            return np.ones(self.num_clients)
        key = round_keys.local_work(self.streams.world, t)
        return np.asarray(law.factors(key, self.num_clients))

    def levels(self) -> list[np.ndarray]:
        """Equally likely factors, for expectations: the middles of eighths of a uniform law."""
        law = self.config.learning and self.config.learning.work
        if not law or law.equal:
            return [np.ones(self.num_clients)]
        if law.name == "per_client":
            return [np.asarray(law.values)]
        middles = (np.arange(8) + 0.5) / 8
        low, high = float(law.low), float(law.high)
        return [np.full(self.num_clients, low + (high - low) * middle) for middle in middles]

    def latency_at(self, factors: np.ndarray):
        """The latency model of clients that do so much work."""
        latency = self.config.latency
        if not isinstance(latency, Network):
            return latency
        samples = []
        for k, factor in enumerate(factors):
            per_pass, total = self.learner.steps(k, factor)
            used = min(self.size[k], self.learner.most)
            passes, rest = divmod(total, per_pass)
            samples.append(passes * used + min(rest * self.config.learning.batch_size, used))
        return latency.replace(samples=jnp.asarray(samples, jnp.float32))

    def run(self) -> dict[str, Any]:
        """Every recorded quantity, by its name in ``Result``."""
        rounds: list[dict[str, Any]] = []
        planned = self.config.num_rounds
        while len(rounds) < planned and not self.is_over():
            rounds.append(self.round(len(rounds) + 1))
        last, due = len(rounds), [t for t in range(1, planned + 1) if self.is_planned(t)]
        nothing = {name: np.full_like(x, -1 if name == "clients" else math.nan)
                   for name, x in rounds[0].items()}  # fmt: skip
        rounds += [nothing] * (planned - last)
        series = {name: np.asarray([row[name] for row in rounds]) for name in rounds[0]}
        # An end by the clock is evaluated too, and stands where the next evaluation would.
        due = [last if before < last < t else t for before, t in itertools.pairwise([0, *due])]
        for name in ("test_loss", "test_accuracy"):
            series[name] = series[name][[t - 1 for t in due]]
        totals = {
            "eval_rounds": [t if t <= last else -1 for t in due],
            "num_played": last,
            "spent": [self.spent(count) for count in self.counts],
            "counts": self.counts,
            "queried": self.queried,
            "data_size": self.size,
        }
        model = self.learner.variables(self.model) if self.learner else None
        return series | {name: np.asarray(x) for name, x in totals.items()} | {"variables": model}

    def round(self, t: int) -> dict[str, Any]:
        """Play one round of Algorithm 1 of PAUSE."""
        config, everyone = self.config, range(self.num_clients)
        world_key = round_keys.latency(self.streams.world, t)
        self.factor_of = self.factors(t)
        model = self.latency_at(self.factor_of)
        latency = [float(x) for x in model.sample(world_key, self.num_clients)]
        present = jax.random.bernoulli(
            round_keys.availability(self.streams.world, t), config.availability, (self.num_clients,)
        )
        epsilon = [self.epsilon(count + 1) for count in self.counts]
        available = [
            k for k in everyone if present[k] and (epsilon[k] > 0 or config.when_spent == "drop")
        ]

        # 1, 2. Indices from the history through t - 1, and the choice.
        added = self.added(t)
        choice = self.choose(t, available, latency, added)
        cohort = choice.cohort

        # 3, 4, 5. Local training, release, aggregation (2) of what arrives.
        senders = [k for k in cohort if epsilon[k] > 0]
        total = sum(choice.weight[k] for k in senders)
        weight = {k: choice.weight[k] / total for k in senders}
        self.heard.append(senders)
        train_loss = math.nan
        if self.learner and senders:
            train_loss = self.learn(t, weight, epsilon)

        # 6. The clock (3).
        seconds = choice.waited + max((latency[k] for k in cohort), default=0.0)
        self.clock += seconds

        # Reward (9) and the genie's (10), (15): with the history that the policy had.
        speed = [float(config.latency.min_latency) / tau for tau in latency]
        expected = self.expected_speed
        genie, best = best_cohort(expected, added, available, self.m)

        # 7. Statistics (12) and budget.
        self.counts, self.mean_speed = oracles.update(
            self.counts, self.mean_speed, cohort, [speed[k] for k in cohort]
        )
        test_loss, test_accuracy = math.nan, math.nan
        if self.learner and (self.is_planned(t) or self.is_over()):
            test_loss, test_accuracy = self.learner.evaluate(self.model)
        return {
            "clients": sorted([*cohort, *[-1] * (self.m - len(cohort))]),
            "latency": seconds,
            "query_seconds": choice.waited,
            "clock": self.clock,
            "max_spent": max(self.spent(count) for count in self.counts),
            "energy": choice.energy,
            "reward": value(speed, added, cohort),
            "genie_reward": value(speed, added, genie),
            "regret": best - value(expected, added, cohort) if cohort else math.nan,
            "train_loss": train_loss,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
        }

    def is_planned(self, t: int) -> bool:
        """Whether round t is evaluated, wherever the clock ends the run."""
        return t % self.config.eval_every == 0 or t == self.config.num_rounds

    def is_over(self) -> bool:
        return self.clock >= (self.config.max_seconds or math.inf)

    def spent(self, count: int) -> float:
        """Budget spent after so many participations, summed term by term."""
        return math.fsum(self.epsilon(i) for i in range(1, count + 1))

    def added(self, t: int) -> list[float]:
        """(alpha g_k + gamma p_k) / m with (8) and (7): what each client adds to a cohort."""
        reward, privacy = self.config.reward, self.config.privacy
        g = oracles.generalization(
            self.counts, t, self.size, self.quality, self.m, float(reward.beta)
        )
        p = [1.0] * self.num_clients
        if privacy.name != "none":
            p = [
                1 - self.spent(count) / float(privacy.budget.total_epsilon) for count in self.counts
            ]
        alpha, gamma = float(reward.alpha), float(reward.gamma)
        return [(alpha * g_k + gamma * p_k) / self.m for g_k, p_k in zip(g, p, strict=True)]

    # ------------------------------------------------------------ who is chosen

    def choose(self, t: int, available: list[int], latency, added) -> Choice:
        """Step 2: S_t."""
        name = self.config.policy.name
        if name == "power_of_choice":
            return self.power_of_choice(t, available, latency)
        energy = math.nan
        cohort: Sequence[int]
        if name == "pause":
            zeta = float(self.config.policy.index.speed_weight)
            ucb = oracles.ucb(self.counts, self.mean_speed, t, self.m, zeta)
            cohort, energy = best_cohort(ucb, added, available, self.m)
        elif name == "fastest":
            cohort = sorted(available, key=lambda k: self.expected_latency[k])[: self.m]
        elif name == "round_robin":
            turn = sorted(available, key=lambda k: (k - self.cursor) % self.num_clients)
            cohort = turn[: self.m]
            self.cursor = cohort[-1] + 1 if cohort else self.cursor
        else:
            assert name == "all"
            cohort = available
        return Choice(tuple(cohort), {k: self.size[k] for k in cohort}, energy)

    def power_of_choice(self, t: int, available: list[int], latency) -> Choice:
        """The m largest losses among d candidates, drawn by data size; all weigh the same."""
        policy = self.config.policy
        question, _ = keys.question_and_choice(keys.choice(self.streams.policy, t))
        gumbel = jax.random.gumbel(jax.random.split(question)[0], (self.num_clients,))
        score = [math.log(n) + float(lot) for n, lot in zip(self.size, gumbel, strict=True)]
        asked = sorted(available, key=lambda k: -score[k])[: policy.candidates]
        loss = {k: self.learner.own_loss(self.model, k) for k in asked}
        cohort = sorted(asked, key=lambda k: -loss[k])[: self.m]
        seconds = [
            float(policy.query_share)
            * latency[k]
            * self.size[k]
            / min(self.size[k], self.learner.most)
            for k in asked
        ]
        for k in asked:
            self.queried[k] += 1
        weight = dict.fromkeys(cohort, 1.0)
        return Choice(tuple(cohort), weight, waited=max(seconds, default=0.0))

    # ------------------------------------------------------------ what they do

    def learn(self, t: int, weight: dict[int, float], epsilon: list[float]) -> float:
        """Steps 3, 4, 5: the new global model; returns the mean training loss."""
        old, train_loss = self.model, 0.0
        theta, rest = old
        normalised = self.config.learning.aggregation == "fednova"
        amount = {k: self.gradient_weight(k) if normalised else 1.0 for k in weight}
        effective = sum(share * amount[k] for k, share in weight.items()) if normalised else 1.0
        for k, share in weight.items():
            moments = self.moments.get(k, Moments())
            local, moments, loss = self.learner.train(old, k, t, moments, self.factor_of[k])
            if self.config.learning.keep_optimizer_state:
                self.moments[k] = moments
            key = jax.random.fold_in(round_keys.cohort(self.streams.privacy, t), k)
            # Weights of the collection ``clear`` and running statistics leave as they are.
            moved = (local.theta - old.theta) / amount[k]
            clear, update = np.split(moved, [self.learner.in_the_clear])
            sent = np.concatenate([clear, self.release(key, update, epsilon[k])])
            theta = theta + effective * share * sent
            rest = jax.tree.map(
                lambda mean, new, start, share=share: mean + share * (new - start),
                rest,
                local.rest,
                old.rest,
            )
            train_loss += share * loss
        self.model = Model(theta, rest)
        return train_loss

    def gradient_weight(self, k: int) -> float:
        """FedNova's |a|_1 of SGD (Wang et al., 2020)."""
        learning, (_, total) = self.config.learning, self.learner.steps(k, self.factor_of[k])
        if learning.proximal is None:
            return float(total)
        shrink = float(learning.learning_rate) * float(learning.proximal)
        return (1 - (1 - shrink) ** total) / shrink

    def release(self, key, update: np.ndarray, epsilon: float) -> np.ndarray:
        """Step 4: h_k, clipped and noised for eps_i."""
        privacy = self.config.privacy
        if privacy.name == "none":
            return update
        if privacy.name == "per_coordinate":
            width = float(privacy.sensitivity)
            noise = threefry.laplace(key, update.shape) * (width / epsilon)
            return np.clip(update, -width / 2, width / 2) + noise
        if privacy.name == "l1_vector":
            bound = float(privacy.clip_norm)
            clipped = update * min(1.0, bound / np.abs(update).sum())
            return clipped + threefry.laplace(key, update.shape) * (2 * bound / epsilon)
        assert "Laplace" not in type(privacy).__name__, "write its noise out here"
        released = self.privatize(key, jnp.asarray(update, jnp.float32), jnp.float32(epsilon))
        return np.asarray(released, np.float64)


def schedule(privacy) -> Callable[[int], float]:
    """eps_i of the i-th participation, below (6)."""
    if privacy.name == "none":
        return lambda i: math.inf
    budget = privacy.budget
    total = float(budget.total_epsilon)
    return {
        "geometric": lambda i: oracles.geometric_epsilon(total, float(budget.decay), i),
        "uniform": lambda i: oracles.uniform_epsilon(total, float(budget.horizon), i),
        "table": lambda i: oracles.table_epsilon(total, budget.shares, i),
    }[budget.name]


def value(index, added, cohort) -> float:
    """(9), (10) and (18) by the index: its minimum over the cohort, and what each client adds."""
    return oracles.energy(index, added, cohort) if cohort else math.nan


def best_cohort(index, added, available, m: int) -> tuple[tuple[int, ...], float]:
    """(10), (14): the best of all cohorts of m available clients, and its value.

    Of fewer than m all are chosen. Ties would leave the choice open: they are refused.
    """
    if not available:
        return (), -math.inf
    cohorts = itertools.combinations(available, min(m, len(available)))
    ranked = sorted(((oracles.set_key(index, added, c), c) for c in cohorts), reverse=True)
    (key, cohort), *others = ranked
    for other, _ in others[:1]:
        gap = key[1] - other[1] if math.isinf(other[0]) else key[0] - other[0]
        assert gap > TIE, f"a tie, {key} and {other}: choose other numbers for this test"
    return cohort, key[0]
