"""Make ``pause_jax/world/latency/devices.csv``: a synthetic table of phones, invented for examples.

Nobody measured these devices. Speeds of compute run over a factor of 20 and get rarer towards both
ends; networks are of three kinds, and slower to send than to receive.
"""

from __future__ import annotations

import math
import pathlib

PLACE = pathlib.Path(__file__).parent.parent / "pause_jax" / "world" / "latency" / "devices.csv"
# (name, share, Mbit/s received, sent, spread of both).
NETWORKS = (
    ("wifi", 0.6, 40.0, 15.0, 0.5),
    ("lte", 0.3, 20.0, 6.0, 0.7),
    ("3g", 0.1, 3.0, 1.0, 0.9),
)
# Median seconds a sample of the kinds of processors, from flagship to oldest.
PROCESSORS = tuple(0.002 * 20 ** (place / 5) for place in range(6))
MIDDLE, WIDTH = 2.0, 1.2


def table() -> str:
    """The file's content."""
    weight = [math.exp(-(((place - MIDDLE) / WIDTH) ** 2) / 2) for place in range(len(PROCESSORS))]
    lines = [
        "device,share,sample_seconds,sample_spread,download_mbit,download_spread,upload_mbit,"
        "upload_spread"
    ]
    for place, seconds in enumerate(PROCESSORS):
        for network, share, down, up, spread in NETWORKS:
            of_all = share * weight[place] / sum(weight)
            lines.append(
                f"phone_{place}_{network},{of_all:.4f},{seconds:.4f},0.2,{down:g},{spread:g},"
                f"{up:g},{spread:g}"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PLACE.write_text(table(), encoding="utf-8")
