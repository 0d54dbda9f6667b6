"""The guide to policies says what the benchmark's board has."""

import pathlib

import numpy as np
import pytest
import xarray as xr

from pause_jax.analysis.gauntlet.board import path, read
from pause_jax.analysis.gauntlet.fleets import fleets
from pause_jax.analysis.gauntlet.standings import TIMES
from tools import board

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = board.PAGE.read_text(encoding="utf-8")
BOARD, TUNED = (read(fleets(), "digits", tuned=tuned) for tuned in (False, True))
AHEAD, BEHIND = board.marks(BOARD, 1), board.marks(BOARD, -1)
MEANS = {time: BOARD[time].mean("seed").to_pandas() for time in TIMES}
LEADS = {time: (each - each.loc["random"]).mean(axis=1) for time, each in MEANS.items()}
VARIANTS = (
    "pause_kl_ucb",
    "pause_ucb_v",
    "pause_thompson",
    "pause_discounted",
    "pause_useful_rate",
)
RIVALS = (
    *("pisces", "divfl", "hics_fl", "fedcor", "greedyfed"),
    *("e3cs", "e3cs_inc", "f3ast", "polaris", "refl"),
)
FOR_BUDGETS = ("noise_sampling", "noise_sampling_unbiased", "tolerant_first", "budget_groups")


def where(marks: xr.Dataset, time: str, policy: str) -> set[str]:
    at = marks[time].sel(policy=policy)
    return set(at.fleet.values[at.values].tolist())


def test_table_and_counts_are_those_of_the_board():
    assert f"\n{board.table(BOARD)}\n" in GUIDE
    cells = sum(int(BOARD[time].notnull().all("seed").sum()) - 14 for time in TIMES)
    assert GUIDE.count(f"{cells} cells") == 2
    assert 2 * 2.0**-16 <= 0.05 / cells < 2 * 17 * 2.0**-16, "15 of 16 worlds decide nothing"


def test_haste_wins_early():
    early = {name: len(where(AHEAD, "early", name)) for name in ("oort", "fastest", "fedcs")}
    assert early == {"oort": 6, "fastest": 5, "fedcs": 4}
    assert len(where(AHEAD, "early", "rbcs_f")) == 4
    assert (len(where(AHEAD, "late", "oort")), where(BEHIND, "late", "oort")) == (3, {"shy"})
    late = {name: [len(where(m, "late", name)) for m in (AHEAD, BEHIND)] for name in early}
    assert (late["fastest"], late["fedcs"]) == ([2, 4], [2, 3])
    assert where(AHEAD, "early", "tifl") == {"measured", "tiers", "unequal"}
    assert not where(AHEAD, "late", "tifl")


@pytest.mark.parametrize("policy", ["pause", "sa_pause", *VARIANTS])
def test_pause_is_never_behind_random(policy):
    assert not where(BEHIND, "early", policy) | where(BEHIND, "late", policy)


def test_turns_in_learnt_order_are_as_good_as_pause():
    late = where(AHEAD, "late", "pause")
    assert late == where(AHEAD, "late", "speed_turns") == {"spent", "unequal"}
    lead = BOARD.late.sel(fleet="noise", policy="pause") - BOARD.late.sel(
        fleet="noise", policy="random"
    )
    assert int((lead > 0).sum()) == 15
    assert LEADS["late"].idxmax() == "speed_turns"
    assert LEADS["late"][["speed_turns", "pause"]].round(1).tolist() == pytest.approx([4.5, 3.6])
    for time in TIMES:
        lead = BOARD[time].sel(policy="pause") - BOARD[time].sel(policy="speed_turns")
        assert not ((lead > 0).all("seed") | (lead < 0).all("seed")).any()
        assert not where(AHEAD, time, "round_robin")


def test_rare_labels_need_slow_clients():
    assert [p for p in BOARD.policy.values if "labels" in where(AHEAD, "late", p)] == ["all"]
    assert MEANS["late"]["shy"].idxmax() == "power_of_choice"
    assert MEANS["late"].loc[["genie", "random"], "labels"].round(1).tolist() == pytest.approx(
        [49.3, 54.7]
    )
    assert LEADS["late"]["genie"] < LEADS["late"]["speed_turns"]


