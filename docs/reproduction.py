"""Writes docs/reproduction.md: every figure and table of both papers, and what became of it.

    python docs/reproduction.py            # writes the page
    python docs/reproduction.py --check    # exit status 1 if it is out of date

Where an experiment judges claims (``verdicts.jsonl``), the verdict is counted from them;
elsewhere it is a sentence of the experiment's README.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reproduction.md"
ORDER = ("confirmed", "refuted", "open")


class Row(NamedTuple):
    """A figure or table.

    Attributes:
      name: in the paper.
      what: it shows.
      folder: of its experiment; none for an illustration.
      data: that it needs, by name; empty for none.
      seeds: of its runs.
      time: on 2 CPU cores.
      verdict: in words; empty where the experiment judges claims.
    """

    name: str
    what: str
    folder: str = ""
    data: str = ""
    seeds: str = ""
    time: str = ""
    verdict: str = ""


PAUSE = (
    Row("Fig. 1", "generalization reward", "pause_fig_1", seeds="-", time="3 s",
        verdict="confirmed: falls, zero at m/K, flatter for higher beta"),
    Row("Fig. 2", "CIFAR-10, 30/5, i.i.d., eps_bar 40: accuracy", "pause_figs_2_3", "CIFAR-10",
        "1", "2 h"),
    Row("Fig. 3", "the same: leakage", "pause_figs_2_3", "CIFAR-10", "20", "1 min"),
    Row("Fig. 4", "CIFAR-10, 30/5, non-i.i.d., eps_bar 100: accuracy", "pause_figs_4_5",
        "CIFAR-10", "1", "2 h"),
    Row("Fig. 5", "the same: leakage", "pause_figs_4_5", "CIFAR-10", "20", "1 min"),
    Row("Fig. 6", "MNIST, 300/15, eps_bar 20: accuracy", "pause_figs_6_7", "MNIST", "10", "1.5 h"),
    Row("Fig. 7", "the same: leakage", "pause_figs_6_7", "MNIST", "20", "20 min"),
    Row("Fig. 8", "CIFAR-10, 300/15, non-i.i.d., eps_bar 10: accuracy", "pause_figs_8_9",
        "CIFAR-10", "1", "3 h"),
    Row("Fig. 9", "the same: leakage", "pause_figs_8_9", "CIFAR-10", "20", "20 min"),
    Row("Table I", "neighbours, time, connectivity", "pause_table_1", seeds="-", time="2 min",
        verdict="refuted: about K neighbours on average, not K log K, and K^2 at the optimum; "
        "connectivity confirmed"),
    Row("Theorem 3", "logarithmic regret", "regret_horizon", seeds="8", time="15 min",
        verdict="refuted where g counts: a power of n up to 10^6 rounds; confirmed without g"),
    Row("recorded runs", "the authors' MNIST runs, 30/5", "mnist_mlp_30_5", "MNIST", "20",
        "20 min", verdict="confirmed: each could be one of our 20, in accuracy and seconds"),
    Row("recorded setting", "CIFAR-10, 30/5, eps_bar 100, batch norm", "cifar10_small", "CIFAR-10",
        "1", "1 h", verdict="open, one seed: after 300 rounds pause 69.2 %, sa_pause 70.5 %, "
        "random 69.4 %; fastest peaks at 46.9 % and ends at 10.5 %"),
)  # fmt: skip
BSFL = (
    Row("Fig. 1", "a federated system, illustration"),
    Row("Fig. 2", "generalization function", "bsfl_fig_2", seeds="-", time="3 s",
        verdict="confirmed"),
    Row("Fig. 3", "two graphs of states, illustration; counted for all small networks",
        "pause_table_1", seeds="-", time="2 min", verdict="confirmed: fewer edges, connected"),
    Row("Fig. 4", "energy against annealing step, 25 of 500", "bsfl_fig_4", seeds="120",
        time="2 min", verdict="refuted at equal steps: ALSA ahead in 62 % at most, not 98.3 %; 94 "
        "to 100 % at equal listing"),
    Row("Fig. 5", "participation of ten groups, alpha varied", "bsfl_figs_5_6", seeds="3",
        time="80 s", verdict="confirmed, but the first 500 rounds are not all but equal"),
    Row("Fig. 6", "the same, beta varied", "bsfl_figs_5_6", seeds="3", time="80 s",
        verdict="confirmed"),
    Row("Fig. 7 left", "regret, linear regression, i.i.d.", "bsfl_figs_7_10", seeds="10",
        time="12 min", verdict="confirmed: least regret of all; refuted: not logarithmic"),
    Row("Fig. 7 right", "the same: test loss", "bsfl_figs_7_10_right", seeds="20", time="3 min"),
    Row("Fig. 8", "Fashion-MNIST, i.i.d., 500/25", "bsfl_fig_8", "Fashion-MNIST", "1", "1 h"),
    Row("Fig. 9", "CIFAR-10, i.i.d., ResNet-18, 500/25", "bsfl_fig_9", "CIFAR-10", "1",
        "20 of 400 rounds: 3 h"),
    Row("Fig. 10 left", "regret, linear regression, non-i.i.d.", "bsfl_figs_7_10", seeds="10",
        time="12 min", verdict="confirmed: least regret of all; refuted: not logarithmic"),
    Row("Fig. 10 right", "the same: test loss", "bsfl_figs_7_10_right", seeds="20", time="3 min"),
    Row("Fig. 11", "Fashion-MNIST, non-i.i.d., 500/25", "bsfl_fig_11", "Fashion-MNIST", "1",
        "25 min"),
    Row("Fig. 12", "CIFAR-10, non-i.i.d., 500/25", "bsfl_fig_12", "CIFAR-10", "1", "40 min"),
    Row("Table 1", "alpha varied, with cnn3 for ResNet-18", "bsfl_tables_1_2", "CIFAR-10", "1",
        "45 min"),
    Row("Table 2", "beta varied, with cnn3 for ResNet-18", "bsfl_tables_1_2", "CIFAR-10", "1",
        "45 min"),
    Row("Table 3", "settings: the presets `bsfl_*`"),
)  # fmt: skip
HEAD = """# Reproduction

