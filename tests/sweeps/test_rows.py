"""Rows of sweeps equal single runs: 120 rounds of batched training, and ties."""

import jax
import numpy as np
import pytest

from pause_jax import Learning, SimConfig, simulate, sweep
from pause_jax.learning import Digits, Iid, Linear
from pause_jax.policies import named
from pause_jax.privacy import NoPrivacy, PerCoordinateLaplace, Uniform
from pause_jax.sweeps import plan
from pause_jax.world.latency import Traces
from tests.support.runs import chosen_sets

pytestmark = pytest.mark.slow

KEYS = jax.random.split(jax.random.key(11), 2)


@pytest.fixture
def side_by_side(monkeypatch):
    """All runs of a config in one vmap, on any number of cores."""
    monkeypatch.setattr(plan, "threads_of", lambda mesh: 1)


LONG = SimConfig(
    policy=named("oort"),
    num_clients=8,
    num_selected=3,
    num_rounds=120,
    eval_every=40,
    track_regret=False,
    availability=0.9,
    deadline=0.4,
    wait_for=2,
    dropout=0.2,
    stale_updates="next",
    privacy=PerCoordinateLaplace(
        sensitivity=1e-3, budget=Uniform(total_epsilon=120.0, horizon=120.0)
    ),
    learning=Learning(
        data=Digits(num_train=80),
        partition=Iid(min_quality=0.3),
        model=Linear(),
        batch_size=4,
        max_steps=2,
    ),
)


RECORDED = (
    *("clients", "queried", "in_time"),
    *("clock", "spent", "train_loss", "test_loss", "test_accuracy"),
)


@pytest.mark.nightly
def test_120_batched_rounds_match_single_runs(side_by_side):
    """What Oort chooses depends on the losses of all rounds before."""
    configs = {"slow": LONG, "fast": LONG.override({"learning.learning_rate": 0.05})}
    assert [each.batch for each in plan.plan_sweep(configs, KEYS).chunkings] == [4]
    result = sweep(configs, KEYS, progress=False, record=RECORDED)
    for seed, (name, config) in enumerate(configs.items()):
        row = result.sel(config=name, seed=seed)
        single = simulate(config, KEYS[seed], record=RECORDED)
        for quantity in RECORDED[:3]:
            np.testing.assert_array_equal(row[quantity], getattr(single, quantity))
        # A unit in the last place, once a round: 120 of them are 2e-5.
        for quantity in RECORDED[3:]:
            there, here = row[quantity], getattr(single, quantity)
            np.testing.assert_allclose(there, here, rtol=2.5e-5, err_msg=f"{name} {quantity}")
    # The rows differ: none stands for another.
    losses = np.round(result.test_loss.values[..., -1], 4)
    assert len(np.unique(losses)) == losses.size


# Three clients take 0.25 s, three 0.5 s, two 0.75 s: exact in binary.
SECONDS = np.asarray([0.5, 0.25, 0.75, 0.25, 0.5, 0.25, 0.5, 0.75])
TIED = SimConfig(
    num_clients=8,
    num_selected=4,
    num_rounds=30,
    wait_for=2,
    latency=Traces.of(SECONDS[:, None]),
    privacy=NoPrivacy(),
    learning=None,
    track_regret=False,
)


def test_ties_with_deadlines_end_a_round_by_hand(side_by_side):
    """An update that arrives with the deadline is in time, and so are all that arrive with the
    one that the server waits for.
    """
    configs = {f"{seconds} s": TIED.replace(deadline=seconds) for seconds in (0.3, 0.5, 2.0)}
    recorded = ("clients", "in_time", "latency", "clock")
    result = sweep(configs, KEYS, progress=False, record=recorded)
    for name, config in configs.items():
        row = result.sel(config=name, seed=1)
        single = simulate(config, KEYS[1], record=recorded)
        for quantity in recorded:
            np.testing.assert_array_equal(row[quantity], getattr(single, quantity), err_msg=name)
        for t, chosen in enumerate(chosen_sets(row)):
            end = min(np.sort(SECONDS[chosen])[TIED.wait_for - 1], np.float32(config.deadline))
            assert row.latency[t] == end
            in_time = row.clients[t].values[row.in_time[t].values]
            assert sorted(in_time) == sorted(k for k in chosen if SECONDS[k] <= end)
    assert result.in_time.any()
    assert not result.in_time.all()
