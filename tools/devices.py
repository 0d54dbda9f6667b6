"""Generator of the tables ``devices.csv`` and ``phones.csv`` in ``pause_jax/world/latency``.

``devices.csv`` is synthetic, for examples, and contains no measurements. Compute speeds span a
factor of 20, and extreme speeds are rare. The three kinds of networks send more slowly than they
receive.

``phones.csv`` contains only quantiles of the measurements in github.com/Carkham/FLHetBench (Zhang
et al., CVPR 2024), commit 633c071. Compute and network were measured on different phones, and are
combined as if independent.
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
# Median seconds per sample of each kind of processor, from flagship to oldest.
PROCESSORS = tuple(0.002 * 20 ** (place / 5) for place in range(6))
MIDDLE, WIDTH = 2.0, 1.2

# `data/training_latency.json`: milliseconds of ResNet on 978 phones, quantiles 1/24, 3/24, ...,
# 23/24. The spread is the median over the 21 phones with a standard deviation.
PHONE_MS = (58, 73, 89, 102, 135, 152, 187, 228, 264, 336, 431, 610)
PHONE_SPREAD = 0.022
# `bench/speed_distri.json`, from FLASH (Yang et al., WWW 2021): quantiles 1/12, 3/12, ..., 11/12 of
# the mean download rate of 19 phones, in kbit/s. SENT is the median ratio of upload to download,
# NETWORK_SPREAD the median standard deviation of the logarithm between transfers.
RECEIVED_KBIT = (3_240, 3_720, 4_250, 4_900, 7_240, 9_400)
SENT, NETWORK_SPREAD = 0.71, 0.36


def table() -> str:
    """Return the content of ``devices.csv``."""
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
    """Return the content of ``phones.csv``."""
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
