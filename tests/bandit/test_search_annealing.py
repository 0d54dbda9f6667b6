import itertools
import math
from functools import cache

import jax
import numpy as np
import pytest
from scipy import stats

from pause_jax.bandit.search import Annealing, Problem, anneal
from pause_jax.bandit.search.annealing import (
    NEIGHBOURHOODS,
    OMEGA,
    ChainState,
    Landscape,
    chain_step,
    init_chain,
    make_landscape,
    neighbour_masks,
    walk_energy,
)
from tests.reference import oracles

pytestmark = pytest.mark.slow

K, M = 7, 3
SETS = list(itertools.combinations(range(K), M))
# Dyadic, so that float32 sums are exact in any order; few, so that ties are common.
FINITE = [-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0]


def masks(sets):
    """bool [n, K] of a list of sets."""
    rows = np.zeros((len(sets), K), bool)
    for row, clients in zip(rows, sets, strict=True):
        row[list(clients)] = True
    return rows


def problems(number, kind, seed=0):
    """A batch of problems with their availability."""
    rng = np.random.default_rng(seed)
    shape = (number, K)
    index = rng.choice(FINITE, shape)
    terms = rng.choice(FINITE, (number, 2, K))
    available = np.ones(shape, bool)
    if kind == "continuous":
        index, terms = rng.normal(size=shape), rng.normal(size=(number, 2, K))
    elif kind == "negative":
        index, terms = index - 100, terms - 100
    elif kind == "untried":
        index = np.where(rng.random(shape) < 0.5, math.inf, index)
        index = np.where(rng.random(shape) < 0.1, -math.inf, index)
    elif kind == "masked":
        available = rng.random(shape) < rng.choice([0.2, 0.5, 0.8], (number, 1))
    spread = np.full(number, 40.0, np.float32)
    return Problem(index.astype(np.float32), terms.astype(np.float32), spread), available


KINDS = ("ties", "continuous", "negative", "untried", "masked")


@cache
def batched_anneal(neighbourhood, steps, chains, cooling=1.0):
    def run(key, problem, available):
        return anneal(
            key,
            problem,
            M,
            available=available,
            neighbourhood=neighbourhood,
            steps=steps,
            chains=chains,
            cooling=cooling,
        )

    return jax.jit(jax.vmap(run))


@cache
def batched_landscape(neighbourhood):
    return jax.jit(
        jax.vmap(
            lambda problem, available, key: make_landscape(
                problem, M, available, neighbourhood, key
            )
        )
    )


def landscapes(neighbourhood, kind, number=10, seed=0):
    """(problems, their landscapes): the first few of 30, made by one program for all tests."""
    problem, available = problems(30, kind, seed)
    batch = jax.device_get(batched_landscape(neighbourhood)(problem, available, keys_of(30, seed)))
    found = [Landscape(*(leaf[i] for leaf in batch)) for i in range(number)]
    return jax.tree.map(lambda leaf: leaf[:number], problem), found


def keys_of(number, seed=0):
    return jax.random.split(jax.random.key(seed), number)


def lots_of(number):
    return np.random.default_rng(0).integers(2**32, size=(number, 4), dtype=np.uint32)


# ---------------------------------------------------------------- the answer


def optima_found(problem, available, trace):
    """In how many problems with m available clients the answer is an optimum, and how many are.

    Every answer must be a legal set with its energy.
    """
    hits, count = 0, 0
    for i, inside in enumerate(np.asarray(trace.clients).tolist()):
        assert inside == sorted(set(inside))
        assert set(inside) <= set(range(K))
        counted = [k for k in inside if available[i][k]]
        assert len(counted) == min(M, available[i].sum())
        index, weight = problem.index[i], problem.terms[i].sum(axis=0)
        expected = oracles.energy(index, weight, counted) if counted else -math.inf
        np.testing.assert_allclose(trace.energy[i], expected, atol=1e-5)
        if len(counted) == M:
            hits += tuple(inside) in oracles.best_sets(index, weight, M, available[i])
            count += 1
    return hits, count


@pytest.mark.parametrize(
    ("neighbourhood", "kind"),
    [
        *(("pause", kind) for kind in KINDS),
        *itertools.product(("alsa", "vanilla"), ("ties", "untried")),
    ],
)
def test_long_chains_reach_an_optimum(neighbourhood, kind):
    problem, available = problems(20, kind)
    trace = batched_anneal(neighbourhood, 1000, 3)(keys_of(20), problem, available)
    hits, count = optima_found(problem, available, trace)
    assert hits == count > 0


