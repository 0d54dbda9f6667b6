"""Reward (9) and its parts: the public name of :mod:`pause_jax.bandit.reward`."""

from pause_jax.bandit.reward import *
from pause_jax.bandit.reward import __all__ as __all__
