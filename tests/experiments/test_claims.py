"""Verdicts on claims: intervals that hold together, and words that say no more than they show."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.common import bsfl_learning, claims, pause_learning
from experiments.common.claims import judge
from experiments.common.learning_figure import Curves
from experiments.common.outcome import Outcome
from experiments.common.regret_setting import halfway
from experiments.mnist_mlp_30_5 import run as mnist_mlp_30_5
from experiments.regret_horizon.run import references

UNDECIDED = ("open", "not decidable here")
ZEROS = np.zeros(4)
FEW, MANY = np.array([1.0, 1.2, 0.9, 1.1]), np.array([1.0, 9.0, -7.0, 2.0])


def verdict(claim: claims.Claim, together: int = 1) -> str:
    """Of one claim in a family of some."""
    return judge([claim] * together)[0].verdict


def test_a_claim_needs_its_whole_interval_on_one_side():
    assert verdict(claims.larger("c", FEW, ZEROS, "s")) == "confirmed"
    assert verdict(claims.larger("c", ZEROS, FEW, "s")) == "refuted"
    assert verdict(claims.larger("c", MANY, ZEROS, "s")) in UNDECIDED
    assert verdict(claims.mean("c", FEW, "s", above=2)) == "refuted"
    assert verdict(claims.mean("c", FEW, "s", below=2)) == "confirmed"


def test_to_be_alike_needs_the_whole_interval_within_the_margin():
    assert verdict(claims.alike("c", FEW, ZEROS, "s", 2)) == "confirmed"
    assert verdict(claims.alike("c", FEW, ZEROS, "s", 0.5)) == "refuted"
    assert verdict(claims.alike("c", MANY, ZEROS, "s", 2)) in UNDECIDED
    # Alone within 1.6, not as one of nine.
    assert verdict(claims.alike("c", FEW, ZEROS, "s", 1.6)) == "confirmed"
    assert verdict(claims.alike("c", FEW, ZEROS, "s", 1.6), together=9) in UNDECIDED


def test_the_interval_is_that_of_student_for_the_whole_family():
    claim = claims.larger("c", [1.0, 2.0, 3.0], [0.0, 0.0, 0.0], "points")
    for together in (1, 4):
        oracle = stats.ttest_1samp([1.0, 2.0, 3.0], 0).confidence_interval(1 - 0.05 / together)
        np.testing.assert_allclose(claims.interval(claim, together), oracle)
    assert judge([claim])[0].evidence.startswith("+2 +- 2.5 points (3 seeds, 95 %); needs about 5")
    assert (
        "+2 +- 5.1 points (3 seeds, 95 % for 4 claims together)" in judge([claim] * 4)[0].evidence
    )


def test_a_claim_without_data_counts_in_its_family():
    good = claims.larger("c", [1.0, 2.0, 3.0], [-4.0, -4.0, -4.0], "s")
    never = claims.larger("c", [math.inf] * 3, [1.0] * 3, "s")
    single = claims.larger("c", [1.0], [0.0], "s")
    assert judge([good])[0].verdict == "confirmed"
    judged = judge([good, never, single] * 3)
    assert [each.verdict for each in judged] == ["open"] * 9
    assert "3 of 3 seeds never got there" in judged[1].evidence


SHAPES = {
    "normal": (lambda rng, size: rng.normal(size=size), 0.0),
    "lognormal 0.5": (lambda rng, size: rng.lognormal(0, 0.5, size), math.exp(0.125)),
    "lognormal 1": (lambda rng, size: rng.lognormal(0, 1, size), math.exp(0.5)),
    "coins": (lambda rng, size: rng.choice([-1.0, 1.0], size), 0.0),
}


def rate_of_wrong_families(shape: str, seeds: int, together: int = 6, family: int = 6) -> float:
    """Return how often any of six claims that are true by a hair is refuted."""
    draw, center = SHAPES[shape]
    rng, number = np.random.default_rng(seeds), 300
    wrong = 0
    for _ in range(number):
        values = draw(rng, (family, seeds))
        # Half of them from above, half from below: an interval that misses the mean refutes one.
        bounds = [{"above": center - 1e-9}, {"below": center + 1e-9}] * (family // 2)
        claimed = [claims.mean("c", v, "s", **b) for v, b in zip(values, bounds, strict=True)]
        families = [claimed] if together > 1 else [[claim] for claim in claimed]
        verdicts = [each for one in families for each in judge(one)]
        wrong += any(each.verdict == "refuted" for each in verdicts)
    return wrong / number


@pytest.mark.parametrize("seeds", [3, 5, 10, 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_true_claims_of_a_family_are_refuted_in_at_most_7_percent(shape, seeds):
    assert rate_of_wrong_families(shape, seeds) <= 0.07


def test_skewed_differences_refute_true_claims_by_students_interval_or_one_by_one(monkeypatch):
    assert rate_of_wrong_families("lognormal 1", 5, together=1) > 0.08
    monkeypatch.setattr(claims, "critical_value", lambda *_: 0.0)
    assert rate_of_wrong_families("lognormal 1", 5) > 0.14


def test_verdicts_that_need_nearly_normal_differences_stay_open():
    claim = claims.larger("c", [1.0, 2.0, 3.5, 2.0, 2.5], np.zeros(5), "points")
    (judged,) = judge([claim])
    low, _ = claims.interval(claim)
    assert low > 0
    assert claim.found < claim.error * claims.critical_value(5)
    assert judged.verdict == "open"
    assert judged.evidence.endswith("; confirmed only if differences are nearly normal")
    assert verdict(claims.larger("c", [2.0, 2.1, 2.2, 2.1, 2.15], np.zeros(5), "points")) == (
        "confirmed"
    )


@pytest.mark.parametrize("seeds", [4, 16])
def test_critical_value_is_the_largest_of_an_independent_simulation(seeds):
    rng = np.random.default_rng(99)
    for together in (1, 9):
        quantiles = [stats.t.isf(0.025 / together, seeds - 1)]
        for sigma in (0.5, 1.0):
            draws = np.exp(sigma * rng.standard_normal((100_000, seeds)))
            ratio = stats.ttest_1samp(draws, math.exp(sigma**2 / 2), axis=1).statistic
            quantiles.append(np.quantile(np.abs(ratio), 1 - 0.05 / together))
        assert claims.critical_value(seeds, together) == pytest.approx(max(quantiles), rel=0.06)


def test_always_has_the_interval_of_clopper_and_pearson():
    for held, seeds in ((20, 20), (13, 20), (0, 5)):
        claim = claims.always("c", np.arange(seeds) < held, "so")
        oracle = stats.binomtest(held, seeds).proportion_ci(1 - 0.05 / 3, method="exact")
        np.testing.assert_allclose(claims.interval(claim, 3), oracle, rtol=1e-6)


@pytest.mark.parametrize(
    ("held", "seeds", "expected"),
    [
        (2, 2, "open"),
        (10, 10, "open"),
        (20, 20, "confirmed"),
        (19, 20, UNDECIDED[1]),
        (5, 20, "refuted"),
    ],
)
def test_always_is_confirmed_by_many_seeds_only(held, seeds, expected):
    claim = claims.always("c", np.arange(seeds) < held, "so")
    assert verdict(claim, together=3) == expected


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (claims.undetected("c", 0.9, "p 0.9"), "compatible"),
        (claims.undetected("c", 0.01, "p 0.01"), "refuted"),
        (claims.exact("c", np.bool_(True), "120 of 120"), "holds"),
        (claims.exact("c", False, "119 of 120"), "fails"),
    ],
)
def test_tests_and_exact_numbers_have_words_of_their_own(claim, expected):
    assert verdict(claim) == expected


@pytest.mark.parametrize("values", [[0.3, 0.3], [0.3, 0.3, 0.3], [1.0, 1.2], [0.3] * 20])
def test_equal_values_and_two_seeds_decide_nothing(values):
    """Of their spread nothing is known: coins of +-1 would often "confirm" with five seeds."""
    assert verdict(claims.mean("c", values, "s", above=0)) in UNDECIDED
    assert verdict(claims.mean("c", values, "s", below=0)) in UNDECIDED


@pytest.mark.parametrize("difference", [5.0, -5.0, 0.0])
def test_one_seed_confirms_and_refutes_nothing(difference):
    for claim in (
        claims.larger("c", [difference], [0.0], "s"),
        claims.alike("c", [difference], [0.0], "s", 1.0),
        claims.always("c", [difference > 0], "it"),
    ):
        (judged,) = judge([claim])
        assert judged.verdict == "open"
        assert "one seed" in judged.evidence


def rate_of_decisions(seeds: int, effect: float, spread: float, together: int) -> float:
    """How often a claim on a mean is decided with so many seeds."""
    rng, number = np.random.default_rng(1), 2000
    draws = rng.normal(effect, spread, size=(number, seeds))
    error = draws.std(axis=1, ddof=1) / math.sqrt(seeds)
    half = np.array([claims.half_width(each, seeds, together) for each in error])
    return float(np.mean(np.abs(draws.mean(axis=1)) > half))


@pytest.mark.parametrize("together", [1, 9])
def test_with_the_seeds_that_are_needed_four_of_five_claims_are_decided(together):
    pilot = claims.mean("c", [0.0, 1.0, 2.0, 0.6], "s", above=0)
    needed = claims.seeds_needed(pilot, together)
    effect, spread = pilot.found, pilot.error * math.sqrt(4)
    assert rate_of_decisions(int(needed), effect, spread, together) == pytest.approx(0.8, abs=0.05)
    assert rate_of_decisions(int(needed) // 2, effect, spread, together) < 0.6


def test_seeds_that_a_share_needs_are_those_with_which_it_is_decided():
    def all_of(seeds):
        return claims.always("c", np.ones(seeds, bool), "so")

    needed = int(claims.seeds_needed(all_of(10), 3))
    assert needed > 10
    verdicts = [verdict(all_of(seeds), together=3) for seeds in (needed - 1, needed)]
    assert verdicts == ["open", "confirmed"]
    half = claims.always("c", [True, True, True, False], "so")  # the claimed share itself
    assert math.isinf(claims.seeds_needed(half))


def test_what_needs_too_many_seeds_is_not_decidable_here():
    (judged,) = judge([claims.larger("c", MANY, ZEROS, "s")])
    assert judged.verdict == "not decidable here"
    assert "needs about 218 seeds" in judged.evidence
    # Three seeds are a pilot, two are not.
    assert verdict(claims.larger("c", MANY[:3], ZEROS[:3], "s")) == "not decidable here"
    assert verdict(claims.larger("c", MANY[:2], ZEROS[:2], "s")) == "open"
    (tie,) = judge([claims.mean("c", [-1.0, 0.0, 1.0], "s", above=0)])
    assert "needs too many seeds" in tie.evidence


def test_an_outcome_keeps_the_numbers_of_its_verdicts(tmp_path):
    family = [
        claims.larger("a", FEW, ZEROS, "points"),
        claims.larger("b", [math.inf], [1.0], "s"),
        claims.always("c", [True, True], "so"),
        claims.undetected("d", 0.5, "p"),
    ]
    outcome = Outcome("title")
    outcome.judge(family)
    outcome.finish(tmp_path)
    lines = (tmp_path / "verdicts.jsonl").read_text().splitlines()
    kept = [claims.from_record(json.loads(line)) for line in lines]
    assert judge(kept) == judge(family)
    assert json.loads(lines[0])["verdict"] == "confirmed"


def curves(labels: list[str], level: float) -> Curves:
    """Two seeds of straight learning curves that reach some accuracy, sooner the higher it is."""
    rounds = np.arange(1, 41)
    tables = [
        pd.DataFrame(
            {
                "round": rounds,
                "clock": (1 + 0.1 * i + level) * rounds,
                "test_accuracy": level * rounds / 40 + 0.01 * seed,
                "test_loss": 1 - level * rounds / 40,
                "label": label,
                "seed": seed,
            }
        )
        for i, label in enumerate(labels)
        for seed in range(2)
    ]
    return Curves(pd.concat(tables, ignore_index=True))


def test_the_wording_and_the_targets_of_claims_do_not_depend_on_the_runs():
    labels = [*pause_learning.POLICIES, pause_learning.WITHOUT_PRIVACY]
    high, low = (
        [claim.text for claim in pause_learning.accuracy_claims(curves(labels, level), 0.5)]
        for level in (0.9, 0.6)
    )
    assert high == low
    assert sum("to 50 %" in text for text in high) == 3
    labels = list(bsfl_learning.policies(10, iid=True))
    high, low = (
        [c.text for c in bsfl_learning.claims_of(curves(labels, level), "Fig. 8", accuracy=True)]
        for level in (0.9, 0.6)
    )
    assert high == low


def seconds_claim(found: Curves) -> claims.Claim:
    """The claim on the seconds of random and PAUSE to half of all right."""
    (claim,) = (
        claim
        for claim in pause_learning.accuracy_claims(found, 0.5)
        if "random needs more seconds" in claim.text
    )
    return claim


def test_seconds_are_those_to_the_target():
    found = curves([*pause_learning.POLICIES, pause_learning.WITHOUT_PRIVACY], 0.9)
    seconds = [np.asarray(found.seconds_to(label, 0.5)) for label in ("random", "PAUSE")]
    assert seconds_claim(found).found == pytest.approx((seconds[0] - seconds[1]).mean())


def test_a_rival_that_never_gets_there_counts_to_the_last_second_of_both():
    found = curves([*pause_learning.POLICIES, pause_learning.WITHOUT_PRIVACY], 0.9)
    table = found.table
    stuck = (table.label == "random") & (table.seed == 1)
    found.table = table.assign(test_accuracy=table.test_accuracy.where(~stuck, 0.1))
    claim = seconds_claim(found)
    ends = [
        found.run(label, seed).clock.iloc[-1] for label in ("random", "PAUSE") for seed in (0, 1)
    ]
    rival, own = found.seconds_to("random", 0.5), found.seconds_to("PAUSE", 0.5)
    assert rival[1] == math.inf
    assert claim.found == pytest.approx((rival[0] - own[0] + min(ends) - own[1]) / 2)
    assert claim.note == f"1 of 2 seeds of random need more than {min(ends):.0f} s"


def test_the_targets_are_nine_tenths_of_the_authors_recorded_runs():
    folder = mnist_mlp_30_5.HERE.parent
    mnist = json.loads((folder / "mnist_mlp_30_5" / "expected.json").read_text())
    peak = mnist["authors"]["pause"]["peak_accuracy"] / 100
    cifar10 = json.loads((folder / "cifar10_small" / "expected.json").read_text())
    assert "near 54 %" in cifar10["source"]
    assert {
        "MNIST": pytest.approx(0.9 * peak, abs=5e-4),
        "CIFAR-10": pytest.approx(0.9 * 0.54),
    } == pause_learning.TARGETS


def test_ratios_of_decades_are_those_of_the_decade_shown():
    f = np.sqrt(np.array([1e4, 1e5, 1e6]) * np.log([1e4, 1e5, 1e6]))
    ratio = (f[2] - f[1]) / (f[1] - f[0])
    assert references(1_000_000)[2] == f"sqrt(n ln n): {ratio:.2f} from n = 100,000"


def test_halfway_lies_between_a_logarithm_and_a_square_root():
    n = np.unique(np.geomspace(1e5, 1e6, 50).round())
    slopes = [np.polyfit(np.log(n), np.log(f(n)), 1)[0] for f in (np.log, np.sqrt)]
    assert halfway(1_000_000) == pytest.approx(np.mean(slopes), abs=1e-3)