@pytest.mark.parametrize("kind", KINDS)
def test_short_chains_may_miss_the_optimum_but_return_a_legal_set(kind):
    problem, available = problems(40, kind, seed=1)
    trace = batched_anneal("pause", 3, 3)(keys_of(40), problem, available)
    hits, count = optima_found(problem, available, trace)
    # If three steps were enough, the test above would say nothing.
    assert 2 * hits < count or kind == "masked"


@pytest.mark.parametrize("kind", ["ties", "untried", "negative"])
def test_best_energy_never_falls_and_best_chain_is_returned(kind):
    problem, available = problems(20, kind)
    trace = batched_anneal("pause", 1000, 3)(keys_of(20), problem, available)
    best = np.asarray(trace.best_energy)
    assert best.shape == (20, 3, 1000)
    assert np.isfinite(best).all()
    assert (np.diff(best, axis=-1) >= 0).all()
    assert (best[:, :, -1] > best[:, :, 0]).any()
    if kind != "untried":
        np.testing.assert_array_equal(trace.energy, best[:, :, -1].max(axis=1))


def test_chain_stays_if_no_client_can_enter():
    problem, _ = problems(40, "ties")
    available = masks([(0, 4, 6), (2, 5)] * 20)
    trace = batched_anneal("pause", 3, 3)(keys_of(40), problem, available)
    clients = np.asarray(trace.clients).tolist()
    assert all(inside == [0, 4, 6] for inside in clients[::2])
    assert all({2, 5} < set(inside) for inside in clients[1::2])
    np.testing.assert_array_equal(trace.acceptance_rate, 0)


@jax.jit
@jax.vmap
def short_search(key, problem, available):
    return Annealing(steps=5, chains=1, cooling=30.0)(key, problem, M, available)


def test_annealing_config_reports_gap_and_acceptance():
    problem, available = problems(40, "continuous", seed=3)
    clients, info = jax.device_get(short_search(keys_of(40), problem, available))
    for i in range(40):
        weight = problem.terms[i].sum(axis=0)
        best = oracles.best_sets(problem.index[i], weight, M)[0]
        gap = oracles.energy(problem.index[i], weight, best) - oracles.energy(
            problem.index[i], weight, clients[i].tolist()
        )
        np.testing.assert_allclose(info.optimality_gap[i], gap, atol=1e-5)
    assert (info.optimality_gap > 0).any()
    assert np.isin(np.round(info.acceptance_rate * 5, 5), range(6)).all()


def test_gap_between_infinite_energies_is_the_weight_difference():
    problem, available = problems(40, "continuous", seed=3)
    untried = problem._replace(index=np.full((40, K), np.inf, np.float32))
    clients, info = jax.device_get(short_search(keys_of(40), untried, available))
    weight = problem.terms.sum(axis=1)
    best = np.sort(weight, axis=1)[:, -M:].sum(axis=1)
    found = np.take_along_axis(weight, clients, axis=1).sum(axis=1)
    assert np.isposinf(info.energy).all()
    np.testing.assert_allclose(info.optimality_gap, best - found, atol=1e-5)
    assert (info.optimality_gap > 0.1).any()


# ---------------------------------------------------------------- the landscape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS)
def test_ranks_sort_the_neighbourhood_lists(neighbourhood, kind):
    problem, found = landscapes(neighbourhood, kind)
    for i, landscape in enumerate(found):
        lists = [problem.index[i], *problem.terms[i]]
        lists = lists[: {"pause": 3, "alsa": 2, "vanilla": 0}[neighbourhood]]
        assert landscape.ranks.shape == (len(lists), K)
        for values, ranks in zip(lists, landscape.ranks, strict=True):
            assert sorted(ranks.tolist()) == list(range(K))
            np.testing.assert_array_equal(values[np.argsort(ranks)], np.sort(values))


