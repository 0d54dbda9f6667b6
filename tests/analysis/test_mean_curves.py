"""The curves that figures and reports draw, against hand-made data."""

import numpy as np
import pytest

from pause_jax.analysis.curves import Curve, by_round, hidden, progress, starts_at_zero
from tests.support.results import made


def test_curve_is_the_mean_until_the_first_seed_ends():
    result = made({"a": None, "b": None}, seeds=3)
    result.eval_clock[1, 2, 3:] = np.nan  # one run of `b` ended early
    result.clock[1, 2, 15:] = np.nan
    accuracy, clock = 100 * result.test_accuracy.values, result.eval_clock.values
    whole, cut = progress(result).values()
    np.testing.assert_allclose(whole.x, clock[0].mean(axis=0))
    np.testing.assert_allclose(whole.mean, accuracy[0].mean(axis=0))
    np.testing.assert_allclose(whole.error, accuracy[0].std(axis=0, ddof=1) / 3**0.5)
    np.testing.assert_allclose(cut.mean[:3], accuracy[1].mean(axis=0)[:3])
    assert np.isnan([cut.x[3], cut.mean[3]]).all()

    whole, cut = by_round(result.clock).values()
    np.testing.assert_array_equal(whole.x, np.arange(1, 21))
    np.testing.assert_allclose(whole.mean, result.clock.values[0].mean(axis=0))
    np.testing.assert_allclose(cut.mean[:15], result.clock.values[1].mean(axis=0)[:15])
    assert np.isnan(cut.mean[15:]).all()


def test_curve_falls_back_to_loss_or_is_omitted():
    curve = progress(made({"a": None}, learning="loss"))["a"]
    np.testing.assert_allclose(
        curve.mean, made({"a": None}, learning="loss").test_loss[0].mean("seed")
    )
    assert progress(made({"a": None}, learning="none")) == {}


@pytest.mark.parametrize("part", ["x", "mean"])
def test_only_identical_curves_hide_each_other(part):
    one = Curve(*np.arange(9.0).reshape(3, 3))
    other = one._replace(**{part: one.x + 10})
    assert hidden({"a": one, "b": other, "c": one, "d": one._replace(error=0 * one.x)}) == [
        ["a", "c", "d"]
    ]


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(0, 90, True), (40, 90, True), (60, 90, False), (-1, 90, False)]
)
def test_axis_starts_at_zero_if_values_are_near_zero(low, high, zero):
    x = np.arange(3.0)
    two = {"a": Curve(x, np.asarray([high, 80, np.nan]), x), "b": Curve(x, low + 0 * x, x)}
    assert starts_at_zero(two) == zero
    assert not starts_at_zero({})
    assert starts_at_zero({"a": Curve(x, 0 * x + 100, x)})
