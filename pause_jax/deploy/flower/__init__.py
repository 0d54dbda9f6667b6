"""Flower integration, with a strategy for client selection and a mod for private updates."""

try:
    from flwr.serverapp.strategy import Strategy as _Strategy  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pause_jax.deploy.flower requires Flower 1.41 or later ({error}). "
        "Run: pip install 'pause_jax[flower]'"
    ) from None

from pause_jax.deploy.flower.client import Ledger, PrivateRelease, answer, introduce
from pause_jax.deploy.flower.nodes import Roster, TimedGrid
from pause_jax.deploy.flower.strategy import PauseStrategy

__all__ = [
    "Ledger",
    "PauseStrategy",
    "PrivateRelease",
    "Roster",
    "TimedGrid",
    "answer",
    "introduce",
]
