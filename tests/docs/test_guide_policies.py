"""What the guide to policies says is what the experiment measured."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "which_policy.md").read_text(encoding="utf-8")
OUTPUT = (ROOT / "experiments" / "which_policy" / "output.txt").read_text(encoding="utf-8")


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


def marks(when: str, policy: str) -> list[str]:
    return [fleet[policy][1] for fleet in tables()[when].values()]


def test_the_best_of_each_fleet_are_copied():
    late = OUTPUT[OUTPUT.index("late: best") :]
    for line in re.findall(r"^  \w+ +\w.*$", late, re.MULTILINE):
        assert line in GUIDE


def test_what_holds_on_all_fleets_holds():
    assert {when: len(table) for when, table in tables().items()} == {"early": 9, "late": 9}
    assert (marks("early", "fastest").count("+"), marks("late", "fastest").count("-")) == (7, 7)
    for policy in ("pause", "pause_discounted", "sa_pause"):
        assert "-" not in marks("early", policy) + marks("late", policy)
    for policy in ("oort", "fedcs", "cs_ucb", "rbcs_f", "pause_thompson"):
        assert tables()["late"]["labels"][policy][1] == "-"
    assert "+" not in marks("early", "power_of_choice") + marks("late", "power_of_choice")


def test_its_figures_are_those_of_the_output():
    measured = {f"{a:.1f}" for t in tables().values() for f in t.values() for a, _ in f.values()}
    said = re.findall(r"\b\d\d\.\d\b", GUIDE)
    assert len(said) > 25
    # And one difference, of the heavy tails.
    assert set(said) <= measured
    late = {p: a for p, (a, _) in tables()["late"]["tails"].items()}
    near = [a for p, a in late.items() if p not in ("all", "fastest", "power_of_choice")]
    assert round(max(near) - min(near), 1) <= 1.2
