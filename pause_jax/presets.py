"""Settings of the papers: the public name of :mod:`pause_jax.config.presets`."""

from pause_jax.config.presets import *
from pause_jax.config.presets import __all__ as __all__
