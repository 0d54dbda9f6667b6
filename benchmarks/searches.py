"""Speed of searches: exact search against one argsort, and annealing steps per second."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import typer
from jax import Array

from benchmarks.report import table
from benchmarks.timing import in_turns
from pause_jax.bandit.search import Problem, anneal, exact

EXACT = ((100_000, 100, 31), (1_000_000, 1000, 9))  # K, m, repeats
CHAINS = ((1, 9), (100, 5), (1000, 3))  # chains, repeats
# K, m, steps, and the seconds of one chain in the authors' program, recorded on another machine. In
# the large network it was stopped after 60 s.
ANNEALING = ((30, 5, 500, 0.86), (300, 15, 3000, 60.0))


def rows() -> list[dict[str, Any]]:
    """Measure all searches: one row per exact search and per number of chains."""
    return [
        *(row for setting in EXACT for row in exact_rows(*setting)),
        *(row for setting in ANNEALING for row in annealing_rows(*setting)),
    ]


def exact_calls(num_clients: int, num_selected: int) -> dict[str, Callable[[], object]]:
    """Return calls of one ``jnp.argsort`` and of exact search, ties by number and at random."""
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
    """Time exact search with and without a key, and ``jnp.argsort`` of the same index.

    ``bytes_per_second`` is the unavoidable memory traffic over the time of the whole search. Index
    and weight are read once (8 bytes per client). A merge sort of keys and numbers reads and writes
    8 bytes per client, or 12 with random tie-breaks, in each of ceil(log2 K) passes.
    """
    timings = in_turns(exact_calls(num_clients, num_selected), repeats)
    sort_seconds = timings["argsort"].median
    passes = math.ceil(math.log2(num_clients))
    return [
        {
            "benchmark": "exact search",
            "clients": num_clients,
            "selected": num_selected,
            "ties": ties,
            "seconds": timings[ties].median,
            "argsort_seconds": sort_seconds,
            "ratio": timings[ties].median / sort_seconds,
            "bytes_per_second": (
                num_clients * (8 + 2 * sorted_bytes * passes) / timings[ties].median
            ),
        }
        for ties, sorted_bytes in (("by number", 8), ("at random", 12))
    ]


def annealing_rows(
    num_clients: int, num_selected: int, steps: int, authors_seconds: float
) -> list[dict[str, Any]]:
    """Measure annealing steps per second of all chains together, by number of chains."""
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
        seconds = in_turns({"": start(chains)}, repeats)[""].median
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


def main() -> None:
    """Print the speed of exact search, compared with one argsort, and of annealing."""
    typer.echo(section())


def section() -> str:
    """Return the section of the report, with one table per kind of search."""
    lines = ["## Selection"]
    for name, group in itertools.groupby(rows(), key=lambda row: row["benchmark"]):
        found = [{k: v for k, v in row.items() if k != "benchmark"} for row in group]
        cells = [
            [f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in found
        ]
        head = [column.replace("_", " ") for column in found[0]]
        lines += ["", f"### {str(name).capitalize()}", "", *table(head, cells)]
    return "\n".join(lines)
