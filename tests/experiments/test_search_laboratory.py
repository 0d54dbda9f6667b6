import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.search_laboratory import landscape as laboratory
from experiments.search_laboratory import proofs
from pause_jax.bandit.search import Problem
from tests.reference import oracles

pytestmark = pytest.mark.slow


def problems(number, num_clients, seed=0):
    """Continuous values, distinct with probability one."""
    rng = np.random.default_rng(seed)
    index = rng.normal(size=(number, num_clients)).astype(np.float32)
    terms = rng.normal(size=(number, 2, num_clients)).astype(np.float32) / 3
    return Problem(jnp.asarray(index), jnp.asarray(terms), jnp.full(number, 10.0))


def one(batch, i=0):
    return jax.tree.map(lambda leaf: leaf[i], batch)


def keys_of(number, seed=0):
    return jax.random.split(jax.random.key(seed), number)


# ---------------------------------------------------------------- energies and gaps


def test_current_energy_is_that_of_the_walk_and_its_running_maximum_is_the_best():
    batch = problems(10, 9)
    trace = laboratory.traces(keys_of(10), batch, 3, steps=200, chains=4, cooling=1.0)
    current, best = np.asarray(trace.current_energy), np.asarray(trace.best_energy)
    chex.assert_shape([current, best], (10, 4, 200))
    # The start, which has no place in the trace, may have been better than all that follows.
    running = np.maximum.accumulate(current, axis=-1)
    np.testing.assert_array_equal(np.maximum(running, best[..., :1]), best)
    assert (np.diff(current, axis=-1) < 0).any()
    index, weight = np.asarray(batch.index), np.asarray(batch.terms).sum(axis=1)
    for i in range(10):
        energies = [
            oracles.energy(index[i], weight[i], clients)
            for clients in itertools.combinations(range(9), 3)
        ]
        off = np.abs(current[i].reshape(-1, 1) - np.array(energies)).min(axis=1)
        assert off.max() < 1e-5


def test_gap_is_never_negative_falls_with_steps_and_with_chains():
    batch = problems(30, 12, seed=1)
    trace = laboratory.traces(keys_of(30), batch, 4, steps=60, chains=8, cooling=30.0)
    optimum = np.asarray(laboratory.optima(batch, 4))
    gaps = {c: laboratory.gap_curves(trace, optimum, c) for c in (1, 2, 8)}
    assert [gaps[c].shape for c in gaps] == [(30, 8, 60), (30, 4, 60), (30, 1, 60)]
    for curve in gaps.values():
        assert curve.min() > -1e-5
        assert (np.diff(curve, axis=-1) <= 0).all()
    np.testing.assert_array_equal(gaps[2][:, 1], gaps[1][:, 2:4].min(axis=1))
    np.testing.assert_array_equal(gaps[8][:, 0], gaps[1].min(axis=1))
    share = [laboratory.at_optimum(gaps[c], optimum)[..., -1].mean() for c in (1, 2, 8)]
    assert 0 < share[0] < share[1] < share[2] <= 1
    np.testing.assert_allclose(gaps[8][:, 0, -1], optimum - np.asarray(trace.energy), atol=1e-5)


def test_at_optimum_tells_rounding_from_a_gap():
    gaps = np.array([[[0.0, 1e-6, -1e-6, 1e-4]], [[0.0, 1e-4, 5e-4, 2e-3]]])
    found = laboratory.at_optimum(gaps, [0.0, 99.0])
    assert found[0, 0].tolist() == [True, True, True, False]
    assert found[1, 0].tolist() == [True, True, True, False]


# ---------------------------------------------------------------- the search graph


@pytest.mark.parametrize("rule", laboratory.RULES)
def test_degrees_and_graph_equal_the_definition(rule):
    num_clients, num_selected = 8, 3
    batch = problems(5, num_clients, seed=3)
    members = laboratory.enumerate_sets(num_clients, num_selected)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in members]
    assert len(set(sets)) == math.comb(num_clients, num_selected)
    lists = {"pause": 3, "alsa": 2, "ucb": 1, "vanilla": 0}[rule]
    for i, key in enumerate(keys_of(5)):
        problem = one(batch, i)
        landscape = laboratory.landscape_for(key, problem, num_selected, rule)
        adjacency = laboratory.search_graph(landscape, members)
        np.testing.assert_array_equal(adjacency, adjacency.T)
        found = np.asarray(laboratory.degrees(landscape, members))
        np.testing.assert_array_equal(found, adjacency.sum(axis=1))
        # The oracle takes any ordering, so values serve as ranks.
        values = np.concatenate([problem.index[None], problem.terms])[:lists].tolist()
        for row, here in zip(adjacency, sets, strict=True):
            expected = oracles.neighbours(values, here, [True] * num_clients, lists > 0)
            assert {sets[j] for j in np.flatnonzero(row)} == expected


