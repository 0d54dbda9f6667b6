"""Latency models: how many seconds a client takes in a round, and what the genie knows of it.

A model is independent over rounds and clients, and never returns less than ``min_latency``
(tau_min). Its law is the same in every round unless the model ``varies``. Sources: the PAUSE
experiments (two_groups), BSFL (ten_groups, speed_normal) and RBCS-F (linear_context). A custom
model subclasses :class:`Latency`.
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
