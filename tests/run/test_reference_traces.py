"""The authors' recorded runs, replayed round by round through our formulas."""

import json
import math
import pathlib
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.bandit import empty_stats, ucb_index, update_stats
from pause_jax.bandit.reward import Reward, additive_terms, cohort_value, generalization_reward
from pause_jax.bandit.search import exact
from pause_jax.privacy import Geometric

pytestmark = pytest.mark.slow

FOLDER = ("reference", "pause_authors", "mnist_mlp_30_5")
# The first rounds of the same runs.
COMMITTED = pathlib.Path(__file__).parents[1] / "data" / "pause_authors"
EXHAUSTIVE, ANNEALED = "pause_exhaustive_trace", "sa_pause_trace"


class Replay(NamedTuple):
    """What our formulas say where the recorded clients and latencies are given; leaves [T, ...]."""

    ucb_before: np.ndarray
    g_before: np.ndarray
    mean_speed_after: np.ndarray
    privacy_reward_after: np.ndarray
    count_after: np.ndarray
    all_tried: np.ndarray
    energy: np.ndarray
    best_energy: np.ndarray


def column(trace, field):
    """One field of all rounds, [T, m]; an index that is not a number yet is infinite."""
    return np.array([[math.inf if x is None else x for x in one[field]] for one in trace["rounds"]])


def replay(trace, dtype):
    config = trace["config"]
    num_clients, m = config["K"], config["m"]
    reward = Reward(alpha=config["alpha"], beta=config["beta"], gamma=config["gamma"])
    budget = Geometric(total_epsilon=config["epsilon_bar"], decay=config["eta"])
    share = jnp.full(num_clients, 1 / num_clients, dtype)

    def body(stats, slot):
        t, clients, latency = slot
        index = ucb_index(stats, t, m, speed_weight=config["zeta"])
        g = generalization_reward(stats.counts, t, share, m, reward.beta)
        terms = additive_terms(reward, g, budget.remaining(stats.counts), m)
        chosen = cohort_value(index, terms, clients, jnp.ones(m, bool))
        _, best = exact(index, terms.sum(axis=0), m)
        all_tried = jnp.all(stats.counts > 0)
        stats = update_stats(stats, clients, config["tau_min"] / latency)
        return stats, Replay(
            index[clients],
            g[clients],
            stats.mean_speed[clients],
            budget.remaining(stats.counts)[clients],
            stats.counts[clients],
            all_tried,
            chosen,
            best,
        )

    rounds = np.array([one["round"] for one in trace["rounds"]])
    np.testing.assert_array_equal(rounds, np.arange(1, len(rounds) + 1))
    slots = rounds, column(trace, "clients"), column(trace, "latency_s").astype(dtype)
    _, result = jax.jit(lambda xs: jax.lax.scan(body, empty_stats(num_clients), xs))(slots)
    assert result.energy.dtype == dtype
    return jax.device_get(result)


@pytest.fixture(scope="module", params=["first rounds", "whole run"])
def recorded(request):
    """(name, dtype) -> (the recorded trace, our replay of it)."""
    whole = request.param == "whole run"
    folder = request.getfixturevalue("shared").joinpath(*FOLDER) if whole else COMMITTED

    @cache
    def load(name, dtype):
        trace = json.loads((folder / f"{name}.json").read_text())
        if dtype == "float64":
            with jax.enable_x64(True):
                return trace, replay(trace, np.float64)
        return trace, replay(trace, np.float32)

    return load


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("name", [EXHAUSTIVE, ANNEALED])
def test_replay_reproduces_every_recorded_number(recorded, name, dtype, tolerance):
    trace, ours = recorded(name, dtype)
    assert len(trace["rounds"]) in (60, 300)
    for field in ("ucb_before", "g_before", "mean_speed_after", "privacy_reward_after"):
        theirs, values = column(trace, field), getattr(ours, field)
        np.testing.assert_allclose(values, theirs, rtol=tolerance, atol=tolerance, err_msg=field)
    np.testing.assert_array_equal(ours.count_after, column(trace, "count_after"))


def gaps(ours):
    """Optimum minus the energy of the recorded choice, where energies are finite."""
    return ours.best_energy[ours.all_tried] - ours.energy[ours.all_tried]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
def test_exact_search_matches_the_authors_exhaustive_search(recorded, dtype, tolerance):
    trace, ours = recorded(EXHAUSTIVE, dtype)
    rounds = len(trace["rounds"])
    np.testing.assert_array_equal(ours.all_tried, np.arange(1, rounds + 1) >= 7)
    assert np.isposinf(ours.energy[:6]).all()
    assert np.isposinf(ours.best_energy[:6]).all()
    difference = np.abs(gaps(ours))
    assert difference.size == rounds - 6
    assert difference.max() <= tolerance


def test_exact_search_beats_the_authors_annealing(recorded):
    trace, ours = recorded(ANNEALED, "float64")
    gap = gaps(ours)
    at_optimum = np.mean(gap < 1e-9)
    assert gap.size > {60: 48, 300: 250}[len(trace["rounds"])]
    assert gap.min() >= -1e-12
    low, high, least, most = {60: (0.3, 0.45, 0.06, 0.1), 300: (0.13, 0.23, 0.14, 0.2)}[
        len(trace["rounds"])
    ]
    assert low < at_optimum < high
    assert least < gap.mean() < most


@pytest.mark.parametrize("name", [EXHAUSTIVE, ANNEALED])
def test_committed_rounds_are_the_first_of_the_full_run(name, shared):
    committed = json.loads((COMMITTED / f"{name}.json").read_text())
    whole = json.loads(shared.joinpath(*FOLDER, f"{name}.json").read_text())
    assert committed == whole | {"rounds": whole["rounds"][:60]}


def test_replay_is_sensitive_to_the_round_number(recorded):
    """Printed as t - 1, recorded as t: the two differ by far more than the tolerance."""
    trace, ours = recorded(EXHAUSTIVE, "float64")
    m, num_clients = trace["config"]["m"], trace["config"]["K"]
    t = np.arange(1, len(trace["rounds"]) + 1)[:, None]
    before = column(trace, "count_after") - 1
    as_printed = (m / num_clients - before[1:] / (t[1:] - 1)) ** 2
    assert np.abs(as_printed - np.abs(column(trace, "g_before")[1:])).max() > 1e-3
    with_t = (m / num_clients - before / t) ** 2
    np.testing.assert_allclose(with_t, np.abs(ours.g_before), atol=1e-12)
