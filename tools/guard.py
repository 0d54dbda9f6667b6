"""Compare programs, kernels, tracing and round times of six small workloads with stored values.

    python -m tools.guard            exit with 1 if a value is worse than the stored one
    python -m tools.guard --write    store the current values in tools/guard.json

Tracing is measured by its number of function calls, which hardly varies between runs. Round times
are divided by the times of a plain JAX program, measured in turns in the same process. These ratios
differ between processors, so store the values of the parent commit on the same machine first.
"""

from __future__ import annotations

import cProfile
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import typer

from benchmarks.kernels import census, steps
from pause_jax import SimConfig, presets, simulate
from pause_jax.config import Asynchronous
from pause_jax.learning import Cnn2, Mlp
from pause_jax.policies import named
from tests.support.compilations import Compilations

STORED = Path(__file__).with_name("guard.json")
# Values above this multiple of the stored value are worse. Counts of programs must not grow.
LIMITS = {"programs": 1.0, "kernels": 1.1, "calls": 1.1, "rounds": 1.15}
TURNS = 40
Values = dict[str, dict[str, float]]


def workloads() -> dict[str, SimConfig]:
    """Return the configs to measure, by name."""
    digits = presets.digits_small().replace(num_rounds=100)
    return {
        "bandit": SimConfig(num_clients=100, num_selected=10, num_rounds=500, learning=None),
        "digits": digits,
        "clustered": digits.replace(policy=named("clustered_similarity")),
        "wide": digits.override({"learning.model": Mlp(hidden=(256,)), "num_rounds": 40}),
        "images": digits.override({"learning.model": Cnn2(), "num_rounds": 6}),
        "asynchronous": digits.replace(clock=Asynchronous(), track_regret=False),
    }


def plain() -> Callable[[], object]:
    """Return a call of a compiled plain JAX program that takes some 20 ms."""

    def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ x / 64), None

    x = jnp.ones((128, 128))
    # Compiled here, because a cleared cache must not make a call compile again.
    program = jax.jit(lambda x: jax.lax.scan(body, x, None, length=200)[0]).lower(x).compile()
    return lambda: jax.block_until_ready(program(x))


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(call: Callable[[], object], yardstick: Callable[[], object]) -> float:
    """Return the ratio of the shortest times of two calls, measured alternately."""
    pairs = [(seconds(call), seconds(yardstick)) for _ in range(TURNS)]
    ours, theirs = (min(column) for column in zip(*pairs, strict=True))
    return ours / theirs


def calls(config: SimConfig) -> int:
    """Return the number of function calls that trace and lower a config's programs, uncached."""
    jax.clear_caches()
    profile = cProfile.Profile()
    profile.runcall(steps, config)
    return sum(entry.callcount for entry in profile.getstats())


def measure() -> Values:
    """Measure all workloads."""
    found: Values = {}
    yardstick = plain()
    for name, config in workloads().items():
        key = jax.random.key(0)
        meter = Compilations()
        simulate(config, key)
        programs = meter.programs
        rounds = in_turns(functools.partial(simulate, config, key), yardstick)
        values = {"programs": float(programs), "rounds": rounds}
        if config.learning is not None:
            advance = steps(config)["advance"]
            values["kernels"] = float(census(advance).kernels)
            values["calls"] = float(calls(config))
        found[name] = values
        typer.echo(f"{name}: {values}")
    return found


def worse(stored: Values, found: Values) -> list[str]:
    """Return a line for each value above its limit, or missing on either side."""
    lines = []
    for name in stored.keys() | found.keys():
        before, now = stored.get(name, {}), found.get(name, {})
        for value in sorted(before.keys() | now.keys()):
            if value not in before or value not in now:
                lines.append(f"{name}, {value}: was not measured on both sides")
            elif now[value] > LIMITS[value] * before[value]:
                lines.append(f"{name}, {value}: {before[value]:.4g} stored, {now[value]:.4g} now")
    return sorted(lines)


def main(
    write: Annotated[bool, typer.Option("--write", help="Store the current values.")] = False,
) -> None:
    """Measure the workloads, and compare them with the stored values or store them."""
    jax.config.update("jax_enable_compilation_cache", False)
    found = measure()
    if write:
        STORED.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", "utf-8")
        return
    lines = worse(json.loads(STORED.read_text("utf-8")), found)
    typer.echo("\n".join(lines) or "Nothing became worse.")
    raise typer.Exit(bool(lines))


if __name__ == "__main__":
    typer.run(main)
