import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax.bandit.search import Exact, Exhaustive, Problem, exact, exhaustive
from pause_jax.base.struct import ConfigError
from tests.reference import oracles

pytestmark = pytest.mark.slow

# Each is a compilation of both searches: m between 1 and K, K - 1, 1 and K.
SHAPES = [(9, 4), (8, 7), (6, 1), (5, 5)]
# Few and dyadic: ties are common, and float32 sums are exact in any order.
FINITE = [-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0]
INDICES = [*FINITE, math.inf, -math.inf]
SEARCHES: dict[str, Callable[..., Any]] = {
    "exact": exact,
    "exhaustive": partial(exhaustive, chunk_size=25),
}


@cache
def jitted(name, num_selected, batched=False):
    search = SEARCHES[name]

    def solve(index, weight, available, key):
        return search(index, weight, num_selected, available=available, key=key)

    return jax.jit(jax.vmap(solve) if batched else solve)


KINDS = {"ties": 1000, "mostly_untried": 1000, "continuous": 500}


def random_instances(num_clients, number, kind, seed=0):
    rng = np.random.default_rng(seed)
    shape = (number, num_clients)
    if kind == "ties":
        index, weight = rng.choice(INDICES, shape), rng.choice(FINITE, shape)
    elif kind == "mostly_untried":
        index = np.where(rng.random(shape) < 0.6, math.inf, rng.choice(FINITE, shape))
        weight = rng.choice(FINITE, shape)
    else:
        index, weight = rng.normal(size=shape), rng.normal(size=shape)
    available = rng.random(shape) < rng.choice([0.3, 0.7, 1.0], (number, 1))
    return index.astype(np.float32), weight.astype(np.float32), available


@cache
def instances(num_clients):
    """Index, weight and availability of 2,500 instances of all kinds, in their order."""
    parts = [random_instances(num_clients, number, kind, 11) for kind, number in KINDS.items()]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


@cache
def solved(name, num_clients, num_selected):
    keys = jax.random.split(jax.random.key(3), sum(KINDS.values()))
    run = jitted(name, num_selected, batched=True)
    return jax.device_get(run(*instances(num_clients), keys))


@pytest.mark.parametrize(("num_clients", "num_selected"), SHAPES)
@pytest.mark.parametrize("name", SEARCHES)
def test_finds_an_optimal_set(name, num_clients, num_selected):
    index, weight, available = instances(num_clients)
    clients, energy = solved(name, num_clients, num_selected)
    for i in range(0, len(index), 20):
        found, usable = clients[i].tolist(), np.flatnonzero(available[i])
        assert found == sorted(set(found))
        if len(usable) >= num_selected:
            best = oracles.best_sets(index[i], weight[i], num_selected, available[i])
            assert tuple(found) in best
        else:
            assert set(usable) <= set(found)
        counted = [k for k in found if available[i][k]]
        expected = oracles.energy(index[i], weight[i], counted) if counted else -math.inf
        # Sums of dyadics have no rounding.
        np.testing.assert_allclose(energy[i], expected, rtol=0, atol=0 if i < 2000 else 1e-5)


@pytest.mark.parametrize(("num_clients", "num_selected"), SHAPES)
def test_exact_matches_exhaustive_with_ties_infinities_and_masks(num_clients, num_selected):
    index, weight, available = instances(num_clients)
    values = {}
    for name in SEARCHES:
        clients, energy = solved(name, num_clients, num_selected)
        assert (np.diff(clients, axis=1) > 0).all()
        chosen = np.take_along_axis(weight, clients, axis=1)
        counted = np.take_along_axis(available, clients, axis=1)
        total = np.where(counted, chosen, 0).sum(axis=1)
        # Between two infinite energies the sums of weights decide.
        values[name] = (energy, np.where(np.isinf(energy), total, 0), counted.sum(axis=1))
    for fast, slow in zip(values["exact"], values["exhaustive"], strict=True):
        np.testing.assert_array_equal(fast, slow)
    # Without ties the optimum is unique.
    enough = available.sum(axis=1) >= num_selected
    alone = enough & (np.arange(len(index)) >= 2000)
    sets = [solved(name, num_clients, num_selected)[0][alone] for name in SEARCHES]
    np.testing.assert_array_equal(*sets)
    assert 0.1 < enough.mean() < 1
    assert np.isposinf(energy).any()
    assert np.isneginf(energy).any()
    assert np.isfinite(energy).any()


