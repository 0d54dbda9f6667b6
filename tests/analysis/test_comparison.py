"""The words of a comparison: what was seen, what the data show, and never more."""

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
    interval = f"{apart.mean:.1f} s ({apart.low:.1f} to {apart.high:.1f} at 95 %)"
    means = found.aims[0].values.mean("seed").values
    assert found.text == (
        f"Mean time to 50 % test accuracy over 4 seeds: {means[0]:.1f} s for good and "
        f"{means[1]:.1f} s for bad. Against good, the best, 4 seeds show bad later by {interval}."
    )
    assert "show good sooner by" in compare(result, 0.5, against="bad").text


def test_noise_is_no_difference():
    result = made({"one": None, "two": None}, seeds=3)
    result["test_accuracy"][1] = result.test_accuracy[0, [1, 2, 0]].values
    found = compare(result, 0.5)
    # Equal means up to rounding: either may be the best.
    other = {"one": "two", "two": "one"}[found.against]
    words = f"3 seeds do not settle whether {found.against}, the best, differs from {other}."
    assert found.text.endswith(words)
    assert "over 3 seeds" in found.text
    assert "sooner" not in found.text


def test_what_is_settled_and_what_is_not_are_said_apart():
    result = made({"one": None, "two": None, "bad": None}, seeds=4, spread=0.001)
    result["test_accuracy"][1] = result.test_accuracy[0, [1, 2, 3, 0]].values
    found = compare(result, 0.99, against="one")
    assert "Against one, 4 seeds show bad lower by " in found.text
    assert found.text.endswith(" at 95 %); they do not settle two.")


def test_one_seed_shows_nothing_however_large_the_difference():
    found = compare(made({"good": None, "bad": None}, seeds=1), 0.5)
    assert found.text.startswith("In one seed, time to 50 % test accuracy: ")
    (other,) = {"good", "bad"} - {found.against}
    assert f"One seed does not settle whether {found.against}, the best," in found.text
    assert found.text.endswith(f"differs from {other}.")
    assert "sooner" not in found.text


def test_private_configs_are_compared_with_the_best_of_them():
    clear = small_config(privacy=NoPrivacy())
    result = made({"all, no privacy": clear, "good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5)
    assert found.against == "good"
    assert ". good is the best config whose epsilon covers all that clients send. 3 s" in found.text
    found = compare(result, 0.99)
    assert "show 'all, no privacy' higher by " in found.text
    result["unnoised"][1] = "losses"
    assert compare(result, 0.5).against == "bad"


def test_who_missed_the_target_in_a_seed_is_not_compared_by_time():
    result = made({"good": None, "late": None}, spread=0.001)
    result["test_accuracy"][1, 0] = 0.1
    found = compare(result, 0.5)
    assert "; late did not reach 50 % in every seed" in found.text
    assert found.text.endswith("No other config is left to compare good with.")
    assert found.differences[0]["late"].shown == 0


def test_where_nobody_reached_the_target_the_end_decides():
    found = compare(made({"good": None, "bad": None}, spread=0.001), 0.99)
    assert found.text.startswith("Mean test accuracy at the end over 3 seeds: ")
    assert "show bad lower by " in found.text
    named = compare(made({"good": None, "bad": None}, spread=0.001), 0.99, against="bad")
    assert "Against bad, 3 seeds show good higher by " in named.text
    assert "the best" not in named.text


def test_a_config_that_broke_its_contract_is_no_measure():
    result = made({"broken": None, "good": None})
    result["first_broken_round"][0, 1] = 3
    assert compare(result, 0.5).against == "good"


@pytest.mark.parametrize(
    ("learning", "words"), [("loss", "Mean test loss at the end"), ("none", "Mean regret over")]
)
def test_without_accuracy_loss_or_regret_decides(learning, words):
    result = made({"a": None, "b": None}, learning=learning)
    result["regret"][0] = 0.001 * result.regret[0]
    found = compare(result, 0.8)
    assert found.against == "a"
    assert found.text.startswith(words)


def test_one_config_alone_and_one_that_is_named():
    assert compare(made({"a": None}), 0.5).text.endswith(" s for a.")
    result = made({"good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5, against="bad")
    assert " bad, " not in found.text
    assert "the best" not in found.text
    with pytest.raises(ConfigError, match="against = 'c'"):
        compare(result, 0.5, against="c")


def test_nothing_finite_is_nothing_to_compare():
    result = made({"a": None, "b": None}, learning="none")
    result["first_broken_round"][:] = 1
    assert "nothing is compared" in compare(result, 0.8).text
    assert compare(result, 0.8, against="a").text == (
        "a broke its contract, so nothing is compared."
    )


def test_a_long_list_is_counted():
    result = made({f"config {i}": None for i in range(12)}, seeds=2)
    result["test_accuracy"][:] = np.float32(0.9)
    text = compare(result, 0.5).text
    assert "and 8 more. 2 seeds do not settle" in text
    assert text.endswith(" or 7 more.")


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
