"""Report of the benchmarks: tables in Markdown, and the targets."""

from __future__ import annotations

import os
import pathlib
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.contenders import CONTENDERS, OURS
from benchmarks.harness import Measured
from benchmarks.study import POLICIES, RUNS, SEEDS, WORKLOAD, extrapolated
from benchmarks.timing import Timing
from benchmarks.workloads import WORKLOADS, flops

MATMUL_NAME = "matrix product"
# Load average above which other programs were running on the machine.
QUIET = 1.0
# Tolerated difference of weights after one round from the same start.
SAME = 1e-4


class Target(NamedTuple):
    """Target for ``workload``: the fastest of ``peers`` takes at least ``ratio`` times our time."""

    workload: str
    peers: tuple[str, ...]
    ratio: float


TARGETS = (
    Target("W1", tuple(name for name in CONTENDERS if name != OURS), 1.0),
    Target("W1", ("FedJAX",), 1.4),
    Target("W2", ("PyTorch loop",), 6.0),
    Target("W2", ("torch.func", "FedJAX", "pfl"), 1.8),
    Target("W2", ("plain JAX", "DrJAX"), 0.95),
    Target("W3", ("plain JAX", "DrJAX"), 10.0),
    Target("W3", ("PyTorch loop",), 1.6),
    Target("W3", ("pfl",), 1.3),
    Target("W4", ("PyTorch loop",), 1.2),
    Target("W4", ("PyTorch channels_last",), 1.0),
    Target("W5", tuple(name for name in CONTENDERS if name != OURS), 1.0),
)
# Workload, and the share of the matrix-product rate that its training should reach.
SHARE_TARGET = ("W3", 0.5)
# Maximum time of 32 seeds, in multiples of the time of one seed.
SEEDS_TARGET = 8.0
# Minimum time of a study in the fastest peer, in multiples of ours.
STUDY_TARGET = 20.0
# Workloads of a full report.
REPORTED = ("W1", "W2", "W3", "W4", "W5", "W6")
STUDY_INTRO = f"""## A whole study

pause_jax runs the `mnist_small` preset with {len(POLICIES)} policies and {SEEDS} seeds for
{WORKLOADS[WORKLOAD].rounds} rounds, and plots the accuracy curves. The runs simulate latencies, add
privacy noise and evaluate the model. We time the entire process without a compilation cache. The
other programs have no selection policies. For each of these programs, we time the first run of W6
(from the start of the process) and later runs. Runs of W6 do not simulate latencies, add noise,
evaluate the model or plot curves. To extrapolate to {RUNS} runs in one process, we add {RUNS - 1}
times the median time of a later run to the time of the first run. The "{RUNS} processes" column
assumes a new process for each run ({RUNS} times the first run's time).
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; columns after the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def ratios(measured: Mapping[str, Measured], peer: str) -> list[float]:
    """Return the peer's seconds divided by ours in each turn; empty if either is missing."""
    if not (measured.get(peer) and measured.get(OURS)):
        return []
    return [a / b for a, b in zip(measured[peer].values, measured[OURS].values, strict=False)]


def shares(measured: Mapping[str, Measured], workload: str, name: str) -> list[float]:
    """Return the share of the machine's matrix-product rate that training reached, by turn."""
    if MATMUL_NAME not in measured:
        return []
    pairs = zip(measured[name].values, measured[MATMUL_NAME].values, strict=False)
    return [flops(WORKLOADS[workload]) / seconds / rate for seconds, rate in pairs]


def training(workload: str, measured: Mapping[str, Measured], missing: Mapping[str, str]) -> str:
    """Return the section of a workload."""
    rows, notes = [], []
    for name in CONTENDERS:
        found = measured.get(name)
        if name in missing or (found and found.failure):
            reason = missing.get(name) or f"failed: {found.failure if found else ''}"
            notes.append(f"{name} is {reason}." if name in missing else f"{name} {reason}")
        elif found:
            share = shares(measured, workload, name)
            rows.append(
                [
                    name,
                    f"{statistics.median(found.values):.3g}",
                    f"{min(found.values):.3g} to {max(found.values):.3g}",
                    f"{_median(ratios(measured, name)):.2f}",
                    f"{100 * _median(share):.0f} %",
                    f"{found.warmup:.1f}",
                    *started(found, compiles=CONTENDERS[name].compiles),
                ]
            )
            if found.slow:
                notes.append(f"{name} was measured only once. Its time includes compilation.")
            if note := CONTENDERS[name].note:
                notes.append(f"{name} {note}.")
    head = ["", "s / round", "from, to", "time / ours", "of matrix product", "start, s"]
    head += ["compiling, cpu s", "rest of start, cpu s"]
    rate = measured.get(MATMUL_NAME)
    if rate and rate.values:
        gflops = statistics.median(rate.values) / 1e9
        sizes = "n x n matrices in float32; highest rate over n = 512, 1024 and 2048"
        notes.append(f"Matrix product: {gflops:.0f} GFLOP/s ({sizes}).")
    title = f"### {workload}: {WORKLOADS[workload].summary}"
    return "\n".join([title, "", *table(head, rows), *[f"- {note}" for note in notes]])


def started(found: Measured, *, compiles: bool) -> list[str]:
    """Return the processor seconds of a start in two cells: compiling, and the rest."""
    if found.work is None:
        return ["-", "-"]
    once = found.work.once if compiles else 0.0
    return [f"{once:.1f}" if compiles else "-", f"{found.work.start - once:.1f}"]


