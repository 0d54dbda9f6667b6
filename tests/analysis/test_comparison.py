"""Conclusions of a comparison state means and significant differences, and nothing else."""

import re

import numpy as np
import pytest

from pause_jax.analysis.comparison import compare
from pause_jax.base.struct import ConfigError
from pause_jax.privacy import NoPrivacy
from tests.support.results import made, small_config


def test_significant_difference_has_an_interval():
    result = made({"good": None, "bad": None}, seeds=4, spread=0.005)
    result["eval_clock"][1] = result.eval_clock[0] + 3
    result["test_accuracy"][1] = result.test_accuracy[0].values
    found = compare(result, 0.5)
    apart = found.differences[0]["bad"]
    interval = f"{apart.mean:.1f} s later, 95 % CI {apart.low:.1f} to {apart.high:.1f}"
    means = found.aims[0].values.mean("seed").values
    assert found.text == (
        f"Mean time to 50 % test accuracy over 4 seeds: {means[0]:.1f} s for good and "
        f"{means[1]:.1f} s for bad. Over 4 seeds, bad ({interval}) differs significantly from "
        "good (the best)."
    )
    assert " s sooner, 95 % CI " in compare(result, 0.5, against="bad").text


def test_noise_is_not_a_significant_difference():
    result = made({"one": None, "two": None}, seeds=3)
    result["test_accuracy"][1] = result.test_accuracy[0, [1, 2, 0]].values
    found = compare(result, 0.5)
    # Equal means up to rounding: either may be the best.
    other = {"one": "two", "two": "one"}[found.against]
    words = f"Over 3 seeds, {other} does not differ significantly from {found.against} (the best)."
    (needed,) = [each.needed for each in found.differences[0].values()]
    settled = f" Number of seeds that would probably suffice: about {needed:.0f} for {other}."
    assert found.text.endswith(words + settled)
    assert "over 3 seeds" in found.text
    assert "sooner" not in found.text


def test_insignificant_differences_are_listed_separately():
    result = made({"one": None, "two": None, "bad": None}, seeds=4, spread=0.001)
    result["test_accuracy"][1] = result.test_accuracy[0, [1, 2, 3, 0]].values
    found = compare(result, 0.99, against="one")
    assert re.search(r" 4 seeds, bad \([0-9.]+ points lower, 95 % CI ", found.text)
    assert found.text.endswith(") differs significantly from one; two does not.")


def test_one_seed_cannot_show_a_difference():
    found = compare(made({"good": None, "bad": None}, seeds=1), 0.5)
    assert found.text.startswith("Time to 50 % test accuracy with one seed: ")
    (other,) = {"good", "bad"} - {found.against}
    words = f"One seed cannot show whether {found.against} (the best) differs from {other}."
    assert found.text.endswith(words)
    assert "sooner" not in found.text


def test_reference_is_the_best_private_config():
    clear = small_config(privacy=NoPrivacy())
    result = made({"all, no privacy": clear, "good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5)
    assert found.against == "good"
    assert re.search(r"\. good is the best config .* clients send except data sizes\.", found.text)
    found = compare(result, 0.99)
    assert re.search(r"'all, no privacy' \([0-9.]+ points higher, ", found.text)
    result["unnoised"][1] = "losses"
    assert compare(result, 0.5).against == "bad"


def test_config_that_missed_the_target_is_not_compared_by_time():
    result = made({"good": None, "late": None}, spread=0.001)
    result["test_accuracy"][1, 0] = 0.1
    found = compare(result, 0.5)
    assert "; late missed 50 % for at least one seed" in found.text
    assert found.text.endswith("No other config has a value for every seed.")
    assert found.differences[0]["late"].shown == 0


def test_final_accuracy_decides_if_no_config_reached_the_target():
    found = compare(made({"good": None, "bad": None}, spread=0.001), 0.99)
    assert found.text.startswith("Mean final test accuracy over 3 seeds: ")
    assert re.search(r" bad \([0-9.]+ points lower, ", found.text)
    named = compare(made({"good": None, "bad": None}, spread=0.001), 0.99, against="bad")
    assert re.search(r" 3 seeds, good \([0-9.]+ points higher, ", named.text)
    assert "the best" not in named.text


def test_config_that_broke_its_contract_is_not_the_reference():
    result = made({"broken": None, "good": None})
    result["first_broken_round"][0, 1] = 3
    assert compare(result, 0.5).against == "good"


@pytest.mark.parametrize(
    ("learning", "words"), [("loss", "Mean final test loss"), ("none", "Mean regret over")]
)
def test_loss_or_regret_decides_without_accuracy(learning, words):
    result = made({"a": None, "b": None}, learning=learning)
    result["regret"][0] = 0.001 * result.regret[0]
    found = compare(result, 0.8)
    assert found.against == "a"
    assert found.text.startswith(words)


def test_reference_can_be_chosen_and_one_config_needs_none():
    assert compare(made({"a": None}), 0.5).text.endswith(" s for a.")
    result = made({"good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5, against="bad")
    assert "from bad." in found.text
    assert "the best" not in found.text
    with pytest.raises(ConfigError, match="against = 'c'"):
        compare(result, 0.5, against="c")


def test_no_comparison_without_finite_values():
    result = made({"a": None, "b": None}, learning="none")
    result["first_broken_round"][:] = 1
    assert compare(result, 0.8).text == "No comparison: no config has a value for every seed."
    assert compare(result, 0.8, against="a").text.startswith("No comparison: a broke a contract")


def test_long_lists_are_abbreviated():
    result = made({f"config {i}": None for i in range(12)}, seeds=2)
    result["test_accuracy"][:] = np.float32(0.9)
    text = compare(result, 0.5).text
    assert "and 8 more. Over 2 seeds, " in text
    assert " and 7 more do not differ significantly from " in text


def number_of_pairs(candidates, others):
    names = range(candidates + others)
    return sum(a < b and a < candidates for a in names for b in names)


@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize("candidates", [1, 2, 5])
def test_intervals_cover_all_possible_reference_configs(candidates, others):
    clear = small_config(privacy=NoPrivacy())
    names = {f"private {i}": None for i in range(candidates)}
    result = made(names | {f"clear {i}": clear for i in range(others)})
    assert compare(result, 0.5).comparisons == number_of_pairs(candidates, others)
    named = compare(result, 0.5, against="private 0")
    assert named.comparisons == candidates + others - 1