def test_random_sets_are_uniform():
    members = np.asarray(laboratory.random_sets(jax.random.key(3), 5, 2, 6000))
    _, counts = np.unique(members, axis=0, return_counts=True)
    assert len(counts) == 10
    # Chi-square with 9 degrees of freedom exceeds 34 once in 10,000.
    assert ((counts - 600) ** 2 / 600).sum() < 34


# ---------------------------------------------------------------- the proofs' paths


def first_by_fault(max_clients, repaired):
    found: dict[str, proofs.CounterExample] = {}
    for example in proofs.counter_examples(max_clients, repaired=repaired):
        found.setdefault(example.fault, example)
    return found


def sets_of(path):
    return [sorted(clients) for clients in path]


def test_the_printed_path_fails_in_three_ways_and_the_repaired_one_in_circles():
    found = first_by_fault(3, repaired=False)
    assert set(found) == {
        "a set of the wrong size",
        "a step that is no neighbour",
        "never arrives",
    }
    assert {(e.num_clients, e.num_selected) for e in found.values()} == {(3, 2)}
    assert sets_of(found["a set of the wrong size"].path) == [[0, 1], [1]]
    repaired = first_by_fault(4, repaired=True)
    assert set(repaired) == {"never arrives"}
    assert sets_of(repaired["never arrives"].path) == [[0, 2], [1, 2], [0, 2]]


def test_where_the_paths_fail_the_graph_is_connected_and_algorithm_3_arrives():
    rng = np.random.default_rng(6)
    for repaired in (False, True):
        for example in proofs.counter_examples(4, repaired=repaired):
            index = range(example.num_clients)
            path = proofs.algorithm_3_path(rng, index, example.start, example.goal)
            assert proofs.path_fault(path, example.goal, (index,)) == ""
    example = first_by_fault(3, repaired=True)["never arrives"]
    terms = jnp.array([example.g], jnp.float32)
    problem = Problem(jnp.arange(3.0), terms, jnp.asarray(1.0))
    landscape = laboratory.landscape_for(jax.random.key(0), problem, 2, "alsa")
    graph = laboratory.search_graph(landscape, laboratory.enumerate_sets(3, 2))
    assert laboratory.is_connected(graph)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ([[0, 1], [1, 2], [2, 3]], ""),
        ([[0, 1], [1, 2]], "never arrives"),
        ([[0, 1], [0]], "a set of the wrong size"),
        ([[1, 2], [0, 1], [0, 3], [2, 3]], "a step that is no neighbour"),
        ([[0, 1], [2, 3]], "a step that is no neighbour"),
    ],
)
def test_path_faults(path, fault):
    path = list(map(frozenset, path))
    assert proofs.path_fault(path, frozenset({2, 3}), (range(4), range(4))) == fault


# ---------------------------------------------------------------- times and slopes


def test_slope_of_a_power_law_is_recovered_with_its_error():
    x = np.array([30, 60, 120, 240, 480])
    slope, error = laboratory.fit_slope(x, 7 * x**1.5)
    assert abs(slope - 1.5) < 1e-9
    assert error < 1e-9
    rng = np.random.default_rng(8)
    fits = [laboratory.fit_slope(x, 7 * x**1.5 * rng.lognormal(0, 0.1, 5)) for _ in range(400)]
    slopes, errors = np.array(fits).T
    assert abs(slopes.mean() - 1.5) < 4.5 * slopes.std() / 20
    assert 0.8 < np.sqrt((errors**2).mean()) / slopes.std() < 1.2


def test_median_seconds_calls_once_more_than_it_counts_and_waits():
    calls = []

    def call():
        calls.append(1)
        return jnp.ones(3)

    seconds = laboratory.median_seconds(call, repeats=3)
    assert len(calls) == 4
    assert seconds > 0
