"""Cost of a store: sweeps with a store and without one, measured in turns.

Unfinished chunks are saved every second, sixty times as often as by default, to make the cost of
saving visible.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import jax
import typer

from benchmarks.timing import in_turns
from pause_jax import SimConfig, presets, sweep
from pause_jax.policies import named
from pause_jax.sweeps import store

TURNS = 9


class Setting(NamedTuple):
    """Setting of a measured sweep."""

    title: str
    configs: dict[str, SimConfig]
    seeds: int


def settings(turns: int = TURNS) -> Iterator[Setting]:
    """Yield the demo's training, the same training with more rounds, and a bandit-only sweep."""
    short, long = (4, 8) if turns < TURNS else (200, 2000)
    names = ("pause", "random")
    demo = {name: presets.digits_small(name).replace(num_rounds=short) for name in names}
    yield Setting(f"digits_small, {short} rounds, 2 policies", demo, 3)
    one = {"pause": demo["pause"].replace(num_rounds=long)}
    yield Setting(f"digits_small, {long} rounds", one, 2)
    bandit = presets.digits_small().replace(learning=None, num_rounds=10 * long)
    policies = {name: bandit.replace(policy=named(name)) for name in names}
    yield Setting(f"no learning, {10 * long} rounds, 2 policies", policies, 4)


def cost(setting: Setting, turns: int) -> tuple[float, float]:
    """Return the median seconds of a sweep without a store and with a store."""
    keys = jax.random.split(jax.random.key(0), setting.seeds)

    def play(*, stored: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = f"{folder}/kept" if stored else None
            sweep(setting.configs, keys, store=store, progress=False)

    calls = {"without": lambda: play(stored=False), "with": lambda: play(stored=True)}
    timings = in_turns(calls, turns)
    return timings["without"].median, timings["with"].median


def main(turns: Annotated[int, typer.Option(help="Turns that count.", min=1)] = TURNS) -> None:
    """Print the seconds of sweeps without and with a store."""
    store.SAVE_EVERY = 1.0
    for setting in settings(turns):
        without, stored = cost(setting, turns)
        typer.echo(
            f"{setting.title}: {without:.2f} s without a store, {stored:.2f} s with one, "
            f"{100 * (stored / without - 1):+.1f} %"
        )
