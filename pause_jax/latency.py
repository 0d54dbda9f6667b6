"""Latency models: the public name of :mod:`pause_jax.world.latency`."""

from pause_jax.world.latency import *
from pause_jax.world.latency import __all__ as __all__
