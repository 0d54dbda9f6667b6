"""Latency models: the public name of :mod:`pause_jax.world.latency`."""

from pause_jax.world.latency import *
from pause_jax.world.latency import __all__ as __all__

# Public in version 0.2; goes with the next.
from pause_jax.world.latency.normal import NormalLatency as NormalLatency