def test_no_policy_ends_ahead_on_fleets_of_phones():
    phones = {"phones", "measured", "charging"}
    ahead = {
        time: {p: phones & where(AHEAD, time, p) for p in BOARD.policy.values} for time in TIMES
    }
    assert not any(ahead["late"].values())
    assert {p: x for p, x in ahead["early"].items() if x} == {"tifl": {"measured"}}
    assert phones <= where(BEHIND, "late", "fastest")


def test_no_rival_is_ahead():
    for policy in (*RIVALS, *FOR_BUDGETS):
        assert not where(AHEAD, "early", policy) | where(AHEAD, "late", policy)
    behind = {time: {p: len(where(BEHIND, time, p)) for p in RIVALS} for time in TIMES}
    assert {p: n for p, n in behind["early"].items() if n} == {"fedcor": 3}
    late = {p: n for p, n in behind["late"].items() if n}
    assert late == {"divfl": 2, "fedcor": 2, "e3cs_inc": 1, "refl": 1}


def test_thompson_sampling_ends_below_pause_as_the_other_guide_says():
    late = MEANS["late"]
    ahead = (late.loc["pause"] - late.loc["pause_thompson"]).round(1)
    assert (int((ahead >= 0).sum()), int((ahead >= 2).sum())) == (12, 4)


def test_tuned_policies_have_the_stated_leads():
    assert f"\n{board.gains(BOARD, TUNED, 'digits')}\n" in GUIDE
    early, late = (
        (TUNED[time] - BOARD[time].sel(policy="random")).mean(("fleet", "seed")).to_series()
        for time in TIMES
    )
    names = ["pause", "oort", "cs_ucb"]
    assert LEADS["late"][names].round(1).tolist() == pytest.approx([3.6, 1.4, 1.4])
    assert late[names].round(1).tolist() == pytest.approx([4.4, 2.5, 3.7])
    assert early[["oort", "pause"]].round(1).tolist() == pytest.approx([13.2, 3.6])
    assert TUNED.settings.sel(policy="speed_turns") == "{}"
    assert round(late.max(), 1) == round(late["speed_turns"], 1)
    lead = TUNED.late.sel(policy="pause") - TUNED.late.sel(policy="oort")
    where = {sign: set(lead.fleet.values[(sign * lead > 0).all("seed")]) for sign in (1, -1)}
    assert where == {1: {"labels", "shy"}, -1: {"noise"}}


def test_fashion_board_agrees_with_the_page():
    with xr.open_dataset(path("fashion"), engine="h5netcdf") as file:
        scores = file.load()
    default, tuned = (scores.sel(parameters=each) for each in board.PARAMETERS)
    assert f"\n{board.gains(default, tuned, 'fashion')}\n" in GUIDE
    leads = (scores.late - default.late.sel(policy="random")).mean(("fleet", "seed"))
    found = leads.sel(policy=["pause", "pause_discounted", "cs_ucb"]).values.round(1)
    np.testing.assert_allclose(found, [[1.6, 2.3, 0.3], [1.3, 1.3, 1.0]], atol=1e-6)

    def marked(of, sign, time="late"):
        there = board.marks(of, sign)[time].to_pandas()
        return {p: row.index[row].tolist() for p, row in there.iterrows() if row.any()}

    assert marked(default, 1) == {
        "all": ["labels", "noise", "large"], "fastest": ["noise"], "genie": ["large"],
    }  # fmt: skip
    assert marked(default, -1) == {
        "fedcs": ["measured"], "divfl": ["sizes", "labels"], "fastest": ["labels", "measured"],
        "all": ["spent", "tiers", "unequal"], "hics_fl": ["sizes"], "oort": ["shy"],
        "greedyfed": ["large"], "refl": ["charging"], "e3cs_inc": ["charging"],
    }  # fmt: skip
    early = marked(default, 1, "early")
    both = [p for p in early if {"spent", "unequal"} <= {*early[p]}]
    assert ("pause" in both, len(both)) == (True, 12)
    ahead: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("pause", "mixture", "pause_discounted"), ("unequal",)
    )
    ahead |= {"all": ("labels", "noise", "large"), "fastest": ("noise",), "genie": ("large",)}
    assert {p: (*x,) for p, x in marked(tuned, 1).items()} == ahead
    assert marked(tuned, -1)["oort"] == ["spent"]
