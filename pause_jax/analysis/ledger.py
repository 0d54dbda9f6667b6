"""The ledger: what each client released in a run, and what that adds up to.

Host side only; the tight totals need dp-accounting (the extra ``accounting``).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.deploy.selector import Selector
from pause_jax.privacy import Budget, Mechanism, Schedule
from pause_jax.privacy.mechanisms import GaussianLoss, LaplaceLoss, NoGuarantee, WorstLoss
from pause_jax.run.record.result import Result

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Ledger", "ledger"]

HINT = "dp-accounting is missing: pip install 'pause_jax[accounting]'"
# e^eps of a larger one is no double, without which dp-accounting fails. Nothing is gained there.
MAX_RELEASE = 700.0
SIZES = "data sizes (aggregation weights)"


class Ledger(NamedTuple):
    """What K clients spent in a run; arrays are [K], or [S, K] for a row with S seeds.

    Attributes:
      mechanism: its name.
      unit: what its epsilon protects: ``coordinate``, ``update`` or ``none``.
      num_parameters: d, entries of an update; 0 without learning.
      delta: of ``tight``.
      participations: int, rounds in which the client took part.
      releases: int, messages about its data: updates (none once its budget is spent), and un-noised
        answers to queries.
      budget: float, eps_bar of the client, in the mechanism's unit; infinite without privacy.
      spent: float, epsilon by basic composition (a plain sum), in the mechanism's unit.
      per_coordinate: float, the same for one coordinate of its updates.
      whole_update: float, the same for all d coordinates; NaN if d is 0.
      exhausted: bool, nothing is left of its budget, so it releases nothing more.
      last_release: int, the round of an exhausted client's last release; 0 for others, and where
        ``clients`` is not recorded.
      basic, basic_delta: the most ``spent``, and its delta: 0 for a pure mechanism.
      tight: the largest :func:`total_epsilon` of the releases of a client; NaN if dp-accounting is
        missing.
      tight_at_most: the same for a client that takes part in every round, of the largest budget:
        holds whatever the number of its participations depends on. NaN without learning.
      unnoised: all that left clients without noise.
      client_ids: of clients 0, ..., K - 1; empty where they are called by these numbers.
      overlaps: whether rounds overlap. A release is charged when its client starts, and a client
        starts at most once between two server steps, the rounds of this ledger.
    """

    mechanism: str
    unit: str
    num_parameters: int
    delta: float
    participations: np.ndarray
    releases: np.ndarray
    budget: np.ndarray
    spent: np.ndarray
    per_coordinate: np.ndarray
    whole_update: np.ndarray
    exhausted: np.ndarray
    last_release: np.ndarray
    basic: float
    basic_delta: float
    tight: float
    tight_at_most: float
    unnoised: tuple[str, ...]
    client_ids: tuple[str, ...] = ()
    overlaps: bool = False

    @property
    def warning(self) -> str:
        """Why no epsilon here covers a whole message; empty if one does, data sizes being public.

        No epsilon of whole updates may be printed without it.
        """
        names = ", ".join(name for name in self.unnoised if name != SIZES)
        text = f"NO GUARANTEE for all that a client sends: without noise leave {names}."
        return text if names else ""


def ledger(run: Result | Selector | xr.Dataset, delta: float = 1e-5) -> Ledger:
    """Return the ledger of a run, or of a selector at work.

    Args:
      run: a ``Result``, a ``Selector``, or one config of a ``sweep``: ``result.sel(config=...)``,
        with its dimension ``seed`` or without.
      delta: of the tight total, in [0, 1).

    Returns:
      The ledger. ``tight`` is at the most participations that happened, as if that number had been
      fixed beforehand. Where a policy's choice depends on releases the number depends on the data:
      then quote ``tight_at_most``, which holds in every case.

    Raises:
      ConfigError: for several configs at once, a run that recorded too little, or a bad delta.

    Examples:
      >>> import jax
      >>> from pause_jax import SimConfig, simulate
      >>> from pause_jax.analysis.ledger import ledger
      >>> config = SimConfig(num_clients=5, num_selected=2, num_rounds=10, learning=None)
      >>> found = ledger(simulate(config, jax.random.key(0)))
      >>> found.unit, int(found.participations.sum()), bool(found.basic == found.spent.max())
      ('coordinate', 20, True)
    """
    config, unnoised, client_ids = _read(run)
    # A smaller config's row of a sweep is filled up with clients that do not exist.
    counts, queried, spent = (
        np.asarray(getattr(run, name))[..., : config.num_clients]
        for name in ("counts", "queried", "spent")
    )
    mechanism = config.privacy
    learns = config.learning is not None
    own, budget = _budgets(run, mechanism.budget, spent.shape)
    updates = _updates(own, counts)
    num_parameters = int(run.num_parameters)
    whole = np.full(spent.shape, math.nan)
    if num_parameters:
        whole = spent.astype(float) * (num_parameters if mechanism.unit == "coordinate" else 1)
    exhausted = np.asarray(own.exhausted(jnp.asarray(counts + 1)))
    cohorts = getattr(run, "clients", None)
    last = updates if cohorts is None else _last_rounds(np.asarray(cohorts), updates)
    return Ledger(
        mechanism=mechanism.name,
        unit=mechanism.unit,
        num_parameters=num_parameters,
        delta=delta,
        participations=counts,
        releases=updates + (queried if learns and config.policy.releases else 0),
        budget=budget,
        spent=spent,
        per_coordinate=spent,
        whole_update=whole,
        exhausted=exhausted,
        last_release=np.where(exhausted & (cohorts is not None), last, 0),
        basic=float(spent.max()),
        basic_delta=int(updates.max()) * float(mechanism.delta),
        tight=_largest_total(mechanism, budget, counts, spent, delta),
        tight_at_most=_total_if_known(
            mechanism, budget.max(), max(config.num_rounds, int(counts.max())), delta
        )
        if learns
        else math.nan,
        unnoised=unnoised,
        client_ids=client_ids,
        overlaps=config.overlaps,
    )


def _read(
    run: Result | Selector | xr.Dataset,
) -> tuple[SimConfig, tuple[str, ...], tuple[str, ...]]:
    """Return the config of a run, what left without noise, and the ids of its clients."""
    if isinstance(run, Result | Selector):
        config, unnoised, ids = run.config, run.unnoised, run.client_ids
        if any(jnp.ndim(leaf) for leaf in jax.tree.leaves(config.privacy)):
            raise ConfigError("run is a batch: choose one, jax.tree.map(lambda x: x[i], run).")
    elif run.config_toml.ndim:
        raise ConfigError("run holds several configs: choose one, result.sel(config=...).")
    else:
        config = config_file.loads(run.config_toml.item())
        unnoised = tuple(filter(None, run.unnoised.item().split(", ")))
        named = run.client_id.values.tolist() if "client_id" in run.coords else []
        ids = tuple(named[: config.num_clients])
    needed = ("counts", "queried", "spent", *["budget"] * _has_law(config.privacy.budget))
    if missing := [name for name in needed if not hasattr(run, name)]:
        raise ConfigError(
            f"run has no {', '.join(missing)}: the ledger reads {', '.join(needed)}, so record "
            "them (record=...)."
        )
    if config.learning is not None:
        unnoised += ("updates", SIZES) if config.privacy.unit == "none" else (SIZES,)
    return config, unnoised, ids


def _has_law(budget: Budget) -> bool:
    """Whether clients have budgets of their own."""
    return isinstance(budget, Schedule) and budget.law is not None


def _budgets(run: Any, budget: Budget, shape: tuple[int, ...]) -> tuple[Budget, np.ndarray]:
    """The schedule with each client's own eps_bar, and these, of shape [K] or [S, K]."""
    if not _has_law(budget):
        return budget, np.full(shape, np.asarray(budget.total()))
    own = np.asarray(run.budget)[..., : shape[-1]]
    return budget.replace(total_epsilon=jnp.asarray(own), law=None), own