def test_equal_values_are_ranked_at_random():
    flat = np.zeros((300, 3, K), np.float32)
    problem = Problem(flat[:, 0], flat[:, 1:], np.ones(300, np.float32))
    ranks = batched_landscape("pause")(problem, np.ones((300, K), bool), keys_of(300)).ranks
    lowest = np.bincount(np.argmin(np.asarray(ranks)[:, 0], axis=1), minlength=K)
    assert stats.chisquare(lowest).pvalue > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_temperature_scale_is_equation_19_for_available_clients(kind):
    problem, found = landscapes("pause", kind, number=30)
    some_absent = 0
    for i, landscape in enumerate(found):
        free = landscape.available
        if free.sum() < M:
            continue
        # Untried clients enter with their finite stand-in.
        index, terms = landscape.index[free], problem.terms[i][:, free]
        expected = oracles.temperature_scale(index, terms, M, OMEGA)
        np.testing.assert_allclose(landscape.temperature_scale, expected, rtol=1e-5, atol=1e-5)
        if kind != "untried":
            np.testing.assert_array_equal(landscape.index, problem.index[i])
        some_absent += not free.all()
    assert some_absent > 5 or kind != "masked"


@pytest.mark.parametrize("neighbourhood", ["alsa", "vanilla"])
def test_temperature_scale_of_alsa_and_vanilla_is_the_energy_range(neighbourhood):
    problem, found = landscapes(neighbourhood, "ties")
    for i, landscape in enumerate(found):
        assert landscape.temperature_scale == problem.energy_range[i]


@pytest.mark.parametrize("kind", ["untried", "ties", "negative"])
def test_finite_replacement_preserves_the_order_of_energies(kind):
    number = 30
    problem, found = landscapes("pause", kind, number=number, seed=4)
    energies_of = jax.jit(jax.vmap(walk_energy, in_axes=(None, 0)))
    for i, landscape in enumerate(found):
        energies = np.asarray(energies_of(landscape, masks(SETS)))
        assert np.isfinite(energies).all()
        weight = problem.terms[i].sum(axis=0)
        keys = [oracles.set_key(problem.index[i], weight, clients) for clients in SETS]
        place = {key: n for n, key in enumerate(sorted(set(keys)))}
        np.testing.assert_array_equal(
            np.unique(energies, return_inverse=True)[1], [place[key] for key in keys]
        )
        if kind != "untried":
            np.testing.assert_array_equal(energies, [key[0] for key in keys])


def test_sum_of_weights_is_independent_of_order():
    problem, found = landscapes("pause", "continuous", seed=8)
    plain = problem.terms.sum(axis=1)

    def sums(weight, clients):
        rows = weight[list(itertools.permutations(clients))]
        return np.unique((rows[:, 0] + rows[:, 1]) + rows[:, 2])

    for landscape in found:
        assert all(len(sums(np.asarray(landscape.weight), clients)) == 1 for clients in SETS)
    assert any(len(sums(plain[0], clients)) > 1 for clients in SETS)
    weights = np.stack([landscape.weight for landscape in found])
    np.testing.assert_allclose(weights, plain, atol=M * np.abs(plain).max() * 2.0**-22)


# ---------------------------------------------------------------- the neighbourhood

masks_of = jax.jit(jax.vmap(neighbour_masks, in_axes=(None, 0)))


@pytest.mark.parametrize("kind", ["ties", "masked"])
@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS)
def test_neighbour_masks_match_the_definition(neighbourhood, kind):
    _, found = landscapes(neighbourhood, kind, number=6, seed=5)
    sizes = set()
    for landscape in found:
        parts = map(np.asarray, masks_of(landscape, masks(SETS)))
        for clients, removable, outside, others, below in zip(SETS, *parts, strict=True):
            if not landscape.available[list(clients)].all():
                continue
            swaps = [
                *itertools.product(np.flatnonzero(removable), np.flatnonzero(outside)),
                *itertools.product(np.flatnonzero(others), np.flatnonzero(below)),
            ]
            reached = [frozenset(clients) - {i} | {j} for i, j in swaps]
            expected = oracles.neighbours(
                landscape.ranks, clients, landscape.available, neighbourhood != "vanilla"
            )
            assert set(reached) == expected
            assert len(reached) == len(expected)
            sizes.add(len(expected))
    assert len(sizes) > 1 or (neighbourhood, kind) == ("vanilla", "ties")


def one_landscape(ranks, index=None, available=None, scale=1.0, num_clients=K):
    flat = np.zeros(num_clients, np.float32)
    index = flat if index is None else np.float32(index)
    available = np.ones(num_clients, bool) if available is None else np.array(available)
    ranks = np.asarray(ranks, np.int32).reshape(-1, num_clients)
    return Landscape(index, flat, ranks, available, np.float32(scale))


def state_at(members, landscape):
    """A chain at a set whose energy has no rounding."""
    members = np.asarray(members)
    energy = landscape.index[members].min() + landscape.weight[members].sum()
    return ChainState(members, energy, members, energy)


