"""Write docs/reproduction.md: every figure and table of both papers, with its verdicts.

    python -m tools.reproduction

The page counts the verdicts of each experiment on its claims (``verdicts.jsonl``).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reproduction.md"
ORDER = ("confirmed", "refuted", "compatible", "not decidable here", "open", "holds", "fails")
# Verdicts that depend on chance, whose claims the page lists.
LISTED = ("refuted", "confirmed", "not decidable here", "open")


class Row(NamedTuple):
    """Figure or table of a paper.

    Attributes:
      name: name in the paper.
      what: its content.
      folder: folder of its experiment; empty for an illustration.
      data: name of the required data set; empty for none.
      seeds: number of seeds.
      time: run time on 2 CPU cores.
      verdict: text for an experiment without claims that has no verdict yet.
    """

    name: str
    what: str
    folder: str = ""
    data: str = ""
    seeds: str = ""
    time: str = ""
    verdict: str = ""


PAUSE = (
    Row("Fig. 1", "generalization reward", "pause_fig_1", seeds="-", time="3 s"),
    Row("Fig. 2", "CIFAR-10, 30/5, i.i.d., eps_bar 40: accuracy", "pause_figs_2_3", "CIFAR-10",
        "4", "6.5 h"),
    Row("Fig. 3", "the same: leakage", "pause_figs_2_3", "CIFAR-10", "20", "1 min"),
    Row("Fig. 4", "CIFAR-10, 30/5, non-i.i.d., eps_bar 100: accuracy", "pause_figs_4_5",
        "CIFAR-10", "3", "6 h"),
    Row("Fig. 5", "the same: leakage", "pause_figs_4_5", "CIFAR-10", "20", "1 min"),
    Row("Fig. 6", "MNIST, 300/15, eps_bar 20: accuracy", "pause_figs_6_7", "MNIST", "20", "2.5 h"),
    Row("Fig. 7", "the same: leakage", "pause_figs_6_7", "MNIST", "20", "20 min"),
    Row("Fig. 8", "CIFAR-10, 300/15, non-i.i.d., eps_bar 10: accuracy", "pause_figs_8_9",
        "CIFAR-10", "3", "6 h"),
    Row("Fig. 9", "the same: leakage", "pause_figs_8_9", "CIFAR-10", "20", "20 min"),
    Row("Table I", "neighbours, time, connectivity", "pause_table_1", seeds="-", time="2 min"),
    Row("Theorem 3", "logarithmic regret, to 10^6 rounds", "regret_horizon", seeds="20",
        time="35 min"),
    Row("recorded runs", "the authors' MNIST runs, 30/5", "mnist_mlp_30_5", "MNIST", "20",
        "20 min"),
    Row("recorded setting", "CIFAR-10, 30/5, eps_bar 100, batch norm", "cifar10_small", "CIFAR-10",
        "3", "3 h", verdict="open, three seeds: after 300 rounds pause 69.5 %, "
        "sa_pause 69.8 %, random 69.1 %; fastest peaks at 49.2 % and ends at 10.2 %"),
)  # fmt: skip
BSFL = (
    Row("Fig. 1", "a federated system, illustration"),
    Row("Fig. 2", "generalization function", "bsfl_fig_2", seeds="-", time="3 s"),
    Row("Fig. 3", "two graphs of states, illustration; counted for small networks",
        "pause_table_1", seeds="-", time="2 min"),
    Row("Fig. 4", "energy against annealing step, 25 of 500", "bsfl_fig_4", seeds="120",
        time="2 min"),
    Row("Fig. 5", "participation of ten groups, alpha varied", "bsfl_figs_5_6", seeds="20",
        time="10 min"),
    Row("Fig. 6", "the same, beta varied", "bsfl_figs_5_6", seeds="20", time="10 min"),
    Row("Fig. 7 left", "regret, linear regression, i.i.d., 200 rounds", "bsfl_figs_7_10",
        seeds="10", time="12 min"),
    Row("Fig. 7 right", "the same: test loss", "bsfl_figs_7_10_right", seeds="20", time="3 min"),
    Row("Fig. 8", "Fashion-MNIST, i.i.d., 500/25", "bsfl_fig_8", "Fashion-MNIST", "5", "2.5 h"),
    Row("Fig. 9", "CIFAR-10, i.i.d., ResNet-18, 500/25", "bsfl_fig_9", "CIFAR-10", "1",
        "5 min on an H100; on a CPU 50 h"),
    Row("Fig. 10 left", "regret, linear regression, non-i.i.d., 130 rounds", "bsfl_figs_7_10",
        seeds="10", time="12 min"),
    Row("Fig. 10 right", "the same: test loss", "bsfl_figs_7_10_right", seeds="20", time="3 min"),
    Row("Fig. 11", "Fashion-MNIST, non-i.i.d., 500/25", "bsfl_fig_11", "Fashion-MNIST", "5",
        "2.5 h"),
    Row("Fig. 12", "CIFAR-10, non-i.i.d., 500/25", "bsfl_fig_12", "CIFAR-10", "5", "2 h"),
    Row("Table 1", "alpha varied, with cnn3 for ResNet-18", "bsfl_tables_1_2", "CIFAR-10", "3",
        "2 h"),
    Row("Table 2", "beta varied, with cnn3 for ResNet-18", "bsfl_tables_1_2", "CIFAR-10", "3",
        "2 h"),
    Row("Table 3", "settings: the presets `bsfl_*`"),
)  # fmt: skip
HEAD = """# Reproduction

