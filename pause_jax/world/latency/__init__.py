"""Latency models, which draw each client's latency in a round.

Custom models are subclasses of :class:`Latency`.
"""

from pause_jax.world.latency.base import Latency, Work
from pause_jax.world.latency.network import Network
from pause_jax.world.latency.synthetic import (
    LinearContext,
    LogNormal,
    Pareto,
    ShiftedExponential,
    SpacedLatency,
    SpeedNormal,
    Switching,
    TenGroups,
    TwoGroups,
)
from pause_jax.world.latency.traces import Traces

LATENCIES = (
    TwoGroups, TenGroups, SpeedNormal, LogNormal, ShiftedExponential, Pareto, Switching, Traces,
    Network, LinearContext,
)  # fmt: skip

__all__ = [
    "Latency", "LinearContext", "LogNormal", "Network", "Pareto", "ShiftedExponential",
    "SpacedLatency", "SpeedNormal", "Switching", "TenGroups", "Traces", "TwoGroups", "Work",
]  # fmt: skip
