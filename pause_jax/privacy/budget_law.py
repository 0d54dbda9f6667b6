"""Distributions of client-specific budgets, as multipliers of ``total_epsilon``.

The budget of client k is eps_bar_k = ``total_epsilon`` times the client's factor. A run draws the
factors once, from its ``world`` random stream, so runs with the same key have the same budgets.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base import source_file
from pause_jax.base.checks import float32
from pause_jax.base.client_ids import check_enough, numbered
from pause_jax.base.struct import ConfigError, Sizes, number, static

# Client ids and factors of each file, keyed by digest and column.
_TABLES: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}


class BudgetLaw(source_file.FromFile):
    """Base class for distributions of client factors, which multiply ``total_epsilon``.

    Attributes:
      drawn: whether the factors depend on the key of a run.
    """

    drawn: ClassVar[bool] = True

    def factors(self, key: Array, num_clients: int) -> Array:
        """Return the factors of all clients, float [K] > 0."""
        raise NotImplementedError


class Tiers(BudgetLaw):
    """Client tiers with one factor each. Tier sizes are fixed, and clients are assigned at random.

    Attributes:
      values: each tier's factor > 0 (static). With ``total_epsilon = 1``, the factors are budgets.
      shares: share of the clients in each tier, summing to 1 (static). Tier sizes are rounded down.
        The sizes with the largest remainders are then rounded up until the sum is K.
    """

    name: ClassVar[str] = "tiers"
    summary: ClassVar[str] = "tiers of clients, one factor per tier"

    values: tuple[float, ...] = static(default=(0.1, 0.5, 1.0), above=0)
    shares: tuple[float, ...] = static(default=(0.4, 0.3, 0.3), at_least=0, at_most=1)

    def check(self, path: str, sizes: Sizes) -> None:
        if not self.values or len(self.values) != len(self.shares):
            raise ConfigError(
                f"{path}: has {len(self.values)} values and {len(self.shares)} shares: must have "
                "one value and one share per tier. Add the missing entries."
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
      values: K factors > 0 (static). With ``total_epsilon = 1``, the factors are the budgets.
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


class BudgetFile(BudgetLaw):
    """Factors from a CSV file with a column ``client`` and a column of factors.

    Client k has the k-th id in natural order, as in :class:`pause_jax.latency.Traces`. With
    ``total_epsilon = 1``, the factors are the budgets. Other columns are ignored.

    Attributes:
      path: path of the file, absolute or relative to the working directory (static).
      column: header of the factor column (static).
      digest: SHA-256 of the file, filled in when a run starts. A file with a different digest is
        rejected (static).
    """

    name: ClassVar[str] = "budget_file"
    drawn: ClassVar[bool] = False
    summary: ClassVar[str] = "a column of a CSV file, one line per client"

    path: str = static(default="")
    column: str = static(default="epsilon")
    digest: str = static(default="")

    def check(self, path: str, sizes: Sizes) -> None:
        ids, _ = self._table
        where = f"{path}.path = {self.path!r}"
        check_enough(where, "budget", len(ids), ids, sizes.num_clients, "Add the missing clients")

    def loaded(self) -> Self:
        where = f"privacy.budget.law.path = {self.path!r}"
        if not self.path:
            raise ConfigError(
                f"{where}: must be a CSV file with the columns client and {self.column}."
            )

        def parse(content: bytes) -> tuple[tuple[str, ...], np.ndarray]:
            names, lines = source_file.table(where, content)
            for name in ("client", self.column):
                if names.count(name) != 1:
                    raise ConfigError(
                        f"{where}: has the columns {', '.join(names)}: must have exactly one "
                        f"column {name}."
                    )
            places = names.index("client"), names.index(self.column)
            rows = [_row(f"{where}, {place}", line, *places) for place, line in lines]
            ids, clients = numbered(f"{where}: client", np.asarray([client for client, _ in rows]))
            if len(ids) < len(rows):
                raise ConfigError(
                    f"{where}: has two lines for the same client. Keep one line per client."
                )
            factors = np.empty(len(rows), np.float32)
            factors[clients] = [factor for _, factor in rows]
            return ids, factors

        names_file = _TABLES, "privacy.budget.law", self.path, self.digest
        return self.replace(digest=source_file.parsed(*names_file, parse, part=self.column))

    @property
    def client_ids(self) -> tuple[str, ...]:
        return self._table[0]

    @property
    def _table(self) -> tuple[tuple[str, ...], np.ndarray]:
        known = self.digest + self.column
        return _TABLES[known if known in _TABLES else self.loaded().digest + self.column]

    def factors(self, key: Array, num_clients: int) -> Array:
        return jnp.asarray(self._table[1][:num_clients])


def _row(where: str, line: list[str], client: int, factor: int) -> tuple[str, float]:
    value = float(float32(line[factor]))
    if not 0 < value < math.inf:
        raise ConfigError(f"{where}: {line[factor]!r} must be a float32 number > 0.")
    return line[client], value
