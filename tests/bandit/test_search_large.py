"""Annealing among a million clients: sets, energies, counts beyond int32, uniform draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax.bandit.search.annealing import FEW, ChainState, _below, chain_step, init_chain
from pause_jax.bandit.search.landscape import (
    Landscape,
    make_landscape,
    neighbour_masks,
    num_swaps,
    walk_energy,
)
from pause_jax.search import Problem, anneal

pytestmark = pytest.mark.slow

K = 1_000_000
STEPS, CHAINS = 8, 1


@functools.cache
def problem():
    rng = np.random.default_rng(0)
    index, terms = rng.normal(size=K), rng.uniform(size=(2, K)) / 100
    return Problem(jnp.asarray(index, jnp.float32), jnp.asarray(terms, jnp.float32), jnp.ones(()))


@functools.partial(jax.jit, static_argnums=(2, 3))
def chains_of(key, problem, num_selected, neighbourhood):
    """The trace, and the energy at which each chain starts, by the keys that ``anneal`` splits."""
    trace = anneal(
        *(key, problem, num_selected),
        neighbourhood=neighbourhood,
        steps=STEPS,
        chains=CHAINS,
        cooling=1e4,
    )
    landscape_key, chain_key = jax.random.split(key)
    everybody = jnp.ones(K, bool)
    landscape = make_landscape(problem, num_selected, everybody, neighbourhood, landscape_key)

    def start(key):
        return init_chain(jax.random.split(key)[0], landscape, num_selected).energy

    return trace, jax.vmap(start)(jax.random.split(chain_key, CHAINS))


@pytest.mark.parametrize(("num_selected", "neighbourhood"), [(10, "vanilla"), (2200, "pause")])
def test_chains_among_a_million_return_the_best_set_that_they_saw(num_selected, neighbourhood):
    made = chains_of(jax.random.key(1), problem(), num_selected, neighbourhood)
    trace, start = jax.device_get(made)
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
    index, weight = (np.asarray(x, float) for x in (problem().index, problem().weight))
    exact = index[clients].min() + weight[clients].sum()
    assert trace.energy == pytest.approx(exact, abs=1e-4)
    # The walk rounds weights to a grid, so that sums of m have the same bits in any order.
    grid = float(np.spacing(np.float32(3 * num_selected * weight.max())))
    assert trace.best_energy[:, -1].max() == pytest.approx(exact, abs=num_selected * grid)


def random_start(num_selected, seed=0):
    """(landscape of three random lists, members)."""
    rng = np.random.default_rng(seed)
    ranks = np.stack([rng.permutation(K) for _ in range(3)]).astype(np.int32)
    index = jnp.asarray(rng.normal(size=K), jnp.float32)
    members = np.zeros(K, bool)
    members[rng.choice(K, num_selected, replace=False)] = True
    ready = jnp.asarray(ranks), jnp.ones(K, bool), jnp.ones(())
    return Landscape(index, jnp.zeros(K), *ready), jnp.asarray(members)


def swaps_by_definition(ranks, members):
    """(lowest members of some list, who stands below all members of some list)."""
    inside = np.flatnonzero(members)
    lowest = [inside[np.argmin(rank[inside])] for rank in ranks]
    below = [np.flatnonzero(rank < rank[i]) for rank, i in zip(ranks, lowest, strict=True)]
    return set(map(int, lowest)), set(np.concatenate(below).tolist())


@pytest.mark.parametrize("num_selected", [10, 2200, 400_000])
def test_neighbours_among_a_million_clients_are_counted_right(num_selected):
    landscape, members = random_start(num_selected)
    masks = jax.jit(neighbour_masks)(landscape, members)
    lowest, below = swaps_by_definition(np.asarray(landscape.ranks), np.asarray(members))
    exact = len(lowest) * (K - num_selected), (num_selected - len(lowest)) * len(below)
    found = num_swaps(*masks[:2]), num_swaps(*masks[2:])
    np.testing.assert_allclose([float(x) for x in found], exact, rtol=2.0**-23)
    assert max(exact) > 2**20


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


def test_a_proposal_among_a_million_clients_is_a_uniform_neighbour():
    landscape, members = random_start(10)
    lots = jax.random.bits(jax.random.key(2), (16, 4), jnp.uint32)
    left, entered, *numbers = jax.device_get(proposals(lots, landscape, members))
    np.testing.assert_array_equal(numbers, 1)
    lowest, below = swaps_by_definition(np.asarray(landscape.ranks), np.asarray(members))
    active = np.isin(left, list(lowest))
    assert set(entered[~active].tolist()) <= below
    each = len(lowest) * (K - 10), (10 - len(lowest)) * len(below)
    assert stats.binomtest(int(active.sum()), len(lots), each[0] / sum(each)).pvalue > 1e-3
    assert 0.2 < each[0] / sum(each) < 0.9
    for who, pool in ((active, np.arange(K)), (~active, np.sort(list(below)))):
        places = np.searchsorted(pool, entered[who]) / len(pool)
        assert stats.kstest(places, "uniform").pvalue > 1e-3


@functools.partial(jax.jit, static_argnums=(1, 2))
def times_drawn(words, count, num_clients):
    drawn = _below(words, jnp.asarray(count), num_clients).astype(int)
    return jnp.zeros(count, jnp.int32).at[drawn].add(1)


def test_each_of_a_million_clients_is_drawn_as_often():
    words = jax.random.bits(jax.random.key(3), (2**23,), jnp.uint32)
    assert stats.chisquare(np.asarray(times_drawn(words, K, K))).pvalue > 1e-4
    # A float32 has 2^23 numbers below 1: eight or nine of them for each client.
    assert stats.chisquare(np.asarray(times_drawn(words, K, FEW))).pvalue < 1e-9


def test_none_of_ten_million_clients_is_out_of_reach():
    count, words = 10 * K, jax.random.bits(jax.random.key(4), (2**23,), jnp.uint32)
    expected = count * -np.expm1(len(words) * np.log1p(-1 / count))

    def distinct(num_clients):
        return int(jnp.sum(times_drawn(words, count, num_clients) > 0))

    assert distinct(count) == pytest.approx(expected, rel=2e-3)
    assert distinct(FEW) < 0.95 * expected


@pytest.mark.parametrize("count", [1, 5, 300, FEW])
def test_a_few_clients_are_drawn_by_floats_to_within_their_resolution(count):
    """Of all 2^23 lots each client has its share, give or take the rounding of a product."""
    words = jnp.arange(2**23, dtype=jnp.uint32) << 9
    times = np.asarray(times_drawn(words, count, FEW))
    assert np.abs(times - 2**23 / count).max() <= 2 + 2**23 / count * count / 2**24
