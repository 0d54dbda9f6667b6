"""Cost of a server step compared with a round of equally many clients, on MNIST."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import jax
import typer

from benchmarks.timing import in_turns
from pause_jax import Asynchronous, presets, simulate


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    policy: str = "pause",
    turns: int = 7,
    steps: int = 200,
) -> None:
    """Print processor ms of a round of 10 clients and a step with C = 50, B = 10, and the ratio."""
    key, base = jax.random.key(0), presets.mnist_small(policy, data_dir=data_dir)
    rounds = base.replace(
        num_clients=100, num_selected=10, num_rounds=steps, eval_every=steps, track_regret=False
    )
    clock = Asynchronous(concurrency=50, buffer=10, open_slots=1)
    configs = {"round": rounds, "step": rounds.replace(clock=clock)}
    calls = {name: partial(simulate, config, key) for name, config in configs.items()}
    timings = in_turns(calls, turns, clock=time.process_time)
    for name, timing in timings.items():
        typer.echo(f"{name}: {1000 * timing.median / steps:.2f} ms")
    typer.echo(f"step / round: {timings['step'].median / timings['round'].median:.2f}")
