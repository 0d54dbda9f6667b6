"""Make the tables of ``pause_jax/world/latency``: ``devices.csv`` and ``phones.csv``.

``devices.csv`` is synthetic, invented for examples; nobody measured its devices. Speeds of compute
run over a factor of 20 and get rarer towards both ends; networks are of three kinds, and slower to
send than to receive.

``phones.csv`` has the quantiles of measurements in github.com/Carkham/FLHetBench (Zhang et al.,
CVPR 2024), commit 633c071, and nothing else of them. Compute and network are measured of other
phones, and are crossed as if independent.
"""

from __future__ import annotations

import math
import pathlib

FOLDER = pathlib.Path(__file__).parent.parent / "pause_jax" / "world" / "latency"
HEADER = (
    "device,share,sample_seconds,sample_spread,download_mbit,download_spread,upload_mbit,"
    "upload_spread"
)
# (name, share, Mbit/s received, sent, spread of both).
NETWORKS = (
    ("wifi", 0.6, 40.0, 15.0, 0.5),
    ("lte", 0.3, 20.0, 6.0, 0.7),
    ("3g", 0.1, 3.0, 1.0, 0.9),
)
# Median seconds a sample of the kinds of processors, from flagship to oldest.
PROCESSORS = tuple(0.002 * 20 ** (place / 5) for place in range(6))
MIDDLE, WIDTH = 2.0, 1.2

# `data/training_latency.json`: milliseconds of ResNet on 978 phones: the quantiles 1/24, 3/24, ...,
# 23/24. The spread is the median of the 21 phones that have a standard deviation.
PHONE_MS = (58, 73, 89, 102, 135, 152, 187, 228, 264, 336, 431, 610)
PHONE_SPREAD = 0.022
# `bench/speed_distri.json`, from FLASH (Yang et al., WWW 2021): kbit/s of 19 phones. The quantiles
# 1/12, 3/12, ..., 11/12 of the mean received. Medians of the others: sent over received, and the
# standard deviation of the logarithm from one transfer to the next.
RECEIVED_KBIT = (3_240, 3_720, 4_250, 4_900, 7_240, 9_400)
SENT, NETWORK_SPREAD = 0.71, 0.36


def table() -> str:
    """The content of ``devices.csv``."""
    weight = [math.exp(-(((place - MIDDLE) / WIDTH) ** 2) / 2) for place in range(len(PROCESSORS))]
    lines = [HEADER]
    for place, seconds in enumerate(PROCESSORS):
        for network, share, down, up, spread in NETWORKS:
            of_all = share * weight[place] / sum(weight)
            lines.append(
                f"phone_{place}_{network},{of_all:.4f},{seconds:.4f},0.2,{down:g},{spread:g},"
                f"{up:g},{spread:g}"
            )
    return "\n".join(lines) + "\n"


def phones() -> str:
    """The content of ``phones.csv``."""
    share = 1 / (len(PHONE_MS) * len(RECEIVED_KBIT))
    lines = [HEADER]
    for milliseconds in PHONE_MS:
        for kbit in RECEIVED_KBIT:
            sent = SENT * kbit / 1000
            lines.append(
                f"phone_{milliseconds}ms_{kbit}kbit,{share:.6f},{milliseconds / 1000:g},"
                f"{PHONE_SPREAD:g},{kbit / 1000:g},{NETWORK_SPREAD:g},{sent:.4g},{NETWORK_SPREAD:g}"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (FOLDER / "devices.csv").write_text(table(), encoding="utf-8")
    (FOLDER / "phones.csv").write_text(phones(), encoding="utf-8")
