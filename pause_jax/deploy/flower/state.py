"""The state that a strategy keeps on disk, round by round."""

from __future__ import annotations

import os
import pathlib
from typing import NamedTuple

from pause_jax.base.struct import ConfigError
from pause_jax.config import config_file
from pause_jax.deploy.selector import Choice, Selector


class Played(NamedTuple):
    """The outcome of a round.

    Attributes:
      choice: the chosen clients, with weights and epsilons.
      seconds: reported latency of each client that answered.
      failed: reported seconds of each client that did not.
      idle: chosen clients that certainly released nothing.
    """

    choice: Choice
    seconds: dict[int, float]
    failed: dict[int, float]
    idle: tuple[int, ...]


class StateFolder:
    """A folder with the selector, the roster of clients and the measured seconds.

    The selector's file is replaced after the round. What the roster has in addition to it (a new
    node, a spent client) does no harm.

    Attributes:
      path: the folder.
      clients: the roster's file in it.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Make it, if it is not there. Raises ConfigError if it cannot be made."""
        self.path = pathlib.Path(path)
        self.clients = self.path / "clients.json"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state = {path}: cannot be a folder ({error.strerror}).") from None

    def resumed(self, fresh: Selector) -> Selector:
        """The selector that is kept here, or a fresh one if none is.

        Raises ConfigError if it has another config, or cannot be read.
        """
        path = self.path / "selector.npz"
        if not path.is_file():
            return fresh
        kept = Selector.load(path, fresh.config)
        old, new = (config_file.dumps(each.config).splitlines() for each in (kept, fresh))
        if old != new:
            different = [line for line in new if line not in old] or [
                line for line in old if line not in new
            ]
            raise ConfigError(
                f"{path}: was created with another config ({'; '.join(different[:3])} is new). "
                "Take the old one, or another state folder to start anew."
            )
        return kept

    def save(self, selector: Selector, played: Played) -> None:
        """After a round: the selector, then the seconds of those that answered."""
        selector.save(self.path / "selector.npz")
        fleet = self.path / "fleet.csv"
        lines = [] if fleet.exists() else ["client,seconds,round"]
        lines += [f"{k},{s!r},{played.choice.round}" for k, s in sorted(played.seconds.items())]
        with fleet.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
