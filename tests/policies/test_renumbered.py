"""Shuffled client numbers change what a policy sees, and nothing else."""

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.learning import Digits, Dirichlet, Learning, Linear
from pause_jax.policies import Genie, PowerOfChoice, RoundRobin
from pause_jax.privacy import PerClient, PerCoordinateLaplace, Uniform
from pause_jax.world.availability import Diurnal
from pause_jax.world.latency import LogNormal

pytestmark = pytest.mark.slow

K, M = 10, 3
BUDGETS = PerClient(values=tuple(float(20 + 7 * k % 10) for k in range(K)))
BASE = SimConfig(
    num_clients=K, num_selected=M, num_rounds=12, eval_every=12, latency=LogNormal(),
    privacy=PerCoordinateLaplace(budget=Uniform(total_epsilon=1.0, horizon=8.0, law=BUDGETS)),
    availability_trace=Diurnal(), track_regret=False,
    learning=Learning(
        data=Digits(num_train=200), model=Linear(), partition=Dirichlet(concentration=3.0),
        max_steps=2, optimizer="sgd",
    ),
)  # fmt: skip
RECORD = ("clients", "clock")


# Ties aside, these policies choose by what they know of a client and not by its number.
@pytest.mark.parametrize(
    "policy",
    [Genie(), PowerOfChoice(candidates=K)],
    ids=lambda policy: policy.name,
)
def test_policy_that_ignores_numbers_chooses_the_same_clients(policy):
    config = BASE.replace(policy=policy)
    plain = simulate(config, jax.random.key(0), record=RECORD)
    shuffled = simulate(config.replace(shuffle_clients=True), jax.random.key(0), record=RECORD)
    np.testing.assert_array_equal(np.sort(shuffled.clients, axis=1), np.sort(plain.clients, axis=1))
    np.testing.assert_allclose(shuffled.clock, plain.clock, rtol=1e-5)


def test_order_of_numbers_differs_between_keys_and_is_the_same_for_all_policies():
    config = BASE.replace(
        policy=RoundRobin(), availability_trace=None, learning=None, shuffle_clients=True,
        num_clients=12,
        privacy=PerCoordinateLaplace(),
    )  # fmt: skip
    cohorts = {}
    for seed in range(3):
        clients = np.asarray(simulate(config, jax.random.key(seed), record=("clients",)).clients)
        assert sorted(clients[:4].ravel().tolist()) == list(range(12))
        np.testing.assert_array_equal(clients[:4], clients[4:8])
        cohorts[seed] = clients[:4].tolist()
    assert len({str(each) for each in cohorts.values()}) == 3
    plain = simulate(config.replace(shuffle_clients=False), jax.random.key(0), record=("clients",))
    np.testing.assert_array_equal(plain.clients[:4].ravel(), np.arange(12))
