"""FLHetBench's phones: how fast they compute and send, and when they are ready. JSON files.

Format: ``data/`` and ``bench/device.py`` of github.com/Carkham/FLHetBench. The speeds are
MobiPerf's, the states FLASH's, most latencies AI-Benchmark's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pause_jax.importers import states
from pause_jax.importers.request import (
    DEVICES,
    Imported,
    Request,
    Rows,
    json_of,
    number,
    parsed,
    positive,
    refuse,
)
from pause_jax.importers.tables import NO_NETWORK, PER_CLIENT

# A median and the standard deviation of the logarithm.
Law = tuple[float, float]


def read(request: Request) -> Imported:
    """Devices of ``mobiperf_tcp_*.json`` and ``training_latency.json``, intervals of
    ``cached_timers.json``.

    The first file of speeds is that of downloads, a second one that of uploads; one counts for
    both. Who has which phone, speed and state is drawn.

    Raises:
      ConfigError: if a file is none of them, or is damaged.
    """
    speeds, phones, traces = _found(request)
    known = [len(part) for part in speeds] + [n for n in (len(phones), len(traces)) if n]
    if not known:
        refuse(request.paths[0], "must have a client with measurements, and has none")
    count = request.number(min(known))
    rng = np.random.default_rng(request.seed)
    speeds = [[part[k] for k in rng.permutation(len(part))[:count]] for part in speeds]
    phones = [phones[k] for k in rng.permutation(len(phones))[:count]]
    traces = [traces[k] for k in rng.permutation(len(traces))[:count]]
    tables: dict[str, Rows] = {}
    notes: list[str] = []
    if speeds or phones:
        if not phones:
            phones = [(f"client_{k}", (0.0, 0.0)) for k in range(count)]
            notes.append("No file of latencies: computing takes no time.")
        if not speeds:
            speeds = [[(NO_NETWORK, 0.0)] * count]
            notes.append("No file of speeds: the network takes no time.")
        tables[DEVICES] = [
            PER_CLIENT,
            *(
                (name, *(f"{value:.6g}" for law in laws for value in law))
                for (name, own), down, up in zip(phones, speeds[0], speeds[-1], strict=True)
                for laws in [(own, down, up)]
            ),
        ]
    if traces:
        states.add(tables, notes, request.names(count), traces)
    return Imported(tables, {}, tuple(notes))


def _found(request: Request) -> tuple[list[list[Law]], list[tuple[str, Law]], list[states.Trace]]:
    """Each file's speeds, all phones that were measured, all traces with an interval."""
    speeds: list[list[Law]] = []
    phones: list[tuple[str, Law]] = []
    traces: list[states.Trace] = []
    for path in request.paths:
        content = json_of(path)
        if isinstance(content, list):
            content = dict(enumerate(content))
        records = list(content.items()) if isinstance(content, dict) else []
        named = set(records[0][1]) if records and isinstance(records[0][1], dict) else set()
        if "tcp_speed_results" in named:
            rule = "tcp_speed_results must be numbers, and one > 0"
            speeds.append(list(parsed(path, records, _speed, rule)))
        elif "ResNet Latency" in named:
            rule = "Phone Model must be a text, ResNet Latency and ResNet STD numbers"
            # Where nothing was measured stands 0.
            phones += [each for each in parsed(path, records, _phone, rule) if each[1][0] > 0]
        elif "ready_time" in named:
            rule = "trace_start must be < trace_end, and ready_time pairs of numbers"
            traces += [each for each in parsed(path, records, _trace, rule) if each[0]]
        else:
            refuse(path, "must have records with tcp_speed_results, ResNet Latency or ready_time")
    return speeds, phones, traces


def _speed(record: Any) -> Law:
    """Mbit/s of kbit/s."""
    speeds = [speed / 1000 for speed in map(number, record["tcp_speed_results"]) if speed > 0]
    if not speeds:
        raise ValueError
    return float(np.median(speeds)), float(np.std(np.log(speeds)))


def _phone(record: Any) -> tuple[str, Law]:
    """A phone's name, and seconds of milliseconds a sample."""
    mean, deviation = number(record["ResNet Latency"]), number(record["ResNet STD"])
    spread = math.sqrt(math.log1p((deviation / mean) ** 2)) if mean > 0 else 0.0
    return str(record["Phone Model"]), (mean / 1000, spread)


def _trace(record: Any) -> states.Trace:
    """Intervals of a client in seconds since a midnight; none if its state was not measured."""
    if not record["ready_time"]:
        return [], 0.0
    repeats = positive(number(record["trace_end"]) - number(record["trace_start"]))
    pairs = ((number(first), number(last)) for first, last in record["ready_time"])
    since = ((first % repeats, last - first) for first, last in pairs if first < last)
    return [(first, first + length) for first, length in since], repeats