def same_result(workload: str, moved: float, differences: Mapping[str, float | str]) -> str:
    """Return a section that compares the peers' weights after one round with ours."""
    head = ["after one round", "largest difference of a weight"]
    rows = [
        [name, f"{found:.1e} {_ok(found <= SAME)}" if isinstance(found, float) else found]
        for name, found in differences.items()
    ]
    title = f"### {workload}: the same model (largest change of a weight: {moved:.1e})"
    return "\n".join([title, "", *table(head, rows)])


def study(ours: Sequence[float], measured: Mapping[str, Measured]) -> str:
    """Return the section of a whole study, measured for us and extrapolated for the peers."""
    one = statistics.median(ours)
    rows = [[OURS, f"{one:.3g}", "1.00", "-", "-", "-"]]
    for name, found in peers_of(measured).items():
        seconds, rounds = extrapolated(found), WORKLOADS[WORKLOAD].rounds
        rows.append(
            [name, f"{seconds:.3g}", f"{seconds / one:.2f}", f"{found.warmup:.3g}",
             f"{rounds * found.median:.3g}", f"{RUNS * found.warmup:.3g}"]
        )  # fmt: skip
    head = ["", "study, s", "time / ours", "first run, s", "later run, s", f"{RUNS} processes, s"]
    return "\n".join([STUDY_INTRO, *table(head, rows)])


def peers_of(measured: Mapping[str, Measured]) -> dict[str, Measured]:
    """Return the measurements of the peers that finished."""
    return {name: x for name, x in measured.items() if name not in (OURS, MATMUL_NAME) and x.values}


def targets(
    measured: Mapping[str, Mapping[str, Measured]],
    seeds: tuple[str, Mapping[str, Timing]] | None,
    studies: Sequence[float] = (),
) -> str:
    """Return the section of targets, each ok, below, or not measured."""
    rows = []
    for target in TARGETS:
        found = measured.get(target.workload, {})
        medians = [_median(ratio) for peer in target.peers if (ratio := ratios(found, peer))]
        who = target.peers[0] if len(target.peers) == 1 else "the fastest peer"
        if 1 < len(target.peers) < len(CONTENDERS) - 1:
            who = f"the fastest of {', '.join(target.peers)}"
        value = min(medians, default=None)
        rows.append(_verdict(f"{target.workload}: {who}, time / ours", target.ratio, value))
    workload, least = SHARE_TARGET
    share = shares(measured[workload], workload, OURS) if workload in measured else []
    value = _median(share) if share else None
    rows.append(_verdict(f"{workload}: share of the matrix product", least, value))
    fastest = min(map(extrapolated, peers_of(measured.get(WORKLOAD, {})).values()), default=None)
    value = fastest / statistics.median(studies) if fastest and studies else None
    rows.append(_verdict("whole study: the fastest peer, time / ours", STUDY_TARGET, value))
    preset, timings = ("mnist_small", {}) if seeds is None else seeds
    value = 32 * timings["1"].median / timings["32"].median if timings else None
    what = f"{preset}, 32 seeds in one sweep: throughput / that of one seed"
    rows.append(_verdict(what, 32 / SEEDS_TARGET, value))
    return "\n".join(["## Targets", "", *table(["", "at least", "measured", ""], rows)])


def alone(title: str, what: str, timings: Mapping[str, Timing], unit: str = "run") -> str:
    """Return a section on pause_jax alone, with ratios to the first row."""
    first = next(iter(timings.values())).median
    rows = [
        [name, f"{t.median:.3g}", f"{t.median / first:.2f}", f"{t.first - t.median:.1f}"]
        for name, t in timings.items()
    ]
    head = [what, f"s / {unit}", "time / first row", "compilation, s"]
    return "\n".join([f"### {title}", "", *table(head, rows)])


def seeds_section(preset: str, timings: Mapping[str, Timing]) -> str:
    """Return a section on the throughput of sweeps by number of seeds."""
    one = timings["1"].median
    rows = [
        [n, f"{t.median:.3g}", f"{int(n) / t.median:.2f}", f"{t.median / one:.2f}",
         f"{t.first - t.median:.1f}"]
        for n, t in timings.items()
    ]  # fmt: skip
    head = ["seeds", "s", "runs / s", "time / one seed", "compilation, s"]
    return "\n".join([f"### Sweep of {preset} over seeds", "", *table(head, rows)])


def machine(versions: Mapping[str, str], repeat: int, load: float) -> str:
    """Describe the machine; ``load`` is the load average before the first turn."""
    cpu = platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":")[1].strip() if names else cpu
    trial = " Trial run: fewer than 3 repetitions." if repeat < 3 else ""
    if load > QUIET:
        trial += " Other programs were running, so the numbers are unreliable."
    return (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}. "
        f"The load average before the first of {repeat} repetitions was {load:.1f}.{trial}\n\n"
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + "."
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def _ok(passed: bool) -> str:
    return "ok" if passed else "DIFFERS"


def _verdict(what: str, least: float, value: float | None) -> list[str]:
    if value is None:
        return [what, f"{least:g}", "", "not measured"]
    return [what, f"{least:g}", f"{value:.2f}", "ok" if value >= least else "below"]
