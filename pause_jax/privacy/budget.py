"""Privacy budgets: what a client spends at its i-th participation.

A schedule gives eps_i for i = 1, 2, ... with sum eps_i <= eps_bar for ever. By basic composition
(PAUSE, Theorem 2) the releases of one client are then eps_bar-LDP together, however often it is
chosen and however the choice depends on the past.

Every epsilon is per unit of the mechanism that draws on the budget (``Mechanism.unit``), of one
client. Counts of participations are arrays of whole numbers; all methods work elementwise.
"""

from __future__ import annotations

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import zeta

from pause_jax.base.struct import Config, ConfigError, Sizes, node, number, static
from pause_jax.privacy.budget_law import BudgetLaw

# A schedule that never ends gives at least this share of eps_bar: float32 would round less to 0,
# at which there is no finite noise. Any number of them that can be counted adds nothing to a sum.
LEAST_SHARE = 2.0**-100
# Terms of a sum of powers that are added one by one, and B_2j / (2j)! for the others.
BY_HAND = 16
EULER_MACLAURIN = (1 / 12, -1 / 720, 1 / 30_240, -1 / 1_209_600)


class Budget(Config):
    """What a client may spend, and has spent."""

    def remaining(self, participations: Array) -> Array:
        """Share of the budget that is left after n participations, in [0, 1]: p_k of (7)."""
        raise NotImplementedError

    def epsilon(self, participation: Array) -> Array:
        """eps_i of the i-th participation, i >= 1; 0 if the schedule has ended."""
        raise NotImplementedError

    def exhausted(self, participation: Array) -> Array:
        """Whether the schedule ended before the i-th participation: then nothing is released."""
        return self.epsilon(participation) <= 0

    def spent(self, participations: Array) -> Array:
        """Sum of eps_1 .. eps_n; 0 for n = 0."""
        raise NotImplementedError

    def total(self) -> Array:
        """eps_bar, a scalar, or [K] where budgets differ; infinite if there is no limit."""
        return jnp.asarray(jnp.inf)

    def loaded(self) -> Self:
        """The budget with what its law reads from a file."""
        return self

    def of_clients(self, key: Array, num_clients: int) -> Self:
        """The budgets of a run's clients. Counts of participations are then [K], by client."""
        return self

    def of_client(self, client: int) -> Self:
        """The budget of one client, on the client's own machine."""
        return self


class Unlimited(Budget):
    """No limit: all is left for ever, and the first release spends an infinite epsilon.

    It has no name, because it is no choice: a mechanism that promises nothing has it.
    """

    def remaining(self, participations: Array) -> Array:
        return jnp.ones(participations.shape)

    def epsilon(self, participation: Array) -> Array:
        return jnp.full(participation.shape, jnp.inf)

    def spent(self, participations: Array) -> Array:
        return jnp.where(participations > 0, jnp.inf, 0.0)


class Schedule(Budget):
    """A budget that ends or fades: what every private mechanism draws on.

    Attributes:
      total_epsilon: eps_bar, the budget of one client for ever, > 0.
      law: by which factor each client's budget differs from that; None if all are equal.
    """

    total_epsilon: float = number(default=200.0, above=0)
    law: BudgetLaw | None = node(factory=lambda: None, of=BudgetLaw, optional=True)

    def total(self) -> Array:
        return jnp.asarray(self.total_epsilon)

    def loaded(self) -> Self:
        return self if self.law is None else self.replace(law=self.law.loaded())

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
                f"privacy.budget.law = {type(self.law).__name__}: is drawn by the server's key, "
                "which a client does not have. Set this client's total_epsilon, or take per_client "
                "or budget_file."
            )
        unread = jax.random.key(0)  # as nothing is drawn
        factors = self.law.factors(unread, max(client, 0) + 1)
        if not 0 <= client < factors.size:
            raise ConfigError(
                f"privacy.budget.law = {type(self.law).__name__}: has no budget of client "
                f"{client}. Give each client one, and each node its number."
            )
        return self.replace(total_epsilon=float(self.total_epsilon * factors[client]), law=None)

    def spent(self, participations: Array) -> Array:
        """Sum of eps_1 .. eps_n. Override it for tiny shares, which float32 loses beside 1."""
        return self.total_epsilon * (1 - self.remaining(participations))

    def at_least_something(self, epsilon: Array) -> Array:
        """An eps_i > 0 where float32 may have rounded it to 0, elementwise."""
        tiny = jnp.finfo(epsilon.dtype).tiny
        return jnp.maximum(epsilon, jnp.maximum(self.total_epsilon * LEAST_SHARE, tiny))


def _real(times: Array) -> Array:
    return jnp.asarray(times, float)


class Geometric(Schedule):
    """eps_i = eps_bar (e^eta - 1) e^(-eta i): below equation (6); then p_k = e^(-eta T_k).

    Never exhausted: from about i = 70 / eta on eps_i is 2^-100 eps_bar, and noise is enormous.

    Attributes:
      decay: eta, > 0.
    """

    name: ClassVar[str] = "geometric"
    summary: ClassVar[str] = "eps_bar (e^eta - 1) e^(-eta i), never exhausted (PAUSE)"

    decay: float = number(default=0.04, above=0, at_most=80)

    def remaining(self, participations: Array) -> Array:
        return jnp.exp(-self.decay * _real(participations))

    # By expm1, as 1 - e^(-eta n) loses all digits of a small eta; from i - 1, as e^eta overflows.
    def epsilon(self, participation: Array) -> Array:
        left = self.total_epsilon * jnp.exp(-self.decay * _real(participation - 1))
        return self.at_least_something(-jnp.expm1(-self.decay) * left)

    def spent(self, participations: Array) -> Array:
        return -self.total_epsilon * jnp.expm1(-self.decay * _real(participations))


