"""Availability traces, which model when clients are connected.

Custom traces are subclasses of :class:`AvailabilityTrace`.
"""

from pause_jax.world.availability.base import AvailabilityTrace, Diurnal, OnOff, Phones
from pause_jax.world.availability.intervals import Intervals

AVAILABILITY_TRACES = (Diurnal, Intervals, OnOff, Phones)

__all__ = ["AvailabilityTrace", "Diurnal", "Intervals", "OnOff", "Phones"]
