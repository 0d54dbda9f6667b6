"""One table of what is to be known of an accelerator: training, many seeds, kinds of numbers.

    python -m benchmarks.gpu --data-dir DATA --out gpu.md

It runs wherever JAX runs. Peers compute on a GPU if their environment has a build for it: pip finds
PyTorch's by itself, JAX's for FedJAX goes into ``.bench/fedjax`` by hand.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Annotated

import jax
import typer

import pause_jax
from benchmarks import choices, report
from benchmarks.contenders import OURS, Contender, gathered
from benchmarks.harness import ON_ACCELERATOR, Measured, measure
from benchmarks.run import able, listed, say
from benchmarks.timing import Row, here
from benchmarks.workloads import WORKLOADS
from pause_jax import ConfigError, presets, sweep
from pause_jax.learning import Dataset

# Flower's clients are processes of their own on the CPU.
PEERS = ("fedjax", "pfl", "torch")
KINDS = {kind: f"own Flax module, {kind}" for kind in ("float32", "bfloat16")}
# Variants of ours that are divided by another one of them.
BASES = {KINDS["bfloat16"]: KINDS["float32"]}

INTRO = """# On this device

Written by `make bench-gpu`. Seconds are medians over the turns; "ratio" is to the row that the next
column names. Workloads are those of `make bench`, seconds are of a round, and all contenders of one
took turns. Rows from "as the library chooses" on are whole measurements, each with one other
choice; a share of the product's rate is at the precision that it names. Sweeps are whole runs from
data that were read before. "compiling" is the processor seconds of the first run less the median of
the later ones. The library's own models have float32 only; a custom module may compute in bfloat16,
with weights and updates in float32. Matrix products in float32 have JAX's default precision, which
on some devices is less than float32.
"""


def training(
    workload: str,
    peers: Mapping[str, tuple[pathlib.Path, Contender]],
    missing: Mapping[str, str],
    repeat: int,
) -> tuple[list[Row], dict[str, str]]:
    """A round of a workload: ours, our kinds of numbers, and the peers.

    Returns:
      (rows, versions).
    """
    python, ours = peers[OURS]
    own = {title: (python, ours._replace(variant=name)) for name, title in KINDS.items()}
    if WORKLOADS[workload].normed:
        own = {}  # the module has no norms
    contenders = {OURS: (python, ours), **own}
    contenders |= {name: peer for name, peer in peers.items() if name != OURS}
    measured = measure(workload, contenders, repeat, say, ON_ACCELERATOR)
    rows: list[Row] = []
    versions: dict[str, str] = {}
    for name, found in measured.items():
        versions.update(found.versions)
        to = BASES.get(name, OURS)
        base = None if name == OURS else (to, measured[to])
        contender = contenders[name][1]
        what = f"{workload}: {name}"
        rows.append(Row(what, found, base, contender.compiles, contender.note))
    rows += [Row(f"{workload}: {name}", Measured([], failure=why)) for name, why in missing.items()]
    return rows, versions


def given(preset: str, data_dir: str | None) -> Dataset | None:
    """The data of a preset; None if they are to be in a folder that nobody named.

    Raises:
      typer.BadParameter: if they are not in the folder.
    """
    learning = presets.PRESETS[preset](data_dir=data_dir).learning
    assert learning is not None
    named = data_dir is not None or not hasattr(learning.data, "data_dir")
    try:
        return learning.data.load() if named else None
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def seeds(
    preset: str, data: Dataset | None, counts: list[int], rounds: int, repeat: int
) -> list[Row]:
    """Sweeps of a preset over numbers of seeds, and over one."""
    config = presets.PRESETS[preset]()
    config = config.replace(num_rounds=rounds, eval_every=min(config.eval_every, rounds))
    names = {
        n: f"{preset}, {rounds} rounds: {n} seed{'s in one sweep' if n > 1 else ''}"
        for n in sorted({1, *counts})
    }
    if data is None:
        return [Row(name, Measured([], failure="needs --data-dir")) for name in names.values()]
    limit = memory()

    def play(count: int) -> object:
        keys = jax.random.split(jax.random.key(0), count)
        played = sweep(config, keys, data=data, memory_limit=limit, progress=False)
        return played.clock.values

    found = here({name: partial(play, n) for n, name in names.items()}, repeat)
    first = found[names[1]]
    return [
        Row(name, found[name], None if n == 1 else ("1 seed", first)) for n, name in names.items()
    ]


def memory() -> float:
    """GiB that a batch of a sweep may take: half the device's, or the library's 2 if it is mute."""
    of_device = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return of_device / 2**31 or 2.0


def main(
    workloads: Annotated[str, typer.Option(help="Names, with commas.")] = "W1,W2,W3,W4",
    preset_names: Annotated[
        str, typer.Option("--presets", help="Of the sweeps, with commas.")
    ] = "mnist_small,cifar10_small",
    seed_counts: Annotated[
        str, typer.Option("--seeds", help="Of the sweeps, beside 1, with commas.")
    ] = "32,256,1024,4096",
    rounds: Annotated[int, typer.Option(help="Of each run in the sweeps.", min=1)] = 100,
    clients: Annotated[int, typer.Option(help="K of the selection.", min=10)] = 1_000_000,
    size: Annotated[int, typer.Option(help="Of the matrices.", min=1)] = 8192,
    peers: Annotated[
        str, typer.Option(help="Environments of peers, with commas; '' for none.")
    ] = ",".join(PEERS),
    repeat: Annotated[int, typer.Option(help="Turns of each row.", min=1)] = 3,
    data_dir: Annotated[str | None, typer.Option(help="Prepared MNIST and CIFAR-10.")] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Also write it there.")] = None,
    folder: Annotated[pathlib.Path, typer.Option(help="Where peers are installed.")] = pathlib.Path(
        ".bench"
    ),
) -> None:
    """Measure and print the table."""
    load = os.getloadavg()[0]
    names, chosen_presets = listed(workloads, WORKLOADS), listed(preset_names, presets.PRESETS)
    counts = [_count(text) for text in seed_counts.split(",") if text]
    # Arrays are put on the device when they are read. Its other memory is left to the drivers.
    os.environ.update(ON_ACCELERATOR)
    data = {name: given(name, data_dir) for name in chosen_presets}
    chosen, missing = gathered(listed(peers, PEERS), folder, say)
    rows: list[Row] = []
    versions = {name: version(name) for name in ("jax", "jaxlib", "flax")}
    versions["pause_jax"] = pause_jax.__version__
    for name in names:
        found, of_peers = training(name, able(name, chosen), missing, repeat)
        rows += [*found, *choices.training(name, repeat)]
        versions |= of_peers
    for name in chosen_presets:
        rows += seeds(name, data[name], counts, rounds, repeat)
    rows += choices.products(size, repeat)
    rows += choices.selections(clients, max(1, clients // 1000), repeat)
    head = ["", "on", "s", "ratio", "to", "compiling, cpu s", ""]
    sections = [INTRO, _device(), "", report.machine(versions, repeat, load), ""]
    text = "\n".join([*sections, *report.table(head, [row.cells() for row in rows])])
    if out is not None:
        out.write_text(text)
    typer.echo(text)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r}: must be numbers of seeds, at least 1, with commas.")
    return int(text)


def _device() -> str:
    device, *others = jax.devices()
    platform = " ".join(device.client.platform_version.split())
    name = f"Device: {1 + len(others)} x {device.device_kind} ({platform})."
    if device.platform == "cpu":
        name += " No accelerator: install the JAX for yours beside pause_jax."
    return name


if __name__ == "__main__":
    typer.run(main)
