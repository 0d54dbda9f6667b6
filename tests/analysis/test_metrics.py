"""Metrics, against hand-made data."""

import numpy as np
import pytest
import xarray as xr

from pause_jax import ConfigError, metrics


@pytest.fixture
def result():
    """Two configs, three seeds, four evaluations; the second config stops after two."""
    accuracy = np.array(
        [
            [[0.2, 0.5, 0.9, 0.7], [0.1, 0.8, 0.8, 0.9], [0.1, 0.2, 0.3, 0.4]],
            [[0.9, 0.1, np.nan, np.nan], [0.3, 0.2, np.nan, np.nan], [0.8, 0.85, np.nan, np.nan]],
        ]
    )
    clock = np.broadcast_to([10.0, 20.0, 30.0, 40.0], (2, 3, 4)).copy()
    clock[1, :, 2:] = np.nan
    counts = np.array([[[4, 4, 4, 4]] * 3, [[8, 8, -1, -1]] * 3])
    return xr.Dataset(
        {
            "test_accuracy": (("config", "seed", "eval_round"), accuracy),
            "test_loss": (("config", "seed", "eval_round"), 2 - accuracy),
            "eval_clock": (("config", "seed", "eval_round"), clock),
            "clock": (("config", "seed", "round"), clock),
            "counts": (("config", "seed", "client"), counts),
            "downloaded": (("config", "seed", "round"), 3e9 * clock),
            "uploaded": (("config", "seed", "round"), 1e9 * clock),
            "regret": (("config", "seed", "round"), np.where(np.isnan(clock), np.nan, 1.0)),
            "spent": (("config", "seed", "client"), np.where(counts < 0, np.nan, counts / 2)),
        },
        coords={"config": ["a", "b"]},
    )


def test_time_to_accuracy_is_the_first_crossing(result):
    seconds = metrics.time_to_accuracy(result, 0.8)
    np.testing.assert_array_equal(seconds, [[30, 20, np.nan], [10, np.nan, 10]])


FINAL: dict[str, list[list[float]]] = {
    "final_accuracy": [[0.7, 0.9, 0.4], [0.1, 0.2, 0.85]],
    "final_loss": [[1.3, 1.1, 1.6], [1.9, 1.8, 1.15]],
    "gigabytes": [[400] * 3, [120] * 3],
    "simulated_seconds": [[40] * 3, [20] * 3],
    "total_regret": [[4] * 3, [2] * 3],
    "final_spent": [[2] * 3, [4] * 3],
}


@pytest.mark.parametrize("name", FINAL)
def test_metric_is_of_each_configs_last_round(result, name):
    np.testing.assert_allclose(getattr(metrics, name)(result), FINAL[name])


def test_final_accuracy_is_nan_for_a_non_finite_model(result):
    result.test_accuracy[0, 0, 3] = np.nan
    assert np.isnan(metrics.final_accuracy(result)[0, 0])


def test_fairness_is_one_if_equal_and_m_over_k_if_fixed(result):
    np.testing.assert_allclose(metrics.participation_fairness(result), 1.0)
    result.counts[0, 0] = [10, 0, 0, 0]
    np.testing.assert_allclose(metrics.participation_fairness(result)[0, 0], 0.25)


def test_mean_and_error_match_numpy_and_ignore_nan(result):
    values = metrics.time_to_accuracy(result, 0.8)
    mean, error = metrics.mean_and_error(values)
    np.testing.assert_allclose(mean, [25, 10])
    np.testing.assert_allclose(error, [np.std([30, 20], ddof=1) / 2**0.5, 0])


def test_one_seed_has_no_error_and_infinity_is_kept():
    mean, error = metrics.mean_and_error(xr.DataArray([[3.0], [np.inf]], dims=("config", "seed")))
    np.testing.assert_array_equal(mean, [3, np.inf])
    assert np.isnan(error).all()


def test_unplayed_round_is_not_empty(result):
    clients = np.full((2, 3, 4, 2), -1)
    clients[0, :, 0] = [3, -1]
    result["clients"] = (("config", "seed", "round", "slot"), clients)
    result["played"] = (("config", "seed", "round"), ~np.isnan(result.clock.values))
    empty = metrics.empty_rounds(result)
    np.testing.assert_array_equal(empty[0], [[False, True, True, True]] * 3)
    np.testing.assert_array_equal(empty[1], [[True, True, False, False]] * 3)


def test_worst_share_is_the_mean_of_the_lowest_client_values():
    clients = np.arange(25)[::-1] / 100
    gaps = np.where(np.arange(25) < 12, np.nan, clients)  # 13 clients left, 0.00 to 0.12
    one = np.where(np.arange(25) == 7, 0.5, np.nan)
    values = xr.DataArray([clients, gaps, one, np.full(25, np.nan)], dims=("config", "client"))
    worst = metrics.worst_share(values)
    assert worst.dims == ("config",)
    np.testing.assert_allclose(worst, [0.005, 0.0, 0.5, np.nan])
    np.testing.assert_allclose(metrics.worst_share(values, 0.24), [0.025, 0.01, 0.5, np.nan])
    np.testing.assert_allclose(metrics.worst_share(values.T, 1.0), [0.12, 0.06, 0.5, np.nan])
    for share in (0, 1.5):
        with pytest.raises(ConfigError, match=r"share = .*: must be > 0 and <= 1"):
            metrics.worst_share(values, share)
