"""Whole runs against a slow simulator that plays Algorithm 1 client by client, in plain Python."""

import functools
from typing import ClassVar

import flax.linen as nn
import jax
import numpy as np
import pytest

from pause_jax import Learning, Reward, SimConfig, simulate
from pause_jax.learning import (
    CosineDecay,
    Digits,
    Dirichlet,
    Iid,
    Linear,
    LinearRegression,
    Mlp,
    Model,
    StepDecay,
    UniformWork,
)
from pause_jax.learning.normalisation import ClearBatchNorm
from pause_jax.learning.work import PerClient
from pause_jax.policies import All, Fastest, Pause, PowerOfChoice, RoundRobin
from pause_jax.privacy import (
    MECHANISMS,
    DuchiL2,
    GaussianMechanism,
    Geometric,
    L1Laplace,
    NoPrivacy,
    PerCoordinateLaplace,
    PrivUnitG,
    Projected,
    Table,
    Uniform,
)
from pause_jax.world.latency import Network, SpeedNormal
from tests.reference.simulator import Simulator
from tests.support.runs import assert_close

# With this key the runs meet the situations that are asserted at the end.
KEY = jax.random.key(29)


class _Normed(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = nn.Dense(6)(x.reshape(x.shape[0], -1))
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9)
        x = norm(x, mask=None if mask is None else mask[:, None])
        x = ClearBatchNorm()(nn.Dense(5)(nn.relu(x)), train, mask)
        return nn.Dense(self.num_outputs)(nn.relu(x))


class Normed(Model):
    """A small model with running statistics, and with weights that leave in the clear."""

    name: ClassVar[str] = "normed"

    def module(self, num_outputs: int) -> nn.Module:
        return _Normed(num_outputs)


# Unequal clients: one with a single sample, others with more than they may use in a round; low
# qualities, absences, moments that persist. A small alpha lets the speeds matter.
LEARNING = Learning(
    data=Digits(num_train=70),
    partition=Dirichlet(concentration=0.7, min_quality=0.3),
    model=Linear(),
    batch_size=4,
    max_steps=5,
    keep_optimizer_state=True,
)
RICH = SimConfig(
    num_clients=6,
    num_selected=3,
    num_rounds=6,
    eval_every=4,
    availability=0.6,
    reward=Reward(alpha=0.8, beta=1.5, gamma=0.4),
    policy=Pause(),
    privacy=PerCoordinateLaplace(sensitivity=0.03, budget=Geometric(total_epsilon=60.0, decay=0.4)),
    learning=LEARNING,
)
# Half of a program is the genie's search, for which a few configs are enough.
LEAN = RICH.replace(track_regret=False)
# Here a client may be chosen in every round, and takes part in some.
TURNS = LEAN.replace(policy=RoundRobin(), num_rounds=6, eval_every=4)
SGD = LEARNING.replace(optimizer="sgd", learning_rate=0.05, keep_optimizer_state=False)
CONFIGS = {
    "pause": RICH,
    "spent_excluded": TURNS.replace(
        privacy=L1Laplace(clip_norm=0.5, budget=Uniform(total_epsilon=900.0, horizon=2.0)),
        learning=LEARNING.replace(keep_optimizer_state=False),
    ),
    "spent_silent": TURNS.replace(
        when_spent="drop",
        privacy=PerCoordinateLaplace(
            sensitivity=0.03, budget=Table(total_epsilon=40.0, shares=(0.6, 0.3))
        ),
    ),
    "fedavg": LEAN.replace(
        policy=All(),
        availability=0.5,
        privacy=NoPrivacy(),
        learning=SGD.replace(
            partition=Iid(),
            model=Mlp(hidden=(7, 5)),
            schedule=CosineDecay(horizon=4.0, final=0.2),
        ),
    ),
    "power_of_choice": LEAN.replace(
        policy=PowerOfChoice(candidates=5),
        num_selected=2,
        latency=SpeedNormal(),
        privacy=GaussianMechanism(clip_norm=0.5, budget=Geometric(total_epsilon=400.0)),
        # Noise that no quality keeps small: else what the questions are told without it is as good.
        learning=SGD.replace(
            partition=Dirichlet(concentration=0.7, min_quality=0.0),
            model=Mlp(hidden=(7,)),
        ),
    ),
    "batch_norm": LEAN.replace(
        policy=Fastest(),
        num_rounds=3,
        privacy=DuchiL2(clip_norm=0.01, budget=Geometric(total_epsilon=500.0)),
        learning=SGD.replace(model=Normed()),
    ),
    "regression": RICH.replace(
        num_clients=5,
        policy=Fastest(),
        max_seconds=2.0,
        privacy=PrivUnitG(clip_norm=0.5, budget=Geometric(total_epsilon=500.0)),
        learning=LEARNING.replace(data=LinearRegression(num_features=4, num_samples=60)),
    ),
    # Rounds without anybody count: see the end.
    "step_decay": LEAN.replace(
        availability=0.3,
        learning=LEARNING.replace(schedule=StepDecay(every=2, factor=0.3), epochs=0.5),
    ),
    "three_epochs": LEAN.replace(
        latency=Network(download_bytes=1e4, upload_bytes=1e4),
        learning=LEARNING.replace(epochs=3.0, max_steps=40),
    ),
    "own_work": RICH.replace(
        latency=Network(download_bytes=1e4, upload_bytes=1e4),
        learning=SGD.replace(
            epochs=3.0, max_steps=40, work=UniformWork(low=0.1, high=1.2), aggregation="fednova"
        ),
    ),
    "local_steps": TURNS.replace(
        learning=SGD.replace(
            local_steps=7,
            max_steps=14,
            work=PerClient(values=(1.0, 0.2, 1.5, 2.0, 0.7, 1.0)),
            proximal=0.3,
            aggregation="fednova",
        )
    ),
    "bandit": RICH.replace(learning=None, policy=All()),
    "projected": LEAN.replace(
        policy=All(),
        num_rounds=2,
        learning=SGD,
        privacy=Projected(
            inner=L1Laplace(clip_norm=0.5, budget=Geometric(total_epsilon=500.0)), dimension=64
        ),
    ),
}