def _updates(budget: Budget, participations: np.ndarray) -> np.ndarray:
    """Updates that left in so many participations: none once the budget is spent.

    By bisection for the last participation that sends: a budget that is spent stays spent.
    """
    sent = np.zeros_like(participations)
    at_most = participations.copy()
    while np.any(sent < at_most):
        middle = (sent + at_most + 1) // 2
        sends = ~np.asarray(budget.exhausted(jnp.asarray(middle)))
        sent = np.where(sends & (sent < at_most), middle, sent)
        at_most = np.where(sends, at_most, middle - 1)
        at_most = np.maximum(at_most, sent)
    return sent


def _last_rounds(clients: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Return the round of each client's last of so many updates, by the cohorts [..., T, slots]."""
    last = np.zeros_like(updates)
    for seed in np.ndindex(updates.shape[:-1]):
        rounds, slots = np.nonzero(clients[seed] >= 0)
        chosen = clients[seed][rounds, slots].astype(int)
        by_client = np.append(rounds[np.argsort(chosen, kind="stable")] + 1, 0)
        times = np.bincount(chosen, minlength=updates.shape[-1])
        # Where rounds overlap, clients may be under way at the end.
        number = np.minimum(updates[seed], times)
        last[seed] = np.where(number > 0, by_client[np.cumsum(times) - times + number - 1], 0)
    return last


def _largest_total(
    mechanism: Mechanism, budget: np.ndarray, counts: np.ndarray, spent: np.ndarray, delta: float
) -> float:
    """Return the largest total of a client; of clients with one budget the busiest has it.

    Totals of a pure mechanism are at most what is spent: the others need not be composed.
    """
    most: dict[float, tuple[float, int]] = {}
    for total, count, sum_of in zip(budget.flat, counts.flat, spent.flat, strict=True):
        most[float(total)] = max(most.get(float(total), (0.0, 0)), (float(sum_of), int(count)))
    largest = 0.0
    for total, (sum_of, count) in sorted(most.items(), key=lambda item: -item[1][0]):
        if mechanism.delta == 0 and sum_of <= largest:
            break
        found = _total_if_known(mechanism, total, count, delta)
        if math.isnan(found):
            return found
        largest = max(largest, found)
    return largest


def _total_if_known(
    mechanism: Mechanism, budget: float, participations: int, delta: float
) -> float:
    """:func:`total_epsilon` of a client of this budget; NaN if dp-accounting is missing."""
    schedule = mechanism.budget
    if _has_law(schedule):
        schedule = schedule.replace(total_epsilon=float(budget), law=None)
        mechanism = mechanism.with_budget(schedule)
    with contextlib.suppress(ModuleNotFoundError):
        return total_epsilon(mechanism, participations, delta)
    return math.nan


def total_epsilon(mechanism: Mechanism, participations: int, delta: float) -> float:
    """Epsilon at ``delta`` of the schedule's first n releases together, in the mechanism's unit.

    By the law that the mechanism names (``Mechanism.privacy_loss``, :data:`TOTALS`).

    Args:
      mechanism: its numbers not batched.
      participations: n, a number fixed beforehand; ``num_rounds`` always holds.
      delta: in [0, 1). At 0 the plain sum, for pure mechanisms.

    Returns:
      Epsilon; infinite without a guarantee. For pure mechanisms never more than the plain sum.

    Raises:
      ConfigError: if delta is not in [0, 1).
      ModuleNotFoundError: if dp-accounting is needed and missing.
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"delta = {delta!r}: must be >= 0 and < 1.")
    # Lengths that are powers of two: a program serves many.
    longer = np.arange(1, 1 + 2 ** max(participations - 1, 0).bit_length(), dtype=np.int32)
    epsilon, over = (np.asarray(x)[:participations] for x in _schedule(mechanism.budget, longer))
    epsilon = epsilon[~over]
    if not epsilon.size:
        return 0.0
    loss = mechanism.privacy_loss(jnp.asarray(epsilon))
    return TOTALS[type(loss)](loss, delta)


@jax.jit
def _schedule(budget: Budget, participation: Array) -> tuple[Array, Array]:
    """Epsilon of each participation, and whether the budget is spent before it."""
    return budget.epsilon(participation), budget.exhausted(participation)


def _laplace(loss: LaplaceLoss, delta: float) -> float:
    """By privacy loss distributions of ``LaplaceDpEvent(1 / eps_i)`` under ADD_OR_REMOVE_ONE.

    Koskela, Jalko and Honkela 2020; dp-accounting's upper estimate. Neighbours here are any two
    inputs (replace-one), but the scale already holds their whole distance (Delta, or 2C), so that
    no further factor of 2 is due.
    """
    epsilon = np.asarray(loss.epsilon)
    basic = float(epsilon.sum(dtype=float))
    if delta == 0 or epsilon.max() > MAX_RELEASE:
        return basic
    # What a sum of doubles does not see would take longest: a schedule that never ends has many.
    counted = epsilon[epsilon > 1e-20 * basic]
    return min(basic, _composed(_laplace_parts, tuple(counted.tolist()), delta))


def _gaussian(loss: GaussianLoss, delta: float) -> float:
    """Exact: together they are one Gaussian of multiplier (sum 1 / multiplier^2)^(-1/2)."""
    each = np.asarray(loss.multiplier, float)
    return float(_dp_accounting().get_epsilon_gaussian(np.sum(each**-2) ** -0.5, delta))


def _worst(loss: WorstLoss, delta: float) -> float:
    """As randomised response, from which every mechanism can be made (Kairouz et al. 2015)."""
    epsilon = np.asarray(loss.epsilon)
    each = float(loss.delta)
    basic = float(epsilon.sum(dtype=float)) if epsilon.size * each <= delta else math.inf
    if delta == 0:
        return basic
    releases = tuple((e, each) for e in epsilon.tolist())
    return min(basic, _composed(_response_parts, releases, delta))


# What releases of each law add up to: (loss, delta) -> epsilon.
TOTALS: dict[type, Callable[[Any, float], float]] = {
    LaplaceLoss: _laplace,
    GaussianLoss: _gaussian,
    WorstLoss: _worst,
    NoGuarantee: lambda loss, delta: math.inf,
}


@functools.lru_cache(maxsize=256)
def _composed(parts: Callable[[Any], list[Any]], releases: tuple[Any, ...], delta: float) -> float:
    """Epsilon at ``delta`` of releases whose privacy loss distributions are ``parts(releases)``."""
    try:
        left = parts(releases)
    except OverflowError:  # e^eps, from eps = 710 on
        return math.inf
    while len(left) > 1:  # pairwise: far sooner than one after another
        pairs = zip(left[::2], left[1::2], strict=False)
        left = [a.compose(b) for a, b in pairs] + left[len(left) // 2 * 2 :]
    with np.errstate(over="ignore"):  # of large epsilons; what overflows is infinite
        return float(left[0].get_epsilon_for_delta(delta))


def _laplace_parts(epsilons: tuple[float, ...]) -> list[Any]:
    pld = _dp_accounting().pld.privacy_loss_distribution
    # With a finer grid the figures of the papers' schedules change by less than 1e-4 of themselves.
    grid = sum(epsilons) / 3e4
    return [pld.from_laplace_mechanism(1 / e, value_discretization_interval=grid) for e in epsilons]


def _response_parts(releases: tuple[tuple[float, float], ...]) -> list[Any]:
    pld = _dp_accounting().pld
    # Atoms are rounded up to the grid, each release anew.
    grid = sum(epsilon for epsilon, _ in releases) / (1e3 * len(releases))
    return [
        pld.privacy_loss_distribution.from_privacy_parameters(
            pld.common.DifferentialPrivacyParameters(epsilon, delta), grid
        )
        for epsilon, delta in releases
    ]


def _dp_accounting() -> Any:
    try:
        import dp_accounting.pld  # its package names both submodules that are used here
    except ImportError:
        raise ModuleNotFoundError(HINT) from None
    return dp_accounting
