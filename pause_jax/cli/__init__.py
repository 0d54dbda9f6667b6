"""The command line ``pause-jax``."""

from pause_jax.cli.main import app, main

__all__ = ["app", "main"]