class Uniform(Schedule):
    """eps_bar / n for each of the first n participations, what is left for the next, then nothing.

    Attributes:
      horizon: n, participations of one client.
    """

    name: ClassVar[str] = "uniform"
    summary: ClassVar[str] = "eps_bar / n for n participations, then the client is spent"

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
    """The same eps for each release while the budget lasts; the last one gets what is left.

    Clients of a small budget then stop first. The other schedules give every client equally many
    releases, at an epsilon in proportion to its budget.

    Attributes:
      per_release: eps of a release.
    """

    name: ClassVar[str] = "constant"
    summary: ClassVar[str] = "the same eps for each release until eps_bar is spent"

    per_release: float = number(default=4.0, above=0)

    def spent(self, participations: Array) -> Array:
        return jnp.minimum(_real(participations) * self.per_release, self.total_epsilon)

    def remaining(self, participations: Array) -> Array:
        return 1 - self.spent(participations) / self.total_epsilon

    def epsilon(self, participation: Array) -> Array:
        left = self.total_epsilon - _real(participation - 1) * self.per_release
        return jnp.where(self.exhausted(participation), 0.0, jnp.minimum(left, self.per_release))

    def exhausted(self, participation: Array) -> Array:
        # What float32 leaves of a budget that is a multiple of the release's is no budget.
        left = self.total_epsilon - _real(participation - 1) * self.per_release
        return left <= 1e-5 * self.per_release


class Power(Schedule):
    """eps_i = eps_bar i^(-s) / zeta(s): decays slower than geometric and sums to eps_bar.

    Never exhausted: below 2^-100 eps_bar it is that.

    Attributes:
      exponent: s, > 1.
    """

    name: ClassVar[str] = "power"
    summary: ClassVar[str] = "eps_bar i^-s / zeta(s), never exhausted"

    exponent: float = number(default=1.5, above=1)

    def _exponent(self) -> Array:
        # Beyond 200 the first release takes all that a float can tell, and zeta overflows.
        return jnp.minimum(jnp.asarray(self.exponent, float), 200.0)

    def remaining(self, participations: Array) -> Array:
        s = self._exponent()
        share = zeta(s, _real(participations) + 1) / zeta(s, jnp.ones_like(s))
        return jnp.clip(share, 0.0, 1.0)

    def spent(self, participations: Array) -> Array:
        s = self._exponent()
        share = partial_zeta(s, _real(participations)) / zeta(s, jnp.ones_like(s))
        return self.total_epsilon * jnp.minimum(share, 1.0)

    def epsilon(self, participation: Array) -> Array:
        s = self._exponent()
        i = _real(participation)
        return self.at_least_something(self.total_epsilon * i**-s / zeta(s, jnp.ones_like(s)))


def partial_zeta(s: Array, n: Array) -> Array:
    """Sum of i^-s for i = 1 .. n, elementwise in n; s > 1. No difference of large numbers.

    The first ``BY_HAND`` terms one by one, the others by Euler and Maclaurin.
    """
    i = jnp.arange(1.0, BY_HAND + 1).reshape(-1, *[1] * n.ndim)
    by_hand = jnp.sum(jnp.where(i <= n[None], i**-s, 0.0), axis=0)
    last = jnp.maximum(n, BY_HAND)
    first = jnp.full_like(last, BY_HAND)
    total = first ** (1 - s) * -jnp.expm1((1 - s) * jnp.log(last / first)) / (s - 1)
    total += (last**-s - first**-s) / 2
    rising, power = s, s + 1
    for coefficient in EULER_MACLAURIN:
        total += coefficient * rising * (first**-power - last**-power)
        rising, power = rising * power * (power + 1), power + 2
    return by_hand + total


class Table(Schedule):
    """Shares of eps_bar for the first participations, given as a table; then nothing.

    Attributes:
      shares: eps_i / eps_bar for i = 1, 2, ...; each > 0, their sum at most 1.
    """

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "a given list of shares of eps_bar, then the client is spent"

    shares: tuple[float, ...] = static(default=(0.5, 0.25, 0.125), at_least=0, at_most=1)

    def check(self, path: str, sizes: Sizes) -> None:
        if not self.shares or sum(self.shares) > 1 + 1e-9 or min(self.shares) == 0:
            raise ConfigError(
                f"{path}.shares = {self.shares!r}: must hold at least one share and sum to at most "
                f"1 (the sum is {sum(self.shares):g}), all > 0. Leave the zeros out."
            )

    def remaining(self, participations: Array) -> Array:
        return 1 - self._shared(participations)

    def spent(self, participations: Array) -> Array:
        return self.total_epsilon * self._shared(participations)

    def _shared(self, participations: Array) -> Array:
        """Share of eps_bar that n participations spend."""
        shared = jnp.minimum(jnp.cumsum(jnp.asarray((0.0, *self.shares))), 1.0)
        return shared[jnp.minimum(participations, len(self.shares))]

    def epsilon(self, participation: Array) -> Array:
        shares = jnp.asarray((*self.shares, 0.0))
        return self.total_epsilon * shares[jnp.minimum(participation - 1, len(self.shares))]

    def exhausted(self, participation: Array) -> Array:
        return participation > len(self.shares)


BUDGETS = (Geometric, Uniform, Constant, Power, Table)
