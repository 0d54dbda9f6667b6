"""A policy at work on a real server: the public name of :mod:`pause_jax.deploy.selector`."""

from pause_jax.deploy.selector import *
from pause_jax.deploy.selector import __all__ as __all__
