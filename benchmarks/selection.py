"""Speed of selection: exact search against one argsort, and annealing steps per second.

    python -m benchmarks.selection

Contenders are timed in turn in one process, compiled beforehand; medians are reported.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxlib.version import __version__ as jaxlib_version

from pause_jax.bandit.search import Problem, anneal, exact

EXACT = ((100_000, 100, 31), (1_000_000, 1000, 9))  # K, m, repeats
CHAINS = ((1, 9), (100, 5), (1000, 3))  # chains, repeats
# K, m, steps and the seconds that one chain takes the authors' program, recorded on another
# machine; it was stopped after 60 s in the large network.
ANNEALING = ((30, 5, 500, 0.86), (300, 15, 3000, 60.0))


def rows() -> list[dict[str, Any]]:
    """Measure everything: a row for each exact search and for each number of chains."""
    return [
        *(row for setting in EXACT for row in exact_rows(*setting)),
        *(row for setting in ANNEALING for row in annealing_rows(*setting)),
    ]


def exact_calls(num_clients: int, num_selected: int) -> dict[str, Callable[[], object]]:
    """Calls of one ``jnp.argsort`` and of exact search with ties by number and at random."""
    index_key, weight_key, key = jax.random.split(jax.random.key(0), 3)
    index = jax.random.normal(index_key, (num_clients,))
    weight = jax.random.normal(weight_key, (num_clients,)) / num_selected

    def search(index: Array, weight: Array, key: Array | None) -> tuple[Array, Array]:
        return exact(index, weight, num_selected, key=key)

    argsort, run = jax.jit(jnp.argsort), jax.jit(search)
    return {
        "argsort": lambda: argsort(index),
        "by number": lambda: run(index, weight, None),
        "at random": lambda: run(index, weight, key),
    }


def exact_rows(num_clients: int, num_selected: int, repeats: int) -> list[dict[str, Any]]:
    """Exact search with and without a key against ``jnp.argsort`` of the same index.

    ``bytes_per_second`` counts what no such search can avoid, over the time of the whole search:
    index and weight read once, 8 bytes a client, and a merge sort of keys and numbers that reads
    and writes them, 8 bytes a client, 12 with random lots, in each of ceil(log2 K) passes.
    """
    calls = exact_calls(num_clients, num_selected)
    sort_seconds, *seconds = medians(list(calls.values()), repeats)
    passes = math.ceil(math.log2(num_clients))
    return [
        {
            "benchmark": "exact search",
            "clients": num_clients,
            "selected": num_selected,
            "ties": ties,
            "seconds": spent,
            "argsort_seconds": sort_seconds,
            "ratio": spent / sort_seconds,
            "bytes_per_second": num_clients * (8 + 2 * sorted_bytes * passes) / spent,
        }
        for ties, sorted_bytes, spent in zip(
            ("by number", "at random"), (8, 12), seconds, strict=True
        )
    ]


def annealing_rows(
    num_clients: int, num_selected: int, steps: int, authors_seconds: float
) -> list[dict[str, Any]]:
    """Annealing steps per second of all chains together, for each number of chains."""
    index_key, terms_key, key = jax.random.split(jax.random.key(1), 3)
    problem = Problem(
        jax.random.normal(index_key, (num_clients,)),
        jax.random.normal(terms_key, (2, num_clients)) / num_selected,
        jnp.asarray(10.0),
    )

    def start(chains: int) -> Callable[[], object]:
        run = jax.jit(
            lambda key, problem: anneal(
                key, problem, num_selected, steps=steps, chains=chains, cooling=30.0
            )
        )
        return lambda: run(key, problem)

    found = []
    for chains, repeats in CHAINS:
        (seconds,) = medians([start(chains)], repeats)
        found.append(
            {
                "benchmark": "annealing",
                "clients": num_clients,
                "selected": num_selected,
                "steps": steps,
                "chains": chains,
                "seconds": seconds,
                "steps_per_second": chains * steps / seconds,
                "authors_steps_per_second": steps / authors_seconds,
            }
        )
    return found


def medians(contenders: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each contender, run in turn after one warm-up each."""
    taken: list[list[float]] = [[] for _ in contenders]
    for repeat in range(repeats + 1):
        for contender, times in zip(contenders, taken, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(contender())
            if repeat:
                times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in taken]


def machine() -> str:
    """Versions and hardware in one line."""
    device = jax.devices()[0]
    return (
        f"jax {jax.__version__}, jaxlib {jaxlib_version}, Python {platform.python_version()}, "
        f"{device.platform} ({device.device_kind}), {platform.machine()}, {os.cpu_count()} cores"
    )


def main() -> None:
    """Print the rows."""
    print(machine())
    for row in rows():
        if row["benchmark"] == "exact search":
            print(
                "exact search, K = {clients:,}, m = {selected:,}, ties {ties}: {seconds:.4f} s, "
                "argsort {argsort_seconds:.4f} s, ratio {ratio:.2f}, "
                "{bytes_per_second:.2e} bytes/s".format(**row)
            )
        else:
            print(
                "annealing {clients}/{selected}, {steps:,} steps, {chains:,} chains: "
                "{seconds:.3f} s, {steps_per_second:,.0f} steps/s (authors' program, on another "
                "machine: {authors_steps_per_second:,.0f} steps/s at most)".format(**row)
            )
    print(
        "bytes/s: index and weight read once, the sort's operands read and written ceil(log2 K) "
        "times, over the time of the search."
    )


if __name__ == "__main__":
    main()
