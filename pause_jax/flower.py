"""PAUSE and every other policy in Flower: the public name of :mod:`pause_jax.deploy.flower`."""

from pause_jax.deploy.flower import *
from pause_jax.deploy.flower import __all__ as __all__