@pytest.mark.parametrize("name", SEARCHES)
def test_numpy_arrays_and_lists_are_accepted(name):
    index, weight = np.array([3.0, 1.0, 2.0, -9.0, -9.0, -9.0]), [0.0, 9.0, 1.0, 0.0, 0.0, 0.0]
    clients, energy = jax.jit(lambda: SEARCHES[name](index, weight, 2))()
    chex.assert_shape([clients, energy], [(2,), ()])
    chex.assert_type([clients, energy], [jnp.int32, jnp.float32])
    assert clients.tolist() == [1, 2]
    assert float(energy) == 11.0


# ---------------------------------------------------------------- ties


def tie_draws(name, index):
    """The sets of two of six clients that 6,000 keys give when all weights are equal."""
    number = 6000
    rows = (number, 6)
    index = np.broadcast_to(np.asarray(index, np.float32), rows)
    keys = jax.random.split(jax.random.key(5), number)
    run = jitted(name, 2, batched=True)
    return np.asarray(run(index, np.zeros(rows, np.float32), np.ones(rows, bool), keys)[0])


def uniformity(sets, num_clients=6, num_selected=2):
    """Chi-square p-value of "every set is equally likely"."""
    cells = dict.fromkeys(itertools.combinations(range(num_clients), num_selected), 0)
    for clients in sets.tolist():
        cells[tuple(clients)] += 1
    return stats.chisquare(list(cells.values())).pvalue


@pytest.mark.parametrize("value", [1.0, math.inf, -math.inf])
@pytest.mark.parametrize("name", SEARCHES)
def test_equal_clients_are_chosen_equally_often(name, value):
    sets = tie_draws(name, [value] * 6)
    share = np.bincount(sets.ravel(), minlength=6) / len(sets)
    standard_error = math.sqrt(2 / 6 * 4 / 6 / len(sets))
    np.testing.assert_allclose(share, 2 / 6, atol=4.5 * standard_error)
    assert uniformity(sets) > 1e-4


def test_uniformity_check_rejects_a_slight_order_by_number():
    rng = np.random.default_rng(0)
    sets = np.sort(np.argsort(rng.random((6000, 6)) + 0.02 * np.arange(6), axis=1)[:, :2], axis=1)
    assert uniformity(sets) < 1e-6


@pytest.mark.parametrize("name", SEARCHES)
def test_ties_without_a_key_follow_client_numbers(name):
    for value in (math.inf, 1.0):
        index, weight = np.full(6, value, np.float32), np.zeros(6, np.float32)
        clients, _ = jitted(name, 3)(index, weight, np.ones(6, bool), None)
        assert clients.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", SEARCHES)
def test_ties_are_random_among_optimal_sets_only(name):
    sets = tie_draws(name, [2.0, 0.0, 2.0, 2.0, 2.0, 0.0])
    assert {tuple(s) for s in sets.tolist()} == set(itertools.combinations((0, 2, 3, 4), 2))


# ---------------------------------------------------------------- larger networks, refusals


@pytest.mark.parametrize("chunk_size", [1, 34, 35])
def test_exhaustive_chunk_size_does_not_matter(chunk_size):
    index, weight, available = random_instances(7, 20, "ties", seed=7)
    available[:, :3] = True
    run = jax.jit(
        jax.vmap(lambda u, w, a: exhaustive(u, w, 3, available=a, chunk_size=chunk_size)[1])
    )
    expected = [
        oracles.energy(index[i], weight[i], oracles.best_sets(index[i], weight[i], 3, usable)[0])
        for i, usable in enumerate(available)
    ]
    np.testing.assert_array_equal(run(index, weight, available), expected)


