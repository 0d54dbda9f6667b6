"""Privacy budgets: schedules of the epsilon that a client spends in each participation.

A schedule defines eps_i for i = 1, 2, ... with sum eps_i <= eps_bar. By basic composition (PAUSE,
Theorem 2), all of a client's releases are then jointly eps_bar-LDP. The guarantee holds for any
number of releases, even if client selection depends on past releases. Each epsilon is per client
and per ``Mechanism.unit``. Methods apply elementwise to integer arrays of participations.
"""

from __future__ import annotations

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import Config, ConfigError, Sizes, node, number, static
from pause_jax.privacy.budget_law import BudgetLaw

# Smallest share eps_i / eps_bar in an infinite schedule. Without this minimum, float32 would round
# shares to 0, and the noise would be infinite. The sum of minimum shares over a run is negligible.
LEAST_SHARE = 2.0**-100


class Budget(Config):
    """Base class for budgets, which define the total, spent and remaining epsilon of a client."""

    def remaining(self, participations: Array) -> Array:
        """Return p_k in Eq. (7) of PAUSE, the share of the budget left after n participations."""
        raise NotImplementedError

    def epsilon(self, participation: Array) -> Array:
        """Return eps_i for participation i >= 1, or 0 if the schedule has ended."""
        raise NotImplementedError

    def exhausted(self, participation: Array) -> Array:
        """Return whether participation i releases nothing because the schedule has ended."""
        return self.epsilon(participation) <= 0

    def spent(self, participations: Array) -> Array:
        """Return the sum of eps_1, ..., eps_n, or 0 for n = 0."""
        raise NotImplementedError

    def total(self) -> Array:
        """Return eps_bar as a scalar, or as [K] if budgets differ (infinity if unlimited)."""
        return jnp.asarray(jnp.inf)

    def of_clients(self, key: Array, num_clients: int) -> Self:
        """Return the budget with per-client eps_bar values, [K], drawn with ``key``."""
        return self

    def of_client(self, client: int) -> Self:
        """Return the budget of one client, for use on the client's machine."""
        return self


class Unlimited(Budget):
    """Unlimited budget, which remains full although every release spends infinite epsilon.

    Mechanisms without a guarantee use this class. Configs cannot select it, so it has no name.
    """

    def remaining(self, participations: Array) -> Array:
        return jnp.ones(participations.shape)

    def epsilon(self, participation: Array) -> Array:
        return jnp.full(participation.shape, jnp.inf)

    def spent(self, participations: Array) -> Array:
        return jnp.where(participations > 0, jnp.inf, 0.0)


class Schedule(Budget):
    """Base class for the finite budgets that private mechanisms spend.

    Attributes:
      total_epsilon: eps_bar, total budget of one client over all participations, > 0.
      law: distribution of the per-client multiplier of ``total_epsilon``; None for equal budgets.
    """

    total_epsilon: float = number(default=200.0, above=0)
    law: BudgetLaw | None = node(factory=lambda: None, of=BudgetLaw, optional=True)

    def total(self) -> Array:
        return jnp.asarray(self.total_epsilon)

    def of_clients(self, key: Array, num_clients: int) -> Self:
        if self.law is None:
            return self
        total = self.total_epsilon * self.law.factors(key, num_clients)
        return self.replace(total_epsilon=total, law=None)

    def of_client(self, client: int) -> Self:
        if self.law is None:
            return self
        if self.law.drawn:
            raise ConfigError(
                f"privacy.budget.law = {type(self.law).__name__}: draws budgets with the server's "
                "key, which clients do not have. Set total_epsilon for this client, or use "
                "per_client."
            )
        unread = jax.random.key(0)  # only random factors depend on the key
        factors = self.law.factors(unread, max(client, 0) + 1)
        if not 0 <= client < factors.size:
            raise ConfigError(
                f"privacy.budget.law = {type(self.law).__name__}: has no budget for client "
                f"{client}. Add this client, or correct the node's client number."
            )
        return self.replace(total_epsilon=float(self.total_epsilon * factors[client]), law=None)

    def spent(self, participations: Array) -> Array:
        """Return eps_1 + ... + eps_n. Override this method if 1 - remaining(n) is inaccurate."""
        return self.total_epsilon * (1 - self.remaining(participations))

    def at_least_something(self, epsilon: Array) -> Array:
        """Return max(eps_i, ``LEAST_SHARE`` * eps_bar) elementwise, because eps_i must be > 0."""
        tiny = jnp.finfo(epsilon.dtype).tiny
        return jnp.maximum(epsilon, jnp.maximum(self.total_epsilon * LEAST_SHARE, tiny))


def _real(times: Array) -> Array:
    return jnp.asarray(times, float)


