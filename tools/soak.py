"""Soak test (`make soak`): kill a small sweep at random moments, resume it, compare all bits.

python -m tools.soak [MOMENTS]
"""

import pathlib
import random
import shutil
import sys
import tempfile

import xarray as xr

from tests.support.killed import environment, run_killed, same_bits


def main(moments: int) -> None:
    """Kill and resume a sweep at random moments, and compare it with an uninterrupted sweep."""
    folder = pathlib.Path(tempfile.mkdtemp())
    settings = environment(folder / "compiled")
    chance = random.Random(0)
    run_killed(folder / "whole", settings)
    shutil.rmtree(folder / "whole")
    seconds = run_killed(folder / "whole", settings)
    whole = xr.load_dataset(folder / "whole.nc")
    reached = {"no files": 0, "chunks": 0, "checkpoints": 0}
    for number in range(moments):
        kept = folder / str(number)
        run_killed(kept, settings, chance.uniform(0.02, 0.98) * seconds)
        chunks = list(kept.glob("chunk-*.npz"))
        middles = list(kept.glob("checkpoint-*.npz"))
        reached["chunks"] += bool(chunks)
        reached["checkpoints"] += bool(middles)
        reached["no files"] += not chunks and not middles
        run_killed(kept, settings)
        same_bits(xr.load_dataset(folder / f"{number}.nc"), whole)
        shutil.rmtree(kept)
    words = ", ".join(f"{name} {count}" for name, count in reached.items())
    print(f"{moments} of {moments} killed sweeps resumed with the same bits (found: {words})")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
