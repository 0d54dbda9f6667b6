"""Availability traces, which determine the clients that are connected in each round.

A trace is a config with a pure function that advances its state once per round. Custom traces
subclass :class:`AvailabilityTrace`. ``SimConfig.availability`` is the probability that a connected
client is available, independently in each round.
"""

from pause_jax.world.availability.base import AvailabilityTrace, Diurnal, OnOff, Phones
from pause_jax.world.availability.intervals import Intervals

AVAILABILITY_TRACES = (Diurnal, Intervals, OnOff, Phones)

__all__ = ["AvailabilityTrace", "Diurnal", "Intervals", "OnOff", "Phones"]