def test_exhaustive_refusal_states_the_count():
    with pytest.raises(ConfigError, match=r"118,264,581,564,861,424 sets .*search = exact"):
        exhaustive(np.ones(60), np.ones(60), 30)


@pytest.mark.parametrize(
    ("num_index", "num_weight", "num_selected"), [(4, 5, 2), (5, 4, 2), (4, 4, 0), (4, 4, 5)]
)
@pytest.mark.parametrize("name", SEARCHES)
def test_invalid_shapes_and_sizes_raise(name, num_index, num_weight, num_selected):
    with pytest.raises(ValueError, match=f"num_selected = {num_selected}"):
        SEARCHES[name](np.ones(num_index), np.ones(num_weight), num_selected)


@pytest.mark.parametrize("search", [Exact(), Exhaustive()])
def test_search_configs_sum_the_terms_and_report_no_gap(search):
    terms = np.float32([[0.0, 1.0, 1.0, 2.0, 0.0, 0.0], [0.0, 0.5, 2.0, 2.0, 0.0, 0.0]])
    problem = Problem(np.float32([6.0, 5.0, 3.0, 0.0, 0.0, 0.0]), terms, np.float32(10.0))
    clients, info = jax.jit(search, static_argnums=2)(
        jax.random.key(0), problem, 2, np.ones(6, bool)
    )
    assert clients.tolist() == [1, 2]
    assert info.energy == 7.5
    assert info.optimality_gap == 0
    assert np.isnan(info.acceptance_rate)


def best_values(index, weight, num_selected):
    """Largest min(index) + sum(weight) of each row: over the places of the least index chosen."""
    order = np.argsort(-index, axis=1)
    index, weight = (np.take_along_axis(x, order, axis=1).astype(float) for x in (index, weight))
    best = np.full(len(index), -math.inf)
    for least in range(num_selected - 1, index.shape[1]):
        heaviest = np.partition(weight[:, : least + 1], least - num_selected + 1, axis=1)
        best = np.maximum(best, index[:, least] + heaviest[:, -num_selected:].sum(axis=1))
    return best


# Below and above 64 clients the search has different forms.
@pytest.mark.parametrize(("num_clients", "num_selected"), [(20, 4), (100, 8)])
def test_random_instances_are_solved_exactly(num_clients, num_selected):
    rng = np.random.default_rng(5)
    shape = (1000, num_clients)
    # Multiples of 1/256: sums are exact in float32. 300 rows have many ties, and in all rows the
    # index counts for much, for little, or for something between.
    index, weight = (rng.integers(-512, 512, shape) / 256 for _ in range(2))
    index[:300] = rng.integers(-2, 3, (300, num_clients))
    index *= 2.0 ** rng.integers(-1, 6, (1000, 1))
    index, weight = index.astype(np.float32), weight.astype(np.float32)
    keys = jax.random.split(jax.random.key(3), len(index))
    present = np.ones(shape, bool)
    clients, energy = map(
        np.asarray, jitted("exact", num_selected, batched=True)(index, weight, present, keys)
    )
    assert (np.diff(clients, axis=1) > 0).all()
    chosen_index, chosen_weight = (np.take_along_axis(x, clients, axis=1) for x in (index, weight))
    value = chosen_index.min(axis=1) + chosen_weight.sum(axis=1)
    best = best_values(index, weight, num_selected)
    np.testing.assert_array_equal(value, best)
    np.testing.assert_array_equal(energy, best)
    # The rule is not trivial: neither the best indices nor the best weights alone reach it.
    by_weight = np.sort(weight, axis=1)[:, -num_selected:].sum(axis=1) + index.min(axis=1)
    assert (by_weight < best).mean() > 0.9
