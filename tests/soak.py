"""Kills a small sweep at many moments, starts it again, and compares bit for bit: `make soak`.

python -m tests.soak [MOMENTS]
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import numpy as np
import xarray as xr

from pause_jax import merge
from tests.support.killed import CONFIGS, KEYS, MAX_BATCH

ROOT = pathlib.Path(__file__).parents[1]
PAIRS = 4


def environment(cache: pathlib.Path) -> dict[str, str]:
    """Of the processes: compiled programs in a folder, so that only the first compiles."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "COLUMNS": "200",
    }


def begun(
    folder: pathlib.Path, settings: dict[str, str], seconds: float = 0.0, part: str = ""
) -> subprocess.Popen[str]:
    """A process of tests/support/killed.py."""
    words = [str(folder), str(seconds), *([part] if part else [])]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed", *words],
        cwd=ROOT,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> float:
    """Wait for a process that was killed, or has played to its end: for so many seconds."""
    printed, error = process.communicate(timeout=600)
    if process.returncode == -signal.SIGKILL:
        return 0.0
    assert process.returncode == 0, error[-3000:]
    return float(printed)


def killed(folder: pathlib.Path, settings: dict[str, str], seconds: float = 0.0) -> float:
    """Play tests/support/killed.py, to its end if ``seconds`` is 0."""
    return ended(begun(folder, settings, seconds))


def killed_shards(
    folder: pathlib.Path,
    settings: dict[str, str],
    chance: random.Random,
    seconds: float,
    *,
    shards: int = 8,
    dying: int = 2,
) -> xr.Dataset:
    """Play shards at the same time, some of which are killed and started again, and merge them."""
    killed = chance.sample(range(1, shards + 1), dying)
    moments = {number: chance.uniform(0.05, 0.5) * seconds for number in killed}
    processes = [
        begun(folder, settings, moments.get(number, 0.0), f"{number}/{shards}")
        for number in range(1, shards + 1)
    ]
    for process in processes:
        ended(process)
    for number in killed:
        ended(begun(folder, settings, 0.0, f"{number}/{shards}"))
    return merge(folder)


def killed_pair(
    folder: pathlib.Path, settings: dict[str, str], dying: int | None = None, seconds: float = 0.0
) -> float:
    """Run a sweep in two processes together, of which one is killed; the other must end by itself.

    Args:
      folder: where it is kept.
      settings: the processes' environment.
      dying: which one is killed, 0 or 1; None for an undisturbed run.
      seconds: when.

    Returns:
      How long the first process ran, 0 after a death.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pair = [
        begun(folder, settings, seconds if number == dying else 0.0, f"{number}@{address}")
        for number in (0, 1)
    ]
    ends = [process.communicate(timeout=600) for process in pair]
    statuses = [process.returncode for process in pair]
    if dying is not None and statuses[dying] == -signal.SIGKILL:
        # Killed after the last chunk, it leaves the other nothing to wait for.
        played = len(list(folder.glob("chunk-*.npz"))) >= len(CONFIGS) * KEYS // MAX_BATCH
        assert played or statuses[1 - dying] != 0, "a process went on without the other"
        return 0.0
    assert statuses == [0, 0], [error[-2000:] for _, error in ends]
    return float(ends[0][0].split()[-1])


def soak_pairs(folder: pathlib.Path, settings: dict[str, str], chance: random.Random) -> None:
    """Kill one of two processes that run a sweep together, restart both, and compare the bits."""
    killed_pair(folder / "pair", settings)
    shutil.rmtree(folder / "pair")
    seconds = killed_pair(folder / "pair", settings)
    whole = xr.load_dataset(folder / "pair.nc")
    kept = 0
    for number in range(PAIRS):
        place = folder / f"pair-{number}"
        killed_pair(place, settings, number % 2, chance.uniform(0.1, 0.9) * seconds)
        kept += bool(list(place.glob("chunk-*.npz")))
        killed_pair(place, settings)
        same_bits(xr.load_dataset(f"{place}.nc"), whole)
    print(
        f"{PAIRS} pairs of processes of which one was killed (the first, the second, ...) were "
        f"started again and have the bits of a pair that nobody disturbed ({kept} found chunks)"
    )


def same_bits(one: xr.Dataset, other: xr.Dataset) -> None:
    """Compare two results, NaN with NaN.

    Raises:
      AssertionError: if a bit differs.
    """
    assert one.attrs == other.attrs
    assert set(one.variables) == set(other.variables)
    for name in one.variables:
        np.testing.assert_array_equal(one[name].values, other[name].values, str(name))


def main(moments: int) -> None:
    """Kill at so many moments, then two of eight shards, then one of two processes together. On one
    core shards are cut otherwise, and their rounding is another.
    """
    folder = pathlib.Path(tempfile.mkdtemp())
    settings, chance = environment(folder / "compiled"), random.Random(0)
    killed(folder / "whole", settings)
    shutil.rmtree(folder / "whole")
    seconds = killed(folder / "whole", settings)
    whole = xr.load_dataset(folder / "whole.nc")
    reached = {"nothing was kept": 0, "chunks": 0, "the middle of a chunk": 0}
    for number in range(moments):
        kept = folder / str(number)
        killed(kept, settings, chance.uniform(0.02, 0.98) * seconds)
        chunks, middles = list(kept.glob("chunk-*.npz")), list(kept.glob("checkpoint-*/[0-9]*"))
        reached["chunks"] += bool(chunks)
        reached["the middle of a chunk"] += bool(middles)
        reached["nothing was kept"] += not chunks and not middles
        killed(kept, settings)
        same_bits(xr.load_dataset(folder / f"{number}.nc"), whole)
        shutil.rmtree(kept)
    words = ", ".join(f"{name} {count}" for name, count in reached.items())
    print(f"{moments} of {moments} killed sweeps went on with the same bits (found: {words})")

    merged = killed_shards(folder / "parts", settings, chance, seconds)
    same_bits(merged.drop_attrs(), whole.drop_attrs())
    print("8 shards, 2 of them killed and started again, have the bits of one process")
    soak_pairs(folder, settings, chance)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
