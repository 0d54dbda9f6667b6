"""Distributions of per-client budgets, defined by factors that multiply ``total_epsilon``.

Client k's budget eps_bar_k is ``total_epsilon`` times the client's factor. A run draws the
factors once, from its ``world`` random stream, so runs with the same key have the same budgets.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.struct import Config, ConfigError, Sizes, number, static


class BudgetLaw(Config):
    """Base class for distributions of client factors, which multiply ``total_epsilon``.

    Attributes:
      drawn: whether the factors depend on the run's key.
    """

    drawn: ClassVar[bool] = True

    def factors(self, key: Array, num_clients: int) -> Array:
        """Return the clients' positive factors, float [K]."""
        raise NotImplementedError


class Tiers(BudgetLaw):
    """Client tiers with one factor each. Tier sizes are fixed, and clients are assigned at random.

    Attributes:
      values: tier factors, > 0 (static). If ``total_epsilon`` is 1, the factors are the budgets.
      shares: share of the clients in each tier, summing to 1 (static). The largest-remainder
        method rounds tier sizes to integers that sum to K.
    """

    name: ClassVar[str] = "tiers"
    summary: ClassVar[str] = "tiers of clients, one factor per tier"

    values: tuple[float, ...] = static(default=(0.1, 0.5, 1.0), above=0)
    shares: tuple[float, ...] = static(default=(0.4, 0.3, 0.3), at_least=0, at_most=1)

    def check(self, path: str, sizes: Sizes) -> None:
        if not self.values or len(self.values) != len(self.shares):
            raise ConfigError(
                f"{path}: has {len(self.values)} values and {len(self.shares)} shares, but each "
                "tier must have one value and one share. Add the missing entries."
            )
        if abs(sum(self.shares) - 1) > 1e-6:
            raise ConfigError(
                f"{path}.shares = {self.shares!r}: must sum to 1 (the sum is {sum(self.shares):g})."
            )

    def sizes(self, num_clients: int) -> np.ndarray:
        """Return the number of clients in each tier, int [tiers], summing to K."""
        exact = np.asarray(self.shares, float) * num_clients
        size = np.floor(exact + 1e-9).astype(int)
        last = np.argsort(size - exact, kind="stable")[: num_clients - size.sum()]
        size[last] += 1
        return size

    def factors(self, key: Array, num_clients: int) -> Array:
        each = np.repeat(np.asarray(self.values, np.float32), self.sizes(num_clients))
        return jax.random.permutation(key, jnp.asarray(each))


class LogNormalBudgets(BudgetLaw):
    """Log-normal factors exp(sigma Z) with median 1, where Z is standard normal.

    Attributes:
      sigma: standard deviation of the factors' logarithms.
    """

    name: ClassVar[str] = "lognormal_budgets"
    summary: ClassVar[str] = "log-normal, with median total_epsilon"

    sigma: float = number(default=1.0, at_least=0, at_most=10)

    def factors(self, key: Array, num_clients: int) -> Array:
        return jnp.exp(self.sigma * jax.random.normal(key, (num_clients,)))


class PerClient(BudgetLaw):
    """Explicit factors for all clients, in client order.

    Attributes:
      values: K factors, > 0 (static). If ``total_epsilon`` is 1, the factors are the budgets.
    """

    name: ClassVar[str] = "per_client"
    drawn: ClassVar[bool] = False
    summary: ClassVar[str] = "explicit list of factors, one per client"

    values: tuple[float, ...] = static(default=(1.0,), above=0)

    def check(self, path: str, sizes: Sizes) -> None:
        if len(self.values) != sizes.num_clients:
            raise ConfigError(
                f"{path}.values: has {len(self.values)} factors for {sizes.num_clients} clients: "
                "must have one factor per client."
            )

    def factors(self, key: Array, num_clients: int) -> Array:
        return jnp.asarray(self.values, jnp.float32)
