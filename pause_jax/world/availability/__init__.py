"""Availability traces: periodic, intervals from a file, Markov chains, or measured phones.

A trace is a config with a state and one pure step per round. Custom traces subclass
:class:`AvailabilityTrace`. ``SimConfig.availability`` is the probability that a connected client is
free, independently in each round.
"""

from pause_jax.world.availability.base import AvailabilityTrace, Diurnal, OnOff, Phones
from pause_jax.world.availability.intervals import Intervals

AVAILABILITY_TRACES = (Diurnal, Intervals, OnOff, Phones)

__all__ = ["AvailabilityTrace", "Diurnal", "Intervals", "OnOff", "Phones"]
