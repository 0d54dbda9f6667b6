"""Measurements of pause_jax and its peers, with a report.

python -m benchmarks peers --workloads W2 --peers torch,fedjax --repeat 3
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Annotated, TypeAlias

import typer

from benchmarks import report, scaling, searches, study
from benchmarks.contenders import MATMUL, OURS, Contender, environments, gathered
from benchmarks.harness import Measured, compare, measure
from benchmarks.workloads import WORKLOADS

_Started: TypeAlias = tuple[pathlib.Path, Contender]

INTRO = """# Benchmarks

`make bench` writes this page. Do not edit it. For each table, the programs ran in one session, in
separate processes and one at a time. Each repetition ran every program once. Times are medians over
the repetitions, and ratios are medians of the ratios within each repetition. In each round, the
next clients in cyclic order train the global model in float32. Each client initialises a new
optimiser and makes one pass over its samples (five in W5). The server averages the clients'
updates. There is no privacy noise and no evaluation. The "of matrix product" column shows a
program's training FLOP/s as a percentage of the matrix-product rate. A training step counts as
three forward passes. For pause_jax, the time covers the whole call to `simulate`.

"start" is the wall-clock time of imports, data loading, compilation and the first run. Times per
round exclude it. The last two columns split the startup CPU time of all threads into two parts.
"compiling" is the CPU time of the first run minus the median CPU time of the later runs. This
difference consists of tracing, compilation and other one-time work. "rest of start" is the CPU time
of imports, data loading and one run. torch.func compiles nothing, but is measured in the same way.
In other rows, a dash means that the program compiles nothing, or that its CPU time is unknown.
"""
SAME_INTRO = """## The same computation

Every program trains for one round, starting from the same weights. All samples of a client are
identical, so their order does not matter. W4 uses batch norm, which requires distinct samples. Each
client in W4 therefore takes a single SGD step on all its samples, so their order does not matter.
"""


def main(
    workloads: Annotated[str, typer.Option(help="Workloads, separated by commas.")] = ",".join(
        report.REPORTED
    ),
    peers: Annotated[
        str, typer.Option(help="Environments of peers, separated by commas ('': none).")
    ] = ",".join(environments()),
    repeat: Annotated[int, typer.Option(help="Turns of each contender.", min=1)] = 5,
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    out: Annotated[pathlib.Path, typer.Option(help="Output file of the report.")] = pathlib.Path(
        "docs/benchmarks.md"
    ),
    folder: Annotated[pathlib.Path, typer.Option(help="Folder of peers.")] = pathlib.Path(".bench"),
    alone: Annotated[bool, typer.Option(help="Also measure pause_jax alone.")] = True,
    same: Annotated[bool, typer.Option(help="Also compare the models.")] = True,
) -> None:
    """Measure all contenders, and write the report."""
    load = os.getloadavg()[0]
    names, wanted = listed(workloads, WORKLOADS), listed(peers, environments())
    chosen, missing = gathered(wanted, folder, say)
    others = {name: peer for name, peer in chosen.items() if name != OURS}

    turns = {**chosen, report.MATMUL_NAME: (pathlib.Path(sys.executable), MATMUL)}
    measured: dict[str, dict[str, Measured]] = {}
    for name in names:
        measured[name] = measure(name, able(name, turns), repeat, say)
    studies: list[float] = []
    if study.WORKLOAD in names:
        say("a whole study in pause_jax")
        studies = study.times(repeat, data_dir)
    versions: dict[str, str] = {}
    for found in measured.values():
        for contender in found.values():
            versions |= contender.versions
    sections = [INTRO, report.machine(versions, repeat, load), "", "## Training", ""]
    sections += [report.training(name, found, missing) + "\n" for name, found in measured.items()]
    if same and others:
        sections.append(SAME_INTRO)
        for name in names:
            say(f"{name}: comparing the models after one round")
            checked = name + "_step" * WORKLOADS[name].normed
            moved, differences = compare(checked, chosen[OURS], able(name, others))
            sections.append(report.same_result(name, moved, differences))
    if studies:
        sections.append(report.study(studies, measured[study.WORKLOAD]))
    seeds = None
    if alone:
        say("pause_jax alone")
        seeds = scaling.seeds(data_dir, repeat)
        sections += [
            "## pause_jax alone\n",
            report.alone("Whole runs", "preset", scaling.whole_run(data_dir, repeat)),
            report.seeds_section(*seeds),
            report.alone(
                "100 rounds of PAUSE without learning, m = 25", "K", scaling.clients(repeat)
            ),
            report.alone("digits_small with K = 64", "m", scaling.cohorts(repeat)),
            report.alone(
                "16 seeds of digits_small", "CPU devices", scaling.devices(repeat), "sweep"
            ),
        ]
        sections.append(searches.section())
    sections.append(report.targets(measured, seeds, studies))
    out.write_text("\n".join(sections))
    typer.echo(out.read_text())


def able(workload: str, contenders: Mapping[str, _Started]) -> dict[str, _Started]:
    """Return the contenders that can train the network of a workload."""
    normed = WORKLOADS[workload].normed
    return {name: c for name, c in contenders.items() if c[1].norms or not normed}


def listed(text: str, known: Collection[str]) -> list[str]:
    """Return the names in a comma-separated text.

    Raises:
      typer.BadParameter: for an unknown name.
    """
    chosen = [name for name in text.split(",") if name]
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(f"{name!r}: must be one of {', '.join(known)}.")
    return chosen


def say(message: str) -> None:
    """Report progress on standard error."""
    typer.echo(message, err=True)
