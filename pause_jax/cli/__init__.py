"""The command line ``pause-jax``."""

from pause_jax.cli.main import app as app
from pause_jax.cli.main import main as main

__all__ = []
