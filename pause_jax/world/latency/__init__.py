"""Latency models: how many seconds a client takes in a round, and what the genie knows of it.

A model is i.i.d. over rounds and independent over clients, and never returns less than
``min_latency`` (tau_min). Sources: SPEC section 4, the PAUSE experiments (two_groups), BSFL
(ten_groups, speed_normal) and RBCS-F (linear_context). A custom one subclasses :class:`Latency`.
"""

from pause_jax.world.latency.base import Latency, Work
from pause_jax.world.latency.network import Network
from pause_jax.world.latency.synthetic import (
    ClippedSpeed,
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
    TwoGroups, TenGroups, SpeedNormal, ClippedSpeed, LogNormal, ShiftedExponential, Pareto,
    Switching, Traces, Network, LinearContext,
)  # fmt: skip

__all__ = [
    "ClippedSpeed", "Latency", "LinearContext", "LogNormal", "Network", "Pareto",
    "ShiftedExponential", "SpacedLatency", "SpeedNormal", "Switching", "TenGroups", "Traces",
    "TwoGroups", "Work",
]  # fmt: skip
