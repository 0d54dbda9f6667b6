"""Availability traces: by the hour, by intervals from a file, at random, or as phones.

A trace is a config with a state and one pure step a round; a custom one subclasses
:class:`Presence`. ``SimConfig.availability`` is the probability that a connected client is free,
independently in each round.
"""

from pause_jax.world.availability.base import Diurnal, OnOff, Presence
from pause_jax.world.availability.intervals import Intervals
from pause_jax.world.availability.phones import Phones

PRESENCES = (Diurnal, Intervals, OnOff, Phones)

__all__ = ["Diurnal", "Intervals", "OnOff", "Phones", "Presence"]