class Geometric(Schedule):
    """Geometric schedule eps_i = eps_bar (e^eta - 1) e^(-eta i), with p_k = e^(-eta T_k).

    T_k is the number of participations (PAUSE, below Eq. 6). The budget is never exhausted,
    but from about i = 70 / eta onwards, eps_i is only 2^-100 eps_bar, and the noise is huge.

    Attributes:
      decay: eta, in (0, 80].
    """

    name: ClassVar[str] = "geometric"
    summary: ClassVar[str] = "eps_bar (e^eta - 1) e^(-eta i), never exhausted (PAUSE)"

    decay: float = number(default=0.04, above=0, at_most=80)

    def remaining(self, participations: Array) -> Array:
        return jnp.exp(-self.decay * _real(participations))

    # Use expm1, because 1 - e^(-eta) loses precision for small eta.
    def epsilon(self, participation: Array) -> Array:
        left = self.total_epsilon * jnp.exp(-self.decay * _real(participation - 1))
        return self.at_least_something(-jnp.expm1(-self.decay) * left)

    def spent(self, participations: Array) -> Array:
        return -self.total_epsilon * jnp.expm1(-self.decay * _real(participations))


class Uniform(Schedule):
    """Uniform schedule of eps_bar / n per participation (less in the last one if n is fractional).

    Attributes:
      horizon: n >= 1, number of participations of one client (need not be an integer).
    """

    name: ClassVar[str] = "uniform"
    summary: ClassVar[str] = "eps_bar / n per participation, exhausted after n participations"

    horizon: float = number(default=50.0, at_least=1)

    def remaining(self, participations: Array) -> Array:
        return 1 - jnp.minimum(_real(participations) / self.horizon, 1.0)

    def spent(self, participations: Array) -> Array:
        return self.total_epsilon * jnp.minimum(_real(participations) / self.horizon, 1.0)

    def epsilon(self, participation: Array) -> Array:
        whole = jnp.clip(self.horizon - _real(participation - 1), 0.0, 1.0)
        return whole * self.total_epsilon / self.horizon

    def exhausted(self, participation: Array) -> Array:
        return _real(participation - 1) >= self.horizon


class Constant(Schedule):
    """Constant eps per release, except that the last release spends the remaining budget.

    Clients with smaller budgets have fewer releases. With the other schedules, all clients have the
    same number of releases, and eps_i is proportional to the client's budget.

    Attributes:
      per_release: eps of a single release, > 0.
    """

    name: ClassVar[str] = "constant"
    summary: ClassVar[str] = "the same eps for every release until eps_bar is spent"

    per_release: float = number(default=4.0, above=0)

    def spent(self, participations: Array) -> Array:
        return jnp.minimum(_real(participations) * self.per_release, self.total_epsilon)

    def remaining(self, participations: Array) -> Array:
        return 1 - self.spent(participations) / self.total_epsilon

    def epsilon(self, participation: Array) -> Array:
        left = self.total_epsilon - _real(participation - 1) * self.per_release
        return jnp.where(self.exhausted(participation), 0.0, jnp.minimum(left, self.per_release))

    def exhausted(self, participation: Array) -> Array:
        # If eps divides the budget, a tiny remainder is rounding error rather than unspent budget.
        left = self.total_epsilon - _real(participation - 1) * self.per_release
        return left <= 1e-5 * self.per_release


class Table(Schedule):
    """Schedule with an explicit share of eps_bar per participation, ending after the last share.

    Attributes:
      shares: eps_i / eps_bar > 0 for i = 1, 2, ..., with a sum of at most 1 (static).
    """

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "a listed share of eps_bar per release, and no releases after the last"

    shares: tuple[float, ...] = static(default=(0.5, 0.25, 0.125), at_least=0, at_most=1)

    def check(self, path: str, sizes: Sizes) -> None:
        if not self.shares or sum(self.shares) > 1 + 1e-9 or min(self.shares) == 0:
            raise ConfigError(
                f"{path}.shares = {self.shares!r}: must be one or more shares > 0 that sum to <= "
                f"1 (the sum is {sum(self.shares):g}). Remove zeros or lower the shares."
            )

    def remaining(self, participations: Array) -> Array:
        return 1 - self._shared(participations)

    def spent(self, participations: Array) -> Array:
        return self.total_epsilon * self._shared(participations)

    def _shared(self, participations: Array) -> Array:
        """Return the share of eps_bar that n participations spend."""
        shared = jnp.minimum(jnp.cumsum(jnp.asarray((0.0, *self.shares))), 1.0)
        return shared[jnp.minimum(participations, len(self.shares))]

    def epsilon(self, participation: Array) -> Array:
        shares = jnp.asarray((*self.shares, 0.0))
        return self.total_epsilon * shares[jnp.minimum(participation - 1, len(self.shares))]

    def exhausted(self, participation: Array) -> Array:
        return participation > len(self.shares)


BUDGETS = (Geometric, Uniform, Constant, Table)
