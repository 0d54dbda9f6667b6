"""Paired differences: agreement with SciPy and rate of false positives."""

import functools

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from pause_jax.analysis.comparison import differences
from pause_jax.base.struct import ConfigError


def values(rows, names="abcdefgh"):
    rows = np.asarray(rows, float)
    return xr.DataArray(rows, dims=("config", "seed"), coords={"config": list(names[: len(rows)])})


def test_interval_of_two_configs_matches_scipy():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 6))
    found = differences(values([ours, theirs]), "a")["b"]
    oracle = stats.ttest_rel(theirs, ours).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), (oracle.low, oracle.high))
    assert found.mean == pytest.approx((theirs - ours).mean())
    assert (found.pairs, found.seeds) == (6, 6)


def test_intervals_of_many_configs_have_bonferroni_width():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(5, 7))
    found = differences(values(table), "c")
    assert list(found) == ["a", "b", "d", "e"]
    for name, each in found.items():
        row = table["abcde".index(name)]
        oracle = stats.ttest_rel(row, table[2]).confidence_interval(1 - 0.05 / 4)
        np.testing.assert_allclose((each.low, each.high), (oracle.low, oracle.high))


def test_common_seed_effects_do_not_hide_a_difference():
    world = np.array([0.0, 100.0, 50.0, 75.0])
    more = world + np.array([1.0, 1.1, 0.9, 1.0])
    found = differences(values([world, more]), "a")["b"]
    assert found.shown == 1
    assert differences(values([more, world]), "a")["b"].shown == -1


def test_one_seed_has_no_interval():
    found = differences(values([[1.0], [9.0]]), "a")["b"]
    assert (found.mean, found.pairs, found.shown) == (8.0, 1, 0)
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_missing_seeds_make_a_difference_insignificant():
    rows = [[1.0, 1.0, 1.0, 1.0], [5.0, 5.1, 4.9, np.nan]]
    found = differences(values(rows), "a")["b"]
    assert (found.pairs, found.seeds, found.shown) == (3, 4, 0)
    assert found.low > 0
    assert differences(values([[np.nan, 1.0], [1.0, np.nan]]), "a")["b"].pairs == 0


def test_identical_configs_do_not_differ():
    assert differences(values([[1.0, 2.0, 3.0]] * 2), "a")["b"].shown == 0


def test_unknown_config_is_named():
    with pytest.raises(ConfigError, match="against = 'z': must be one of a, b"):
        differences(values([[1.0], [2.0]]), "z")


@functools.cache
def equal_configs():
    """600 tables of six equal configs, and the name of the one that looks best."""
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=(6, 5)) + 3 * rng.normal(size=5) for _ in range(600)]
    return [(values(each), "abcdef"[each.mean(axis=1).argmax()]) for each in rows]


def rate_of_finding_nothing_there(comparisons):
    """How often anything is shown, against the one that looks best."""
    found = [differences(*each, comparisons=comparisons) for each in equal_configs()]
    return np.mean([any(each.shown for each in table.values()) for table in found])


@pytest.mark.slow
def test_best_of_equal_configs_rarely_differs_significantly():
    assert rate_of_finding_nothing_there(comparisons=15) <= 0.05


@pytest.mark.slow
def test_counting_too_few_comparisons_finds_false_differences():
    assert rate_of_finding_nothing_there(comparisons=5) > 0.065
    assert rate_of_finding_nothing_there(comparisons=1) > 0.25
