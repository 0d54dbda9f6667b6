"""How training runs on each kind of device: every choice that a measurement makes, in one table."""

from __future__ import annotations

from typing import NamedTuple

import jax


class DeviceChoice(NamedTuple):
    """What suits a kind of device. Results are equal up to rounding whatever it holds.

    Attributes:
      kept: bytes that clients who train side by side may keep together.
      convolution: what a model's ``auto`` is: ``xla``, ``cached`` (products, or direct where the
        patches would leave a CPU's cache) or ``valid`` (products of few patches, where the image is
        not filled up and the kernel moves by single pixels; else XLA's).
    """

    kept: int
    convolution: str = "xla"


# A CPU is fastest while training stays in the cache; elsewhere the bound is there for the memory.
# `python -m benchmarks accelerator` measures all of it: docs/engineering_log.md.
CHOICES = {
    "cpu": DeviceChoice(kept=16 * 2**20, convolution="cached"),
    "gpu": DeviceChoice(kept=2**30, convolution="valid"),
}
ELSEWHERE = DeviceChoice(kept=2**30)


def device_choice() -> DeviceChoice:
    """The row of the default backend."""
    return CHOICES.get(jax.default_backend(), ELSEWHERE)
