"""What the guide to policies says is what the gauntlet measured."""

import pathlib
import re

import pandas as pd
import pytest

from experiments.gauntlet.verdicts import judged

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "which_policy.md").read_text(encoding="utf-8")
GAUNTLET = ROOT / "experiments" / "gauntlet"
OUTPUT = (GAUNTLET / "output.txt").read_text(encoding="utf-8")
VARIANTS = (
    "pause_kl_ucb",
    "pause_ucb_v",
    "pause_thompson",
    "pause_discounted",
    "pause_useful_rate",
)


def tables() -> dict[str, dict[str, dict[str, tuple[float, str]]]]:
    """{when: {fleet: {policy: (accuracy, mark)}}}."""
    found: dict[str, dict[str, dict[str, tuple[float, str]]]] = {}
    for block in re.split(r"\n\n", OUTPUT):
        head, *lines = block.splitlines()
        when, *names = head.split()
        if when not in ("early", "late") or not names or names[0].startswith("best"):
            continue
        table: dict[str, dict[str, tuple[float, str]]] = {name: {} for name in names}
        for line in lines:
            policy, cells = line.split()[0], re.findall(r"([\d.]+)±[\d.]+([-+ ]|$)", line)
            for name, (accuracy, mark) in zip(names, cells, strict=True):
                table[name][policy] = float(accuracy), mark.strip()
        found[when] = table
    return found


TABLES = tables()


def where(mark: str, when: str, policy: str) -> set[str]:
    return {fleet for fleet, each in TABLES[when].items() if each[policy][1] == mark}


def test_the_counts_of_the_guide_are_those_of_the_gauntlet():
    assert {when: len(table) for when, table in TABLES.items()} == {"early": 12, "late": 12}
    assert len(TABLES["late"]["alike"]) == 43  # 42 named policies and the control
    intervals = re.search(r"all (\d+) intervals", OUTPUT)
    assert intervals
    assert int(intervals[1]) == 2 * 12 * 42
    assert set(re.findall(r"(\d+) intervals", GUIDE)) == {intervals[1]}


def test_haste_wins_early():
    assert (len(where("+", "early", "oort")), len(where("+", "early", "fastest"))) == (10, 8)
    assert (len(where("+", "late", "oort")), where("-", "late", "oort")) == (3, {"labels", "shy"})


@pytest.mark.parametrize("policy", ["pause", "sa_pause", *VARIANTS])
def test_pause_is_never_behind_random(policy):
    assert not where("-", "early", policy) | where("-", "late", policy)


def test_the_gain_of_pause_is_that_of_turns_in_order_of_speed():
    late = where("+", "late", "pause")
    assert late == {"spent", "noise", "unequal", "shy"}
    assert where("+", "late", "round_robin") == late | {"large"}
    for when in TABLES:
        assert not where("+", when, "round_robin_shuffled")


def test_pause_is_not_ahead_of_turns_in_order_of_speed():
    kept = {path.stem: pd.read_csv(path) for path in (GAUNTLET / "kept").glob("*.csv")}
    both = {f: each[each.policy.isin(("pause", "round_robin"))] for f, each in kept.items()}
    found = judged(both, ("early", "late"), "round_robin")
    marks = {w: {f: each["pause"].mark for f, each in now.items()} for w, now in found.items()}
    assert found["late"]["alike"]["pause"].together == 24
    assert set(marks["late"].values()) == {""}
    behind = {"spent", "large", "tiers", "unequal"}
    assert marks["early"] == {f: "-" if f in behind else "" for f in kept}


def test_of_the_rivals_only_pisces_is_ahead_and_two_are_behind_on_several():
    rivals = [
        *("pisces", "divfl", "hics_fl", "fedcor", "greedyfed"),
        *("e3cs", "e3cs_inc", "f3ast", "polaris", "refl"),
    ]
    ahead = {p: where("+", "early", p) | where("+", "late", p) for p in rivals}
    assert {p: fleets for p, fleets in ahead.items() if fleets} == {"pisces": {"shy"}}
    behind = {p: where("-", "early", p) | where("-", "late", p) for p in rivals}
    assert {p for p, fleets in behind.items() if len(fleets) > 1} == {"fedcor", "divfl"}
    for policy in ("noise_sampling", "noise_sampling_unbiased", "tolerant_first", "budget_groups"):
        assert not where("+", "early", policy) | where("+", "late", policy)


def test_thompson_sampling_ends_below_pause_as_the_other_guide_says():
    late = TABLES["late"].values()
    ahead = [round(each["pause"][0] - each["pause_thompson"][0], 1) for each in late]
    assert (sum(points >= 0 for points in ahead), sum(points >= 2 for points in ahead)) == (10, 4)
    early = {p for p, (_, mark) in TABLES["early"]["large"].items() if mark == "+"}
    assert early == {"genie", "oort", "fastest", "fedcs", "round_robin"}


def test_what_is_level_is_level():
    for fleet in ("alike", "tails", "drift"):
        late = {policy: mark for policy, (_, mark) in TABLES["late"][fleet].items()}
        assert "+" not in late.values()
        assert [p for p, mark in late.items() if mark] == (["adapow_d"] if fleet == "drift" else [])
    phones = {p for when in TABLES for p, (_, mark) in TABLES[when]["phones"].items() if mark}
    assert phones == {"fedcor"}
    tiers = [policy for policy, (_, mark) in TABLES["late"]["tiers"].items() if mark == "+"]
    assert tiers == ["genie"]


def test_its_figures_are_those_of_the_output():
    measured = {f"{a:.1f}" for t in TABLES.values() for f in t.values() for a, _ in f.values()}
    said = re.findall(r"\b\d\d\.\d\b", GUIDE)
    assert len(said) > 25
    assert set(said) <= measured
