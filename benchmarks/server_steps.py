"""What a server step costs beside a round of as many clients: MNIST, measured in turns.

python -m benchmarks.server_steps --data-dir FOLDER
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated

import jax
import typer

from pause_jax import Asynchronous, SimConfig, presets, simulate


def seconds_of(config: SimConfig, key: jax.Array) -> float:
    """Processor seconds of a compiled run."""
    start = time.process_time()
    jax.block_until_ready(simulate(config, key).clock)
    return time.process_time() - start


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    policy: str = "pause",
    turns: int = 7,
    steps: int = 200,
) -> None:
    """Print milliseconds of a round of 10 clients, of a step with C = 50 and B = 10, the ratio."""
    key, base = jax.random.key(0), presets.mnist_small(policy, data_dir=data_dir)
    rounds = base.replace(
        num_clients=100, num_selected=10, num_rounds=steps, eval_every=steps, track_regret=False
    )
    clock = Asynchronous(concurrency=50, buffer=10, open_slots=1)
    configs = {"round": rounds, "step": rounds.replace(clock=clock)}
    for config in configs.values():
        seconds_of(config, key)  # compiles
    found: dict[str, list[float]] = {name: [] for name in configs}
    for _ in range(turns):
        for name, config in configs.items():
            found[name].append(seconds_of(config, key))
    middle = {name: statistics.median(each) for name, each in found.items()}
    for name, seconds in middle.items():
        typer.echo(f"{name}: {1000 * seconds / steps:.2f} ms")
    typer.echo(f"step / round: {middle['step'] / middle['round']:.2f}")


if __name__ == "__main__":
    typer.run(main)
