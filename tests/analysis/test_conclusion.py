"""The two sentences: what the data show, and never more."""

import numpy as np
import pytest

from pause_jax.analysis.conclusion import compare
from pause_jax.base.struct import ConfigError
from pause_jax.privacy import NoPrivacy
from tests.support.results import made, small_config


def test_a_clear_difference_is_said_with_its_interval():
    result = made({"good": None, "bad": None}, seeds=4, spread=0.005)
    _, second = compare(result, 0.5).sentences
    assert second.startswith("Its test accuracy at the end (")
    assert "higher than bad (by " in second
    assert "no difference" not in second


def test_noise_is_no_difference():
    result = made({"one": None, "two": None}, seeds=3)
    result["test_accuracy"][1] = result.test_accuracy[0, [1, 2, 0]].values
    first, second = compare(result, 0.5).sentences
    assert "no difference from" in first
    assert "that these 3 seeds could show" in first
    assert "higher" not in second + first


def test_one_seed_shows_nothing_however_large_the_difference():
    first, second = compare(made({"good": None, "bad": None}, seeds=1), 0.5).sentences
    assert "that one seed could show" in first
    assert "higher" not in second


def test_private_configs_are_compared_with_the_best_of_them():
    clear = small_config(privacy=NoPrivacy())
    result = made({"all, no privacy": clear, "good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5)
    assert found.against == "good"
    first, second = found.sentences
    assert first.startswith("Of the configs whose epsilon covers all that clients send, good ")
    assert "lower than 'all, no privacy' (by " in second
    result["unnoised"][1] = "losses"
    assert compare(result, 0.5).against == "bad"


def test_who_missed_the_target_in_a_seed_is_not_compared_by_time():
    result = made({"good": None, "late": None}, spread=0.001)
    result["test_accuracy"][1, 0] = 0.1
    found = compare(result, 0.5)
    assert "late did not reach 50 % in every seed" in found.sentences[0]
    assert found.differences[0]["late"].shown == 0


def test_where_nobody_reached_the_target_the_end_decides():
    found = compare(made({"good": None, "bad": None}, spread=0.001), 0.99)
    assert found.sentences[0] == "No config reached 99 % in every seed."
    assert found.sentences[1].startswith("good ended with the highest test accuracy on average")


def test_a_config_that_broke_its_contract_is_no_measure():
    result = made({"broken": None, "good": None})
    result["first_broken_round"][0, 1] = 3
    assert compare(result, 0.5).against == "good"


@pytest.mark.parametrize(
    ("learning", "words"), [("loss", "least test loss"), ("none", "least regret")]
)
def test_without_accuracy_loss_or_regret_decides(learning, words):
    result = made({"a": None, "b": None}, learning=learning)
    result["regret"][0] = 0.001 * result.regret[0]
    found = compare(result, 0.8)
    assert found.against == "a"
    assert words in found.sentences[0]


def test_one_config_alone_and_one_that_is_named():
    assert "nothing to compare it with" in compare(made({"a": None}), 0.5).sentences[0]
    result = made({"good": None, "bad": None}, spread=0.001)
    found = compare(result, 0.5, against="bad")
    assert found.sentences[0].startswith("bad reached 50 % (")
    assert "lower than good (by " in found.sentences[1]
    with pytest.raises(ConfigError, match="against = 'c'"):
        compare(result, 0.5, against="c")


def test_nothing_finite_is_nothing_to_compare():
    result = made({"a": None, "b": None}, learning="none")
    result["first_broken_round"][:] = 1
    (only,) = compare(result, 0.8).sentences
    assert "nothing is compared" in only


def test_there_are_never_more_than_two_and_long_lists_are_counted():
    result = made({f"config {i}": None for i in range(12)}, seeds=2)
    result["test_accuracy"][:] = np.float32(0.9)
    sentences = compare(result, 0.5).sentences
    assert len(sentences) == 2
    assert all("and 7 more" in sentence for sentence in sentences)


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
