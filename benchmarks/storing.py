"""What a store costs: a sweep with one and the same sweep without, in turns.

    python -m benchmarks.storing

Everything is compiled beforehand. Ratios of medians; the middle of a chunk is saved every second,
sixty times as often as by default, so that it is in the figures.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from pause_jax import SimConfig, presets, sweep
from pause_jax.policies import named
from pause_jax.sweeps import checkpoint

TURNS = 9


class Setting(NamedTuple):
    """A sweep to measure."""

    title: str
    configs: dict[str, SimConfig]
    seeds: int


def settings(turns: int = TURNS) -> Iterator[Setting]:
    """The demo's training, the same many rounds long, and a bandit by itself."""
    short, long = (4, 8) if turns < TURNS else (200, 2000)
    names = ("pause", "random")
    demo = {name: presets.digits_small(name).replace(num_rounds=short) for name in names}
    yield Setting(f"digits_small, {short} rounds, 2 policies", demo, 3)
    one = {"pause": demo["pause"].replace(num_rounds=long)}
    yield Setting(f"digits_small, {long} rounds", one, 2)
    bandit = presets.digits_small().replace(learning=None, num_rounds=10 * long)
    policies = {name: bandit.replace(policy=named(name)) for name in names}
    yield Setting(f"no learning, {10 * long} rounds, 2 policies", policies, 4)


def measured(setting: Setting, turns: int) -> dict[str, Any]:
    """Seconds of both, medians of so many turns."""
    keys = jax.random.split(jax.random.key(0), setting.seeds)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(turns + 1):
        for stored in (False, True) if turn % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                store = f"{folder}/kept" if stored else None
                sweep(setting.configs, keys, store=store, progress=False)
                if turn:  # the first one compiles
                    seconds[stored].append(time.perf_counter() - start)
    without, with_store = (statistics.median(seconds[stored]) for stored in (False, True))
    return {"title": setting.title, "without": without, "with": with_store}


def main(turns: int = TURNS) -> None:
    """Print a line for each setting."""
    checkpoint.SAVE_EVERY = 1.0
    for setting in settings(turns):
        row = measured(setting, turns)
        cost = 100 * (row["with"] / row["without"] - 1)
        print(
            f"{row['title']}: {row['without']:.2f} s without a store, {row['with']:.2f} s with "
            f"one, {cost:+.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
