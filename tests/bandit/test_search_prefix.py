"""Exact search above 64 clients against a plain walk over all prefixes."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax.bandit.search import exact
from pause_jax.bandit.search.exact import best_prefix
from pause_jax.bandit.search.problem import ordered
from pause_jax.rng.summation import tree_sum
from tests.reference import scan

pytestmark = pytest.mark.slow

# One place after the first m; one client's cohort; two full blocks after the first m, one place
# more, one fewer; m above and below the least block; many blocks.
SHAPES = [(65, 64), (65, 1), (69, 5), (70, 5), (68, 5), (300, 40), (1000, 15), (5000, 100)]
BATCH = 14


def instances(num_clients, num_selected, seed=0):
    """Adversarial orders, [BATCH, K] each: index, weight, available. Sums are exact in float32."""
    rng = np.random.default_rng(seed)
    place = np.arange(num_clients)
    few = np.array([-1.0, -0.5, 0.0, 0.25, 2.0])
    grid = rng.integers(-512, 512, num_clients) / 256
    rising = place / 64
    everyone = np.ones(num_clients, bool)
    rows = [
        (-rising, grid, everyone),
        # Every place is an entry: the last prefix, the first one, or all of them are best.
        (-rising, rising, everyone),
        (-rising * 2 * num_selected, rising, everyone),
        (-rising * num_selected, rising, everyone),
        (-rising, -rising, everyone),
        (-np.sqrt(place).round() * num_selected / 4, rising, everyone),
        (np.zeros(num_clients), grid, everyone),
        (-rising, np.full(num_clients, 0.25), everyone),
        (rng.choice(few, num_clients), rng.choice(few, num_clients), everyone),
        (np.where(rng.random(num_clients) < 0.5, np.inf, -rising), grid, everyone),
        (np.where(place < num_selected - 1, np.inf, -np.inf), grid, everyone),
        (np.where(place < num_clients // 2, grid, -np.inf), grid, place >= num_clients // 3),
        (-rising, grid, place < num_selected),
        (grid, rising, place < num_selected - 1),
    ]
    shuffle = [rng.permutation(num_clients) for _ in rows]
    index, weight, available = (
        np.stack([row[i][order] for row, order in zip(rows, shuffle, strict=True)])
        for i in range(3)
    )
    return index.astype(np.float32), weight.astype(np.float32), available


@cache
def batched(num_selected):
    return jax.jit(jax.vmap(lambda u, w, a, key: exact(u, w, num_selected, available=a, key=key)))


def value(index, weight, clients):
    """What decides between two sets: the energy, then the sum of weights."""
    total = math.fsum(weight[clients])
    return float(index[clients].min()) + total, total


@pytest.mark.parametrize(("num_clients", "num_selected"), SHAPES)
def test_adversarial_orders_match_the_plain_walk(num_clients, num_selected):
    index, weight, available = instances(num_clients, num_selected)
    assert len(index) == BATCH
    clients, energy = map(np.asarray, batched(num_selected)(index, weight, available, None))
    assert (np.diff(clients, axis=1) > 0).all()
    for i in range(BATCH):
        best, expected = scan.best_set(index[i], weight[i], num_selected, available[i])
        if expected is None:
            assert set(np.flatnonzero(available[i])) <= set(clients[i])
        else:
            assert clients[i].tolist() == expected, i
            assert energy[i] == best[0]


def test_random_ties_change_the_set_but_not_its_value():
    num_clients, num_selected = 1000, 15
    index, weight, available = instances(num_clients, num_selected, seed=1)
    found = []
    for seed in range(3):
        keys = jax.random.split(jax.random.key(seed), BATCH)
        found.append(np.asarray(batched(num_selected)(index, weight, available, keys)[0]))
    for i in range(BATCH):
        best, expected = scan.best_set(index[i], weight[i], num_selected, available[i])
        for clients in found:
            if expected is not None:
                assert available[i][clients[i]].all()
                assert value(index[i], weight[i], clients[i]) == best
    assert (found[0] != found[1]).any()


def test_equal_clients_in_a_large_network_are_chosen_equally_often():
    number, num_clients, tied = 4000, 70, 40
    # Forty equal clients share the highest index and compete for three of five slots.
    index = np.where(np.arange(num_clients) < tied, 1.0, -9.0).astype(np.float32)
    index[-2:] = 2.0
    rows = (number, num_clients)
    keys = jax.random.split(jax.random.key(8), number)
    ones = np.ones(rows, bool)
    clients, energy = batched(5)(np.broadcast_to(index, rows), np.zeros(rows), ones, keys)
    assert (np.asarray(energy) == 1.0).all()
    counts = np.bincount(np.ravel(clients), minlength=num_clients)
    assert (counts[-2:] == number).all()
    assert counts[tied:-2].sum() == 0
    # Draws without replacement vary less than independent ones: scale the statistic.
    spread = counts[:tied].mean() * (1 - 3 / tied) * tied / (tied - 1)
    statistic = ((counts[:tied] - counts[:tied].mean()) ** 2).sum() / spread
    assert 1e-4 < stats.chi2.sf(statistic, tied - 1) < 1 - 1e-4


def every_prefix(index, weight, num_selected):
    """The value of each prefix in float32, valued one by one."""
    place = jnp.arange(len(index))

    def one(end):
        top, _ = jax.lax.top_k(jnp.where(place <= end, weight, -jnp.inf), num_selected)
        return index[end] + tree_sum(top)

    return jax.vmap(one)(place)


@jax.jit
@jax.vmap
def best_and_every_prefix(index, weight):
    return best_prefix(index, weight, 7), every_prefix(index, weight, 7)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_no_rounding_error_hides_the_best_prefix(scale):
    # The index falls about as fast as the sum of weights grows, by a few roundings a place.
    rng = np.random.default_rng(5)
    steps = rng.random((40, 200)) * 2e-6
    weight = (scale + np.cumsum(steps, axis=1)).astype(np.float32)
    index = -np.cumsum(rng.random((40, 200)) * 14e-6, axis=1).astype(np.float32)
    index = np.sort(index)[:, ::-1]
    best, values = map(np.array, best_and_every_prefix(index, weight))
    values[:, :6] = -np.inf
    assert len(set(best.tolist())) > 1
    np.testing.assert_array_equal(values[np.arange(40), best], values.max(axis=1))


jitted_order = jax.jit(ordered)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_ordered_sorts_by_value_then_number_with_unavailable_last(dtype):
    rng = np.random.default_rng(3)
    numbers = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, 1e-3]
    value = rng.choice([-7, 0, 3] if dtype == np.int32 else numbers, 60).astype(dtype)
    available = rng.random(60) < 0.7
    usable = np.flatnonzero(available)
    expected = usable[np.argsort(-value[usable], kind="stable")]
    order = np.asarray(jitted_order(value, available, None))
    np.testing.assert_array_equal(order[: len(usable)], expected)
    assert sorted(order.tolist()) == list(range(60))
    lots = np.asarray(jitted_order(value, available, jax.random.key(1)))
    np.testing.assert_array_equal(value[lots[: len(usable)]], value[expected])
    assert sorted(lots.tolist()) == list(range(60))
    assert (lots[: len(usable)] != expected).any()
