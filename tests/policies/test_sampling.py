"""MD and clustered sampling: closed forms, unbiasedness, variance; round robin."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pause_jax.policies import ClusteredSize, MdSampling, RoundRobin
from pause_jax.policies.sampling import size_distributions
from tests.reference.policies import poured_bins
from tests.support.network import context, drawn, jitted, observation, play

M = 4
# The third client holds more than 1/m of the data.
SIZES = np.array([3, 1, 14, 2, 2, 5, 1, 4])
# Two lengths: each is a program.
sizes_of_data = st.sampled_from([5, 8]).flatmap(
    lambda number: st.lists(st.integers(1, 50), min_size=number, max_size=number)
)
# One program a shape: by itself each of its operations is one.
distributions = jax.jit(size_distributions, static_argnums=1)


@functools.cache
def weights_of(config):
    """Aggregation weight of each client in many independent rounds, [draws, K]."""
    policy = config.build(context(SIZES, M))
    return drawn(policy.select, 20_000, policy.init(), 1, np.ones(len(SIZES), bool))


@pytest.mark.slow
@given(sizes_of_data, st.integers(1, 5))
def test_distributions_match_the_oracle_and_are_unbiased(sizes, m):
    rows = np.asarray(distributions(np.asarray(sizes, np.float32), m))
    np.testing.assert_allclose(rows, poured_bins(sizes, m), atol=2e-5)
    share = np.array(sizes) / sum(sizes)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(rows.sum(axis=0), m * share, atol=1e-5)
    variance = (rows * (1 - rows)).sum(axis=0) / m**2
    assert (variance <= share * (1 - share) / m + 1e-6).all()


@pytest.mark.parametrize("config", [MdSampling(), ClusteredSize()])
def test_weights_are_unbiased(config):
    weights = weights_of(config)
    share = SIZES / SIZES.sum()
    error = weights.std(axis=0) / len(weights) ** 0.5
    assert (np.abs(weights.mean(axis=0) - share) <= 5 * error + 1e-6).all()
    # Negative control: uniform shares are far off.
    assert (np.abs(weights.mean(axis=0) - 1 / len(SIZES)) > 5 * error + 1e-6).any()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(weights * M, np.round(weights * M), atol=1e-5)


def test_variance_matches_closed_form_and_clustered_is_at_most_md():
    share = SIZES / SIZES.sum()
    md, clustered = weights_of(MdSampling()).var(axis=0), weights_of(ClusteredSize()).var(axis=0)
    rows = poured_bins(SIZES.tolist(), M)
    np.testing.assert_allclose(md, share * (1 - share) / M, rtol=0.06)
    np.testing.assert_allclose(clustered, (rows * (1 - rows)).sum(axis=0) / M**2, atol=4e-4)
    assert (clustered <= md + 4e-4).all()


def turns(config, m, masks):
    """The cohorts of some rounds, in which these clients are available."""
    policy = jitted(config.build(context(np.ones(len(masks[0])), m)))
    rounds = play(policy, np.array(masks, bool), lambda *_: observation(np.ones(m)))
    return [each.selection.clients.tolist() for each in rounds]


def test_round_robin_takes_turns_and_skips_the_absent():
    masks = [[1, 1, 1, 1, 1]] * 3 + [[1, 0, 1, 1, 1]]
    assert turns(RoundRobin(), 2, masks) == [[0, 1], [2, 3], [4, 0], [2, 3]]


def test_shuffled_round_robin_visits_every_client_once():
    num_clients, m = 40, 4
    masks = np.ones((num_clients // m, num_clients))
    seen = turns(RoundRobin(order="shuffled"), m, masks)
    assert sorted(np.ravel(seen)) == list(range(num_clients))
    assert min(np.ptp(seen, axis=1)) > m - 1
