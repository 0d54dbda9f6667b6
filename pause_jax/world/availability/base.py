"""What a presence is: who is there in a round, from the clock and the round before."""

from __future__ import annotations

from typing import Any, Self

from jax import Array

from pause_jax.base.struct import Config, number


class Presence(Config):
    """When clients are there. It depends on the clock, on chance, and on nothing that a policy
    decides but how long rounds last.

    Attributes:
      recheck: seconds that a round lasts in which nobody is chosen, after which the server looks
        again.
    """

    recheck: float = number(default=60.0, above=0)

    def loaded(self) -> Self:
        """The presence with what it reads from files; done on the host before a run is traced."""
        return self

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Ids of clients 0, 1, ... in the file that it reads; empty if it knows no ids."""
        return ()

    def begin(self, key: Array, num_clients: int) -> Any:
        """The state before round 1; nothing by default."""
        return ()

    def step(self, state: Any, key: Array, clock: Array, num_clients: int) -> tuple[Array, Any]:
        """Who is there in the next round.

        Args:
          state: after the round before.
          key: of this round.
          clock: simulated seconds at the round's start, a scalar.
          num_clients: K.

        Returns:
          (bool [K], the state after it).
        """
        raise NotImplementedError
