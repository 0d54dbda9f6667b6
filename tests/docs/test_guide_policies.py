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


def marked(mark: str, when: str, fleet: str) -> set[str]:
    return {policy for policy, cell in TABLES[when][fleet].items() if cell[1] == mark}


def test_the_counts_of_the_guide_are_those_of_the_gauntlet():
    assert {when: len(table) for when, table in TABLES.items()} == {"early": 12, "late": 12}
    assert len(TABLES["late"]["alike"]) == 45  # 44 named policies and the control
    cells = re.search(r"among (\d+) cells", OUTPUT)
    assert cells
    assert int(cells[1]) == 2 * 12 * 44
    assert set(re.findall(r"(\d+)\s+cells", GUIDE)) == {cells[1]}
    marks = sum(
        len(marked(mark, when, f)) for mark in "+-" for when in TABLES for f in TABLES[when]
    )
    assert f"mark {marks} of {cells[1]} cells" in (GAUNTLET / "README.md").read_text("utf-8")


def test_haste_wins_early():
    assert (len(where("+", "early", "oort")), len(where("+", "early", "fastest"))) == (8, 7)
    assert (len(where("+", "late", "oort")), where("-", "late", "oort")) == (3, {"shy"})
    assert where("-", "late", "fastest") == {"labels"}


@pytest.mark.parametrize("policy", ["pause", "sa_pause", *VARIANTS])
def test_pause_is_never_behind_random(policy):
    assert not where("-", "early", policy) | where("-", "late", policy)


def test_the_gain_of_pause_is_that_of_turns_in_order_of_speed():
    late = where("+", "late", "pause")
    assert late == {"spent", "noise", "unequal", "shy"}
    assert where("+", "late", "round_robin") == {"spent", "noise", "unequal", "large"}
    for when in TABLES:
        assert not where("+", when, "round_robin_shuffled")


def test_turns_in_learnt_order_lead_most_late():
    assert where("+", "late", "speed_turns") == where("+", "late", "pause")
    table = TABLES["late"]

    def lead(policy):
        fleets = [each for each in table.values() if policy in each]
        return sum(each[policy][0] - each["random"][0] for each in fleets) / len(fleets)

    assert max(table["alike"], key=lead) == "speed_turns"
    early = TABLES["early"]["large"]
    assert (early["round_robin"][0], early["speed_turns"][0]) == (59.1, 47.6)


def test_pause_is_not_ahead_of_turns_in_order_of_speed():
    kept = {path.stem: pd.read_csv(path) for path in (GAUNTLET / "kept").glob("*.csv")}
    both = {f: each[each.policy.isin(("pause", "round_robin"))] for f, each in kept.items()}
    found = judged(both, ("early", "late"), "round_robin")
    marks = {w: {f: each["pause"].mark for f, each in now.items()} for w, now in found.items()}
    assert found["late"]["alike"]["pause"].together == 24
    assert set(marks["late"].values()) == {""}
    behind = {"spent", "large", "tiers", "unequal"}
    assert marks["early"] == {f: "-" if f in behind else "" for f in kept}


def test_no_rival_is_ahead_and_two_are_behind_early():
    rivals = [
        *("pisces", "divfl", "hics_fl", "fedcor", "greedyfed"),
        *("e3cs", "e3cs_inc", "f3ast", "polaris", "refl"),
    ]
    behind = {policy: where("-", "early", policy) for policy in rivals}
    assert {policy: fleets for policy, fleets in behind.items() if fleets} == {
        "fedcor": {"phones", "large", "tiers"},
        "divfl": {"sizes"},
    }
    assert not any(where("-", "late", policy) for policy in rivals)
    for_budgets = ("noise_sampling", "noise_sampling_unbiased", "tolerant_first", "budget_groups")
    for policy in (*rivals, *for_budgets):
        assert not where("+", "early", policy) | where("+", "late", policy)


def test_thompson_sampling_ends_below_pause_as_the_other_guide_says():
    late = TABLES["late"].values()
    ahead = [round(each["pause"][0] - each["pause_thompson"][0], 1) for each in late]
    assert (sum(points >= 0 for points in ahead), sum(points >= 2 for points in ahead)) == (10, 4)
    assert marked("+", "early", "large") == {"genie", "oort", "fedcs", "round_robin"}


def test_few_policies_are_ahead_where_the_guide_says_so():
    assert marked("+", "early", "sizes") == {"oort"}
    assert marked("+", "early", "drift") == {"fastest"}
    assert not marked("+", "early", "phones")
    for fleet in ("alike", "sizes", "labels", "tails", "drift", "phones", "tiers"):
        assert not marked("+", "late", fleet)
    assert marked("+", "late", "large") == {"genie", "oort", "pause_kl_ucb", "round_robin"}
    assert marked("+", "late", "shy") == {
        *("genie", "pause", "pause_discounted", "mixture", "speed_turns"),
    }


def test_policies_that_the_guide_recommends_are_ahead():
    assert {"oort", "fedcs"} <= marked("+", "early", "alike")
    assert {"sa_pause", "pause"} <= marked("+", "late", "spent")
    assert {"fastest", "oort", "pause"} <= marked("+", "late", "noise")
    assert {"fedcs", "fastest"} <= marked("+", "early", "tails")
    assert {"oort"} <= marked("+", "early", "tiers")
    assert {"rbcs_f", "oort", "bsfl"} <= marked("+", "late", "unequal")


def test_the_guide_names_the_policies_that_end_behind():
    behind = {fleet: marked("-", "late", fleet) for fleet in TABLES["late"]}
    assert {fleet: policies for fleet, policies in behind.items() if policies} == {
        "labels": {"fastest"},
        "spent": {"all"},
        "tiers": {"all"},
        "unequal": {"all"},
        "shy": {"fedcs", "oort", "rbcs_f"},
    }


def test_policies_that_the_guide_calls_undecided_lead_in_15_of_16_worlds():
    for fleet, when, policy in (
        ("labels", "late", "all"),
        ("drift", "early", "oort"),
        ("shy", "late", "power_of_choice"),
    ):
        kept = pd.read_csv(GAUNTLET / "kept" / f"{fleet}.csv")
        found = judged({fleet: kept}, [when], "random")[when][fleet][policy]
        assert ((found.lead > 0).sum(), found.lead.size) == (15, 16)


def test_its_figures_are_those_of_the_output():
    measured = {f"{a:.1f}" for t in TABLES.values() for f in t.values() for a, _ in f.values()}
    said = re.findall(r"\b\d\d\.\d\b", GUIDE)
    assert len(said) > 25
    assert set(said) <= measured
