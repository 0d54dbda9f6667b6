"""Tests of one recorded run as a draw from ours."""

import numpy as np
import pytest
from scipy import stats

from experiments.mnist_mlp_30_5 import prediction


def draws(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_t_is_a_two_sample_test_in_which_one_sample_has_one_value():
    for row in draws(20, 8):
        expected = stats.ttest_ind(row[:1], row[1:], equal_var=True).pvalue
        assert prediction.t_p(row[0], row[1:]) == pytest.approx(expected)


@pytest.mark.parametrize("law", [prediction.rank_p, prediction.t_p])
def test_p_is_below_a_level_as_often_as_the_level_says(law):
    p = np.array([law(row[0], row[1:]) for row in draws(4000, 20)])
    for level in (0.1, 0.5):
        assert np.mean(p <= level) == pytest.approx(level, abs=0.02)


def test_a_draw_from_elsewhere_is_seen():
    ours = draws(19)
    assert prediction.rank_p(9.0, ours) == prediction.rank_p(-9.0, ours) == 2 / 20
    assert prediction.t_p(9.0, ours) < 1e-5


def test_ties_are_no_evidence():
    assert prediction.rank_p(1.0, np.ones(19)) == 1


def test_holm():
    corrected = prediction.holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(corrected, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_array_equal(prediction.holm([0.9, 0.8]), 1)


def test_one_wrong_figure_of_many_is_found_and_no_other():
    ours = draws(30, 20)
    figures = {i: (row[0], row[1:]) for i, row in enumerate(ours)}
    found = [i for i, row in prediction.tests(figures).items() if row.corrected < 0.05]
    assert found == []
    figures[7] = (8.0, ours[7, 1:])
    tested = prediction.tests(figures)
    assert [i for i, row in tested.items() if row.corrected < 0.05] == [7]
    assert tested[7].theirs == 8
