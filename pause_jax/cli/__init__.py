"""Command-line program ``pause-jax``."""

from pause_jax.cli.main import main as main
from pause_jax.cli.main import program as program

__all__ = []
