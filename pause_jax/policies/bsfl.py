"""BSFL: PAUSE's ancestor, without privacy."""

from __future__ import annotations

from typing import ClassVar

from pause_jax.base.struct import ConfigError, Sizes
from pause_jax.policies.base import Context, Policy
from pause_jax.policies.pause import Pause, maximiser


class Bsfl(Pause):
    """BSFL: PAUSE without the privacy reward (gamma = 0), whatever ``reward.gamma`` says."""

    name: ClassVar[str] = "bsfl"
    summary: ClassVar[str] = "PAUSE without the privacy reward (gamma = 0)"
    reference: ClassVar[str] = "Ben Ami et al. 2025"

    def build(self, context: Context) -> Policy:
        return maximiser(context, self.index.build(context), self.search, left=None)

    def check(self, path: str, sizes: Sizes) -> None:
        super().check(path, sizes)
        if self.left_of != "own":
            raise ConfigError(
                f"{path}.left_of = {self.left_of!r}: has no effect, as Bsfl has no privacy reward. "
                "Leave it out, or choose Pause."
            )
