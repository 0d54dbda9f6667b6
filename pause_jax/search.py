"""Searches for the best cohort: the public name of :mod:`pause_jax.bandit.search`."""

from pause_jax.bandit.search import *
from pause_jax.bandit.search import __all__ as __all__
