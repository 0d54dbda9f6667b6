"""A policy drives a Flower server, and a mechanism its clients: the selector in Flower's words."""

try:
    from flwr.serverapp.strategy import Strategy as _Strategy  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pause_jax.flower needs Flower 1.41 or later ({error}): pip install 'pause_jax[flower]'"
    ) from None

from pause_jax.deploy.flower.ledger import Ledger
from pause_jax.deploy.flower.protocol import answer, introduce
from pause_jax.deploy.flower.release import PrivateRelease
from pause_jax.deploy.flower.roster import NUMBERINGS, Roster
from pause_jax.deploy.flower.state import Played
from pause_jax.deploy.flower.strategy import SECONDS, PauseStrategy
from pause_jax.deploy.flower.timing import TimedGrid

__all__ = [
    "NUMBERINGS",
    "SECONDS",
    "Ledger",
    "PauseStrategy",
    "Played",
    "PrivateRelease",
    "Roster",
    "TimedGrid",
    "answer",
    "introduce",
]