steps_from = jax.jit(jax.vmap(chain_step, in_axes=(0, None, None, None, None)))


RANKS = [[0, 1, 2, 3, 4, 5, 6], [3, 5, 6, 0, 1, 2, 4], [6, 5, 4, 3, 2, 1, 0]]


def drawn_neighbours(ranks, clients, number=20_000, available=None):
    """How often each neighbour is drawn where every move is accepted, and all of them."""
    landscape = one_landscape(ranks, index=np.arange(K) * 0.5, available=available)
    state = state_at(masks([clients])[0], landscape)
    moved_to, moved = steps_from(lots_of(number), state, np.int32(1), landscape, 1e-30)
    assert np.all(moved)
    free = landscape.available.tolist()
    expected = oracles.neighbours(np.asarray(ranks).tolist(), clients, free, len(ranks) > 0)
    count = dict.fromkeys(expected, 0)
    rows, times = np.unique(np.asarray(moved_to.members), axis=0, return_counts=True)
    for row, n in zip(rows, times.tolist(), strict=True):
        count[frozenset(np.flatnonzero(row).tolist())] += n
    return count


@pytest.mark.parametrize(
    ("ranks", "clients", "absent", "size"),
    [
        (RANKS[:2], (2, 4, 5), (), 11),  # active and passive neighbours
        (RANKS[:2], (2, 4, 5), (1, 6), 6),
        (RANKS[:2], (0, 3, 6), (), 8),  # active ones only
        (RANKS, (1, 2, 4), (), 12),  # every swap
        ([], (2, 4, 5), (), 12),  # vanilla
    ],
)
def test_a_proposal_is_a_uniform_neighbour(ranks, clients, absent, size):
    count = drawn_neighbours(ranks, clients, available=~np.isin(np.arange(K), absent))
    assert len(count) == size
    assert all(not clients & set(absent) for clients in count)
    assert sum(count.values()) == 20_000
    assert stats.chisquare(list(count.values())).pvalue > 1e-4


def test_chains_start_at_a_uniform_set_of_available_clients():
    landscape = one_landscape([], available=[True, True, False, True, True, True, False])
    start = jax.jit(jax.vmap(lambda key: init_chain(key, landscape, M)))(keys_of(5000))
    rows, times = np.unique(np.asarray(start.members), axis=0, return_counts=True)
    assert len(rows) == math.comb(5, M)
    assert not rows[:, [2, 6]].any()
    assert stats.chisquare(times).pvalue > 1e-4
    np.testing.assert_array_equal(start.best_members, start.members)
    np.testing.assert_array_equal(start.best_energy, start.energy)


# ---------------------------------------------------------------- acceptance


def acceptance(drop, step, cooling, scale=2.0):
    """Share of accepted moves between two sets whose energies differ by ``drop``."""
    landscape = one_landscape([], index=[drop, 0.0], scale=scale, num_clients=2)
    state = state_at([True, False], landscape)
    moved_to, moved = jax.device_get(
        steps_from(lots_of(20_000), state, np.int32(step), landscape, cooling)
    )
    np.testing.assert_array_equal(moved_to.members[:, 1], moved)
    np.testing.assert_array_equal(moved_to.energy, np.where(moved, 0, np.float32(drop)))
    return moved.mean()


def z_score(share, probability, number=20_000):
    return (share - probability) / math.sqrt(probability * (1 - probability) / number)


@pytest.mark.parametrize(("step", "cooling"), [(1, 1.0), (10, 1.0), (3, 3.0), (500, 0.25)])
@pytest.mark.parametrize("drop", [1.0, 0.5])
def test_downhill_moves_follow_the_boltzmann_factor(step, cooling, drop):
    temperature = 2.0 / (cooling * math.log(1 + step))
    share = acceptance(drop, step, cooling)
    assert abs(z_score(share, math.exp(-drop / temperature))) < 4.5
    # The same draws do not fit a temperature that is half as high or twice as high.
    assert abs(z_score(share, math.exp(-drop / (temperature * 2)))) > 8
    assert abs(z_score(share, math.exp(-drop / (temperature / 2)))) > 8


@pytest.mark.parametrize(("drop", "share"), [(-1.0, 1), (-1e-3, 1), (0.0, 1), (1.0, 0)])
def test_a_cold_chain_moves_only_uphill_or_level(drop, share):
    assert acceptance(drop, 10_000, 1e6) == share
