"""Annealing among a million clients: sets, energies, counts beyond int32, uniform draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax.bandit.search import Problem, anneal
from pause_jax.bandit.search.annealing import (
    FEW,
    ChainState,
    Landscape,
    _below,
    chain_step,
    init_chain,
    make_landscape,
    neighbour_masks,
    num_swaps,
    walk_energy,
)

pytestmark = pytest.mark.slow

K = 1_000_000
STEPS, CHAINS = 8, 1
LOTS = np.random.default_rng(2).integers(2**32, size=(16, 4), dtype=np.uint32)


@functools.cache
def problem():
    rng = np.random.default_rng(0)
    index, terms = rng.normal(size=K), rng.uniform(size=(1, K)) / 100
    return Problem(index.astype(np.float32), terms.astype(np.float32), np.float32(1))


@functools.partial(jax.jit, static_argnums=2)
def chains_of(key, problem, num_selected):
    """The trace, and the energy at which each chain starts, by the keys that ``anneal`` splits."""
    trace = anneal(key, problem, num_selected, steps=STEPS, chains=CHAINS, cooling=1e4)
    landscape_key, chain_key = jax.random.split(key)
    everybody = jnp.ones(K, bool)
    # Energies do not depend on the neighbourhood, and vanilla sorts no lists.
    landscape = make_landscape(problem, num_selected, everybody, "vanilla", landscape_key)

    def start(key):
        return init_chain(jax.random.split(key)[0], landscape, num_selected).energy

    return trace, jax.vmap(start)(jax.random.split(chain_key, CHAINS))


@pytest.mark.nightly
def test_chains_among_a_million_clients_return_their_best_set():
    num_selected = 2200
    trace, start = jax.device_get(chains_of(jax.random.key(1), problem(), num_selected))
    clients = trace.clients.tolist()
    assert clients == sorted(set(clients))
    assert len(clients) == num_selected
    assert 0 <= clients[0] <= clients[-1] < K
    path = np.concatenate([start[:, None], trace.current_energy], axis=1)
    # Energies are continuous: a move changes them, and a rejected step does not.
    moved = np.diff(path, axis=1) != 0
    assert 0 < moved.sum() < moved.size
    assert trace.acceptance_rate == pytest.approx(moved.mean())
    np.testing.assert_array_equal(trace.best_energy, np.maximum.accumulate(path, axis=1)[:, 1:])
    assert (trace.best_energy[:, -1] > start).all()
    index, weight = problem().index.astype(float), problem().terms.astype(float).sum(axis=0)
    exact = index[clients].min() + weight[clients].sum()
    assert trace.energy == pytest.approx(exact, abs=1e-4)
    # The walk rounds weights to a grid, so that sums of m have the same bits in any order.
    grid = float(np.spacing(np.float32(3 * num_selected * weight.max())))
    assert trace.best_energy[:, -1].max() == pytest.approx(exact, abs=num_selected * grid)


@functools.cache
def landscape():
    """Three random lists."""
    rng = np.random.default_rng(0)
    ranks = np.stack([rng.permutation(K) for _ in range(3)]).astype(np.int32)
    index, flat = rng.normal(size=K).astype(np.float32), np.zeros(K, np.float32)
    return Landscape(index, flat, ranks, np.ones(K, bool), np.float32(1))


def random_members(num_selected):
    members = np.zeros(K, bool)
    members[np.random.default_rng(1).choice(K, num_selected, replace=False)] = True
    return members


def swaps_by_definition(ranks, members):
    """(lowest members of some list, who stands below all members of some list), ascending."""
    inside = np.flatnonzero(members)
    lowest = [inside[np.argmin(rank[inside])] for rank in ranks]
    below = [rank < rank[i] for rank, i in zip(ranks, lowest, strict=True)]
    return np.unique(lowest), np.flatnonzero(np.any(below, axis=0))


@jax.jit
def swaps(landscape, members):
    """(active neighbours, passive ones)."""
    masks = neighbour_masks(landscape, members)
    return jnp.stack([num_swaps(*masks[:2]), num_swaps(*masks[2:])])


@pytest.mark.parametrize("num_selected", [10, 2200, 400_000])
def test_neighbours_among_a_million_clients_are_counted_correctly(num_selected):
    members = random_members(num_selected)
    lowest, below = swaps_by_definition(landscape().ranks, members)
    exact = len(lowest) * (K - num_selected), (num_selected - len(lowest)) * len(below)
    np.testing.assert_allclose(swaps(landscape(), members), exact, rtol=2.0**-23)
    assert max(exact) > 2**20
    every_swap = num_swaps(members, ~members)
    np.testing.assert_allclose(every_swap, num_selected * (K - num_selected), rtol=2.0**-23)


@jax.jit
def proposals(lots, landscape, members):
    """(who leaves, who enters) at every step from the same start; the walk is so hot that it takes
    any proposal.
    """
    energy = walk_energy(landscape, members)
    start = ChainState(members, energy, members, energy)

    def one(lots):
        after, moved = chain_step(lots, start, jnp.asarray(1), landscape, 1e-30)
        left, entered = members & ~after.members, after.members & ~members
        return jnp.argmax(left), jnp.argmax(entered), jnp.sum(left), jnp.sum(entered), moved

    return jax.lax.map(one, lots)


@pytest.mark.nightly
def test_a_proposal_among_a_million_clients_is_a_uniform_neighbour():
    members = random_members(10)
    left, entered, *numbers = jax.device_get(proposals(LOTS, landscape(), members))
    np.testing.assert_array_equal(numbers, 1)
    lowest, below = swaps_by_definition(landscape().ranks, members)
    active = np.isin(left, lowest)
    assert np.isin(entered[~active], below).all()
    each = len(lowest) * (K - 10), (10 - len(lowest)) * len(below)
    assert stats.binomtest(int(active.sum()), len(LOTS), each[0] / sum(each)).pvalue > 1e-3
    assert 0.2 < each[0] / sum(each) < 0.9
    for who, pool in ((active, np.arange(K)), (~active, below)):
        places = np.searchsorted(pool, entered[who]) / len(pool)
        assert stats.kstest(places, "uniform").pvalue > 1e-3


@pytest.mark.nightly
def test_walk_continues_with_more_neighbours_than_int32():
    members = landscape().ranks[0] >= K - 2200  # all others stand below them in this list
    active, passive = map(float, swaps(landscape(), members))
    assert min(active, passive) > 2**20
    assert passive > 2**31
    *_, num_left, num_entered, moved = proposals(LOTS, landscape(), members)
    np.testing.assert_array_equal([num_left, num_entered, moved], 1)


drawn = jax.jit(_below, static_argnums=2)


def times_drawn(words, count, num_clients):
    """How often each of ``count`` clients is drawn."""
    clients = np.asarray(drawn(words, np.int32(count), num_clients), np.int32)
    return np.bincount(clients, minlength=count)


def many_words(seed):
    return np.random.default_rng(seed).integers(2**32, size=2**23, dtype=np.uint32)


def test_a_million_clients_are_drawn_equally_often():
    words = many_words(3)
    assert stats.chisquare(times_drawn(words, K, K)).pvalue > 1e-4
    # A float32 has 2^23 numbers below 1: eight or nine of them for each client.
    assert stats.chisquare(times_drawn(words, K, FEW)).pvalue < 1e-9


def test_every_one_of_ten_million_clients_is_reachable():
    count, words = 10 * K, many_words(4)
    expected = count * -np.expm1(len(words) * np.log1p(-1 / count))

    def distinct(num_clients):
        return np.count_nonzero(times_drawn(words, count, num_clients))

    assert distinct(count) == pytest.approx(expected, rel=2e-3)
    assert distinct(FEW) < 0.95 * expected


@pytest.mark.parametrize("count", [1, 5, 300, FEW])
def test_small_draws_by_floats_are_uniform_to_their_resolution(count):
    """Of all 2^23 lots each client has its share, give or take the rounding of a product."""
    words = np.arange(2**23, dtype=np.uint32) << np.uint32(9)
    times = times_drawn(words, count, FEW)
    assert np.abs(times - 2**23 / count).max() <= 2 + 2**23 / count * count / 2**24
