"""Enumerated search graphs, and the paths in the proofs of their connectivity."""

from __future__ import annotations

import collections

import jax
import numpy as np

from experiments.common import instances
from experiments.common.claims import Claim, exact
from experiments.common.outcome import Outcome
from experiments.pause_table_1.scaling import REWARD
from experiments.search_laboratory import landscape as lab
from experiments.search_laboratory import proofs
from pause_jax.bandit.search import Problem

SHAPES = ((5, 2), (6, 3), (7, 3), (8, 4))


def connectivity(outcome: Outcome, number: int) -> None:
    """Check that the search graphs of small random instances are connected."""
    key = jax.random.key(4)
    connected = dict.fromkeys(lab.RULES, 0)
    for num_clients, num_selected in SHAPES:
        problems = instances.draw(key, number, num_clients, num_selected, REWARD, "uniform")
        members = lab.enumerate_sets(num_clients, num_selected)
        for i in range(number):
            problem = Problem(*(np.asarray(leaf)[i] for leaf in problems))
            for rule in lab.RULES:
                landscape = lab.landscape_for(key, problem, num_selected, rule)
                connected[rule] += lab.is_connected(lab.search_graph(landscape, members))
    total = number * len(SHAPES)
    for rule, count in connected.items():
        outcome.check(f"{rule}: {count} of {total} enumerated graphs are connected", count == total)
    outcome.judge(claims_on_connectivity(connected, total))


def claims_on_connectivity(connected: dict[str, int], total: int) -> list[Claim]:
    """Return the claims that all enumerated graphs of both papers are connected."""
    return [
        exact(
            f"{where}: every enumerated graph is connected",
            connected[rule] == total,
            f"{connected[rule]} of {total}",
        )
        for where, rule in (("Table I", "pause"), ("Fig. 3", "alsa"))
    ]


def paths(outcome: Outcome, draws: int = 2000) -> None:
    """Check BSFL's path, as printed and as repaired, and the path of Algorithm 3."""
    for repaired in (False, True):
        reading = "repaired" if repaired else "printed"
        smallest: dict[str, proofs.CounterExample] = {}
        for example in proofs.counter_examples(3, repaired=repaired):
            smallest.setdefault(example.fault, example)
        for fault, example in smallest.items():
            steps = " ".join(str(sorted(clients)) for clients in example.path)
            outcome.add(
                f"BSFL's path as {reading}: {fault}. K = 3, m = {example.num_selected}, ucb "
                f"(0, 1, 2), g {example.g}, S_0 {sorted(example.start)}, "
                f"S* {sorted(example.goal)}: {steps}"
            )
        outcome.check(f"BSFL's path as {reading} fails on 3 clients", len(smallest) > 0)
    rng = np.random.default_rng(0)
    num_clients, num_selected = SHAPES[-1]
    faults = {name: collections.Counter[str]() for name in ("printed", "repaired", "Algorithm 3")}
    for _ in range(draws):
        index, g = (rng.permutation(num_clients).tolist() for _ in range(2))
        start, goal = (
            frozenset(rng.choice(num_clients, num_selected, replace=False).tolist())
            for _ in range(2)
        )
        for name, path in (
            ("printed", proofs.bsfl_path(index, g, start, goal)),
            ("repaired", proofs.bsfl_path(index, g, start, goal, repaired=True)),
        ):
            faults[name][proofs.path_fault(path, goal, (index, g)) or "arrives"] += 1
        path = proofs.algorithm_3_path(rng, index, start, goal)
        faults["Algorithm 3"][proofs.path_fault(path, goal, (index,)) or "arrives"] += 1
    for name, counts in faults.items():
        shares = ", ".join(f"{what} {100 * n / draws:.1f} %" for what, n in counts.most_common())
        outcome.add(f"{num_selected} of {num_clients}, {draws} random pairs, {name}: {shares}")
    outcome.check("Algorithm 3 always arrives", set(faults["Algorithm 3"]) == {"arrives"})