Every figure and table of both papers. An experiment is a folder of `experiments/` with a README
and, once it was played, its picture, its output (`output.txt`) and a verdict on each claim.
`make experiment NAME=folder` plays it, those on images with `DATA_DIR=folder` of data sets as
tensorflow-datasets prepares them; long ones go on where they were stopped. Times are for 2 CPU
cores; of what was not played yet they are estimates.

**confirmed** or **refuted**: the 95 % interval of the difference, over seeds that meet the same
world, lies on one side. **open**: it does not, or there is one seed only. This page is made by
`docs/reproduction.py`.
"""
PAPERS = {"PAUSE (Peleg et al., 2025)": PAUSE, "BSFL (Ben Ami et al., 2025)": BSFL}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, rows in (
        ("PAUSE (Peleg et al., 2025)", PAUSE),
        ("BSFL (Ben Ami et al., 2025)", BSFL),
    ):
        parts.append(f"\n## {title}\n")
        parts.append("| figure | what | experiment | seeds | time | verdict |")
        parts.append("| --- | --- | --- | --- | --- | --- |")
        parts += [_line(row) for row in rows]
    return "\n".join(parts) + "\n"


def _line(row: Row) -> str:
    if not row.folder:
        return f"| {row.name} | {row.what} | | | | |"
    link = f"[{row.folder}](../experiments/{row.folder}/README.md)"
    data = f", {row.data}" if row.data else ""
    return (
        f"| {row.name} | {row.what} | {link}{data} | {row.seeds} | {row.time} "
        f"| {row.verdict or verdict_of(row)} |"
    )


def verdict_of(row: Row) -> str:
    """What became of the claims that an experiment judges; those that name a figure or table count
    for that one only.
    """
    path = ROOT / "experiments" / row.folder / "verdicts.jsonl"
    if not path.exists():
        return "not played yet"
    judged = [json.loads(line) for line in path.read_text().splitlines()]
    own = [each for each in judged if each["claim"].startswith(f"{row.name}:")]
    counts = Counter(each["verdict"] for each in own)
    return ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE}: run python docs/reproduction.py")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
