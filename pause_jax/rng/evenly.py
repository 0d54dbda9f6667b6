"""Numbers that lie evenly in [0, 1), however many there are of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0.6180339887498949


def evenly(count: int) -> NDArray[np.float64]:
    """Multiples 0, 1, ... of the golden ratio modulo 1: float [count].

    Any stretch of them is spread over the whole, so what is given out by them is mixed.
    """
    return np.asarray(np.arange(count) * _GOLDEN % 1, np.float64)