Every figure and table of results in the two papers has an experiment in a subfolder of
`experiments/`. The subfolder contains a README, plots, the output (`output.txt`) and a verdict on
each claim (`verdicts.jsonl`). `make experiment NAME=SUBFOLDER` runs the experiment. Image
experiments also need `DATA_DIR=FOLDER`, where `FOLDER` contains data sets prepared by
tensorflow-datasets. To resume an interrupted experiment, run the same command again. Unless noted
otherwise, times are for 2 CPU cores.

One rule (`experiments/common/claims.py`) determines all verdicts. Each figure's program lists the
claims about the figure, with bounds and targets that do not depend on the runs. All intervals for a
figure hold jointly with 95 % confidence (Bonferroni correction over the claims). We wrote the rule
after most of the runs had finished. We therefore already knew the results of these runs when we
chose the bounds that the papers do not state.

- **confirmed**: every value in the interval satisfies the claim. **refuted**: no value in the
  interval satisfies the claim.
- **open**: some but not all values in the interval satisfy the claim, or fewer than three seeds
  ran, or all seeds gave the same value. A claim is also open if its verdict is valid only for
  approximately normal differences. Student's t-intervals are too narrow for skewed differences. A
  verdict on a mean must therefore also hold at the critical value for lognormal differences.
- **not decidable here** replaces **open** if at least three seeds ran, some but not all values in
  the interval satisfy the claim, and a decision would require more than 20 seeds. The evidence
  column gives the required number of seeds for 80 % power with the measured mean and spread. We fix
  the number of additional seeds before we run them, so their results cannot affect it.
- **compatible**: the claim passed a test that could have rejected it. Passing this test does not
  confirm the claim.
- **holds**, **fails**: an exact computation without randomness decided the claim.

`tools/reproduction.py` writes this page."""
PAPERS = {"PAUSE (Peleg et al., 2025)": PAUSE, "BSFL (Ben Ami et al., 2025)": BSFL}


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, rows in PAPERS.items():
        parts.append(f"\n## {title}\n")
        parts.append("| figure | what | experiment | seeds | time | verdict |")
        parts.append("| --- | --- | --- | --- | --- | --- |")
        parts += [_line(row) for row in rows]
    for verdict, found in _by_verdict().items():
        parts.append(f"\n## {verdict.capitalize()}: {len(found)} claims\n")
        parts += ["| paper | claim | evidence |", "| --- | --- | --- |", *found]
    return "\n".join(parts) + "\n"


def _by_verdict() -> dict[str, list[str]]:
    """Return the claims of each listed verdict with their evidence, as lines of a table."""
    found: dict[str, list[str]] = {verdict: [] for verdict in LISTED}
    each = (
        (title.split()[0], one) for title in PAPERS for row in PAPERS[title] for one in _judged(row)
    )
    for paper, one in each:
        if one["verdict"] in found:
            found[one["verdict"]].append(f"| {paper} | {one['claim']} | {one['evidence']} |")
    return found


def _line(row: Row) -> str:
    if not row.folder:
        return f"| {row.name} | {row.what} | | | | |"
    link = f"[{row.folder}](../experiments/{row.folder}/README.md)"
    data = f", {row.data}" if row.data else ""
    return (
        f"| {row.name} | {row.what} | {link}{data} | {row.seeds} | {row.time} "
        f"| {row.verdict or verdict_of(row) or 'not run yet'} |"
    )


def verdict_of(row: Row) -> str:
    """Return the counts of the verdicts on claims about this figure or table, as text."""
    counts = Counter(each["verdict"] for each in _judged(row))
    return ", ".join(f"{word}: {counts[word]}" for word in ORDER if counts[word])


def _judged(row: Row) -> list[dict[str, str]]:
    path = ROOT / "experiments" / row.folder / "verdicts.jsonl"
    lines = path.read_text().splitlines() if row.folder and path.exists() else []
    judged = [json.loads(line) for line in lines]
    return [each for each in judged if each["claim"].startswith(f"{row.name}:")]


if __name__ == "__main__":
    PAGE.write_text(page())
