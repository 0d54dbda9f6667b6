"""The sentence of a comparison: what the data show, and never more."""

import numpy as np
import pytest

from pause_jax.analysis.comparison import compare
from pause_jax.base.struct import ConfigError
from pause_jax.privacy import NoPrivacy
from tests.support.results import made, small_config


def test_a_clear_difference_is_said_with_its_interval():
    result = made({"good": None, "bad": None}, seeds=4, spread=0.005)
    result["eval_clock"][1] = result.eval_clock[0] + 3
    result["test_accuracy"][1] = result.test_accuracy[0].values
    found = compare(result, 0.5)
    apart = found.differences[0]["bad"]
    interval = f"(by {apart.mean:.1f} s, {apart.low:.1f} to {apart.high:.1f})"
    assert found.sentence.startswith("good reached 50 % test accuracy (")
    words = "s, mean of 4 seeds, the best): significantly sooner than bad"
    assert found.sentence.endswith(f"{words} {interval}.")


def test_noise_is_no_difference():
    result = made({"one": None, "two": None}, seeds=3)
    result["test_accuracy"][1] = result.test_accuracy[0, [1, 2, 0]].values
    found = compare(result, 0.5)
    sentence = found.sentence
    # Equal means up to rounding: either may be the best.
    other = {"one": "two", "two": "one"}[found.against]
    assert sentence.endswith(f"not significantly different from {other}.")
    assert "mean of 3 seeds" in sentence
    assert "sooner" not in sentence


def test_one_seed_shows_nothing_however_large_the_difference():
    sentence = compare(made({"good": None, "bad": None}, seeds=1), 0.5).sentence
    assert "one seed" in sentence
    assert "not significantly different from good" in sentence
    assert "sooner" not in sentence


def test_private_configs_are_compared_with_the_best_of_them():
    clear = small_config(privacy=NoPrivacy())
    result = made({"all, no privacy": clear, "good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5)
    assert found.against == "good"
    assert "the best of the configs whose epsilon covers all that clients send)" in found.sentence
    found = compare(result, 0.99)
    assert "significantly lower than 'all, no privacy' (by " in found.sentence
    result["unnoised"][1] = "losses"
    assert compare(result, 0.5).against == "bad"


def test_who_missed_the_target_in_a_seed_is_not_compared_by_time():
    result = made({"good": None, "late": None}, spread=0.001)
    result["test_accuracy"][1, 0] = 0.1
    found = compare(result, 0.5)
    assert "late did not reach 50 % in every seed" in found.sentence
    assert found.differences[0]["late"].shown == 0


def test_where_nobody_reached_the_target_the_end_decides():
    found = compare(made({"good": None, "bad": None}, spread=0.001), 0.99)
    assert found.sentence.startswith("good ended with a test accuracy (")
    assert "significantly higher than bad (by " in found.sentence
    named = compare(made({"good": None, "bad": None}, spread=0.001), 0.99, against="bad")
    assert "significantly lower than good" in named.sentence
    assert "the best" not in named.sentence


def test_a_config_that_broke_its_contract_is_no_measure():
    result = made({"broken": None, "good": None})
    result["first_broken_round"][0, 1] = 3
    assert compare(result, 0.5).against == "good"


@pytest.mark.parametrize(
    ("learning", "words"), [("loss", "a ended with a test loss"), ("none", "a had a regret")]
)
def test_without_accuracy_loss_or_regret_decides(learning, words):
    result = made({"a": None, "b": None}, learning=learning)
    result["regret"][0] = 0.001 * result.regret[0]
    found = compare(result, 0.8)
    assert found.against == "a"
    assert words in found.sentence


def test_one_config_alone_and_one_that_is_named():
    assert "nothing to compare it with" in compare(made({"a": None}), 0.5).sentence
    result = made({"good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5, against="bad")
    assert found.sentence.startswith("bad reached 50 % test accuracy (")
    assert "the best" not in found.sentence
    with pytest.raises(ConfigError, match="against = 'c'"):
        compare(result, 0.5, against="c")


def test_nothing_finite_is_nothing_to_compare():
    result = made({"a": None, "b": None}, learning="none")
    result["first_broken_round"][:] = 1
    assert "nothing is compared" in compare(result, 0.8).sentence
    assert compare(result, 0.8, against="a").sentence == (
        "a broke its contract, so nothing is compared."
    )


def test_a_long_list_is_counted():
    result = made({f"config {i}": None for i in range(12)}, seeds=2)
    result["test_accuracy"][:] = np.float32(0.9)
    assert "and 7 more" in compare(result, 0.5).sentence


def pairs_with_one_of(candidates, others):
    names = range(candidates + others)
    return sum(a < b and a < candidates for a in names for b in names)


@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize("candidates", [1, 2, 5])
def test_intervals_allow_for_all_pairs_that_might_have_been_asked_for(candidates, others):
    clear = small_config(privacy=NoPrivacy())
    names = {f"private {i}": None for i in range(candidates)}
    result = made(names | {f"clear {i}": clear for i in range(others)})
    assert compare(result, 0.5).comparisons == pairs_with_one_of(candidates, others)
    named = compare(result, 0.5, against="private 0")
    assert named.comparisons == candidates + others - 1