# Clients side by side at most; the library's choice elsewhere. It changes nothing.
CLIENT_BATCH = {"power_of_choice": 1, "batch_norm": 2}


@functools.cache
def slow(name: str):
    """What the slow simulator records of a config, and the simulator after the run."""
    config = CONFIGS[name]
    simulator = Simulator(config, KEY, config.learning and config.learning.data.load())
    return simulator.run(), simulator


def marks(name: str) -> list[pytest.MarkDecorator]:
    repeats = name in ("three_epochs", "local_steps", "projected")  # others have the same parts
    return [pytest.mark.slow] * (name != "pause") + [pytest.mark.nightly] * repeats


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CONFIGS])
def test_run_matches_algorithm_1(name):
    expected, _ = slow(name)
    result = simulate(CONFIGS[name], KEY, client_batch=CLIENT_BATCH.get(name))
    assert result.first_nonfinite_round == 0
    if not CONFIGS[name].track_regret:
        expected = {key: x for key, x in expected.items() if key not in ("genie_reward", "regret")}
    ours = {quantity: getattr(result, quantity) for quantity in expected}
    ours["clients"] = np.sort(result.clients, axis=1)  # the order of the slots has no meaning
    assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    if name == "batch_norm":
        assert result.num_parameters == 390 + 12 + 35 + 60, "without those that leave in the clear"
        assert sorted(result.unnoised) == [
            "batch_stats/BatchNorm_0/mean",
            "batch_stats/BatchNorm_0/var",
            "batch_stats/ClearBatchNorm_0/statistics/mean",
            "batch_stats/ClearBatchNorm_0/statistics/var",
            "clear/ClearBatchNorm_0/bias",
            "clear/ClearBatchNorm_0/scale",
        ]


# --- what the runs are there for


def empty_slots(name: str) -> np.ndarray:
    """Of each round."""
    return np.sum(slow(name)[0]["clients"] < 0, axis=1)


def test_clients_are_unequal_and_some_exceed_max_samples():
    _, simulator = slow("pause")
    assert min(simulator.size) == 1
    assert max(simulator.size) > LEARNING.batch_size * LEARNING.max_steps
    assert max(simulator.quality) < 1
    # A full batch, and one that is not.
    assert any(4 < size < 20 and size % 4 for size in simulator.size)


@pytest.mark.slow
def test_some_rounds_are_short_and_some_are_empty():
    assert 0 < np.sum(empty_slots("pause") > 0) < RICH.num_rounds
    assert np.any(empty_slots("spent_excluded") == RICH.num_selected)


@pytest.mark.slow
def test_empty_round_is_followed_by_a_round_at_another_rate():
    empty = np.flatnonzero(empty_slots("step_decay") == RICH.num_selected)  # round t at t - 1
    trained = np.flatnonzero(empty_slots("step_decay") < RICH.num_selected)
    assert len(empty)
    assert any((t - np.sum(empty < t)) // 2 != t // 2 for t in trained)


@pytest.mark.slow
def test_some_clients_are_spent_while_others_are_not():
    _, excluded = slow("spent_excluded")
    assert max(excluded.counts) == 2
    assert np.any((empty_slots("spent_excluded") > 0) & (empty_slots("spent_silent") == 0))
    heard = [len(senders) for senders in slow("spent_silent")[1].heard]
    took_part = RICH.num_selected - empty_slots("spent_silent")
    assert np.any((np.asarray(heard) > 0) & (heard < took_part))


def test_speeds_affect_choices_and_regret():
    expected, _ = slow("pause")
    assert np.sum(expected["regret"] > 0.01) >= 2
    assert np.any(expected["genie_reward"] != expected["reward"])
    assert np.any(np.isfinite(expected["energy"]))


def test_every_mechanism_is_covered():
    assert {config.privacy.name for config in CONFIGS.values()} == {m.name for m in MECHANISMS}
