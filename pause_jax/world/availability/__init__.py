"""When clients are there: by the hour, by intervals from a file, or coming and going at random.

A kind is a config with a state and one pure step a round. A new one is a class below
:class:`Presence`. ``SimConfig.availability`` is another thing: who is there may still be busy,
independently in each round.
"""

from pause_jax.world.availability.base import Diurnal, OnOff, Presence
from pause_jax.world.availability.intervals import Intervals

PRESENCES = (Diurnal, Intervals, OnOff)

__all__ = ["PRESENCES", "Diurnal", "Intervals", "OnOff", "Presence"]
