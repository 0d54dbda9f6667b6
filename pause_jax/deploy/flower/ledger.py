"""The ledger of a client's releases: a file that outlives runs, with a line for each release."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
from typing import Any

import jax.numpy as jnp
import numpy as np

from pause_jax.base.source_file import sync_names, write_through
from pause_jax.base.struct import ConfigError
from pause_jax.config.config_file import to_dict
from pause_jax.privacy import Mechanism


class Ledger:
    """The releases of one client, in its own file.

    The first line has the mechanism and budget; each further line is a release, flushed to the disk
    before the release leaves. So a crash may count a release too many, never one too few. Lines are
    only appended: two programs that release at once get different numbers. Keep the file as long as
    the data: without it the budget is spent again.

    Attributes:
      path: the file.
      privacy: the mechanism with its budget.
    """

    def __init__(self, path: str | pathlib.Path, privacy: Mechanism):
        """Open the ledger, or create it.

        Raises:
          ConfigError: if the file is no ledger, has another mechanism or budget, or cannot be
            written.
        """
        self.path, self.privacy = pathlib.Path(path), privacy
        head = json.dumps({"ledger": 1, "unit": privacy.unit, "privacy": _said(privacy)})
        try:
            if not self.path.exists():
                self._create(head)
            found = self.path.read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be a ledger ({error}).") from None
        if found == head:
            return
        try:
            first = json.loads(found)["privacy"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{self.path}: is no ledger of releases. Give the file that was created with this "
                "client's data, or one that does not exist yet."
            ) from None
        raise ConfigError(
            f"{self.path}: was created with {json.dumps(first)}, and privacy is "
            f"{json.dumps(_said(privacy))}: releases of two mechanisms do not add up in one "
            "schedule. Take the one that it was created with."
        )

    @property
    def participations(self) -> int:
        """Releases so far."""
        return sum(1 for line in self._lines() if line.strip())

    @property
    def epsilons(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Epsilon of each release so far, float [n], in the mechanism's unit."""
        return self._epsilon(np.arange(1, self.participations + 1))

    @property
    def spent(self) -> float:
        """Sum of the epsilons so far, in the mechanism's unit."""
        return float(self.privacy.budget.spent(jnp.asarray(self.participations)))

    @property
    def exhausted(self) -> bool:
        """Whether nothing more may be released."""
        return bool(self.privacy.budget.exhausted(jnp.asarray(self.participations + 1)))

    def enter(self, **remarks: Any) -> tuple[int, float] | None:
        """Enter one more release, with remarks of JSON's kinds. Only after this may it leave.

        Returns:
          Its number, from 1 on, and its epsilon; None if the budget is spent: nothing may leave.
        """
        if self.exhausted:
            return None
        mark = secrets.token_hex(8)
        # The line break comes first: a line that a crash has cut off stays a line of its own.
        line = "\n" + json.dumps({"release": mark, **remarks})
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())
        number = next(i for i, text in enumerate(self._lines(), 1) if mark in text)
        # Another program may have taken what was left in the meantime.
        if bool(self.privacy.budget.exhausted(jnp.asarray(number))):
            return None
        return number, float(self._epsilon(np.asarray([number]))[0])

    def _epsilon(self, numbers: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.asarray(self.privacy.budget.epsilon(jnp.asarray(numbers)), np.float32)

    def _lines(self) -> list[str]:
        return [line for line in self.path.read_text("utf-8").split("\n")[1:] if line.strip()]

    def _create(self, head: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
        write_through(part, head.encode())
        # A link, unlike a rename, does not overwrite what another program has just created.
        with contextlib.suppress(FileExistsError):
            os.link(part, self.path)
        part.unlink()
        sync_names(self.path.parent)


def _said(privacy: Mechanism) -> dict[str, Any]:
    """A mechanism and its budget, as plain values."""
    return {"class": type(privacy).__name__, **to_dict(privacy)}
