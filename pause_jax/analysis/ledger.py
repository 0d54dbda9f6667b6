"""Privacy ledger of a run: each client's releases and their total epsilon.

The ledger is computed on the host. Tight totals require dp-accounting (the ``accounting`` extra).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.deploy.selector import Selector
from pause_jax.privacy import Budget, Mechanism, Schedule
from pause_jax.privacy.mechanisms import GaussianLoss, LaplaceLoss, NoGuarantee, WorstLoss
from pause_jax.run.record.result import Result

__all__ = ["Ledger", "ledger"]

HINT = "dp-accounting is not installed. Run: pip install 'pause_jax[accounting]'"
# For larger epsilons, e^epsilon overflows in dp-accounting, so the plain sum is used.
MAX_RELEASE = 700.0
SIZES = "data sizes (aggregation weights)"


class Ledger(NamedTuple):
    """Releases and spent budgets of K clients, as arrays [K], or [S, K] for S seeds.

    Attributes:
      mechanism: mechanism name.
      unit: unit that epsilon protects: ``coordinate``, ``update`` or ``none``.
      num_parameters: d, number of entries in an update, or 0 if unknown or if no model is trained.
      delta: delta at which ``tight`` and ``tight_at_most`` hold.
      participations: int, number of rounds in which the client took part.
      releases: int, number of messages that depend on the client's data: updates (until the budget
        is spent) and answers to queries, which are sent without noise.
      budget: float, eps_bar, the client's total budget per ``unit``, or infinity if unlimited.
      spent: float, sum of the epsilons of the client's updates (basic composition), per ``unit``.
      whole_update: float, total epsilon of an update's d coordinates: d * ``spent`` if ``unit`` is
        ``coordinate``, else ``spent`` (NaN if d is 0).
      exhausted: bool, whether the client has too little budget left for another update.
      last_release: int, round of an exhausted client's last update; 0 for clients with budget left,
        and for all clients if the run did not record ``clients``.
      basic, basic_delta: largest ``spent``, and its delta (0 for a pure mechanism).
      tight: largest :func:`total_epsilon`, or NaN if dp-accounting is needed but not installed.
      tight_at_most: :func:`total_epsilon` of a client that has the largest budget and takes part in
        every round. NaN if no model is trained, or if dp-accounting is needed but not installed.
        This upper bound on a client's total holds even if participation depends on the data.
      unnoised: names of the quantities that clients sent without noise.
      client_ids: ids of clients 0, ..., K - 1; empty if clients are numbered 0, 1, ...
      overlaps: whether rounds overlap. If rounds overlap, each server step counts as a round. A
        release is charged when its client starts training (at most once per server step).
    """

    mechanism: str
    unit: str
    num_parameters: int
    delta: float
    participations: np.ndarray
    releases: np.ndarray
    budget: np.ndarray
    spent: np.ndarray
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
        """Warning if values other than data sizes are sent without noise, else an empty string.

        Print the warning next to every whole-update epsilon. Data sizes are considered public.
        """
        names = ", ".join(name for name in self.unnoised if name != SIZES)
        text = f"NO GUARANTEE, because epsilon does not cover values sent without noise ({names})."
        return text if names else ""


def ledger(run: Result | Selector | xr.Dataset, delta: float = 1e-5) -> Ledger:
    """Build the ledger of a finished run or of a deployed selector.

    Args:
      run: a ``Result``, a ``Selector``, or one config of a ``sweep`` (``result.sel(config=...)``,
        with or without the ``seed`` dimension).
      delta: delta at which the tight totals hold, in [0, 1).

    Returns:
      The ledger. ``tight`` assumes that each client's number of participations does not depend on
      the data. If the policy's choices depend on releases, only ``tight_at_most`` is valid.

    Raises:
      ConfigError: if ``run`` is a batch or lacks a required quantity, or if delta is out of range.

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
    # A sweep pads the arrays of configs with fewer clients.
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
    """Return a run's config, the names of quantities sent without noise, and the client ids."""
    if isinstance(run, Result | Selector):
        config, unnoised, ids = run.config, run.unnoised, run.client_ids
        if any(jnp.ndim(leaf) for leaf in jax.tree.leaves(config.privacy)):
            raise ConfigError(
                "run is a batch: must be a single run. Pass jax.tree.map(lambda x: x[i], run)."
            )
    elif run.config_toml.ndim:
        raise ConfigError(
            "run has several configs: must be a single config. Pass result.sel(config=...)."
        )
    else:
        config = config_file.loads(run.config_toml.item())
        unnoised = tuple(filter(None, run.unnoised.item().split(", ")))
        named = run.client_id.values.tolist() if "client_id" in run.coords else []
        ids = tuple(named[: config.num_clients])
    needed = ("counts", "queried", "spent", *["budget"] * _has_law(config.privacy.budget))
    if missing := [name for name in needed if not hasattr(run, name)]:
        raise ConfigError(
            f"run has no {', '.join(missing)}: the ledger needs {', '.join(needed)}. Add them to "
            "`record`."
        )
    if config.learning is not None:
        unnoised += ("updates", SIZES) if config.privacy.unit == "none" else (SIZES,)
    return config, unnoised, ids


def _has_law(budget: Budget) -> bool:
    return isinstance(budget, Schedule) and budget.law is not None


def _budgets(run: Any, budget: Budget, shape: tuple[int, ...]) -> tuple[Budget, np.ndarray]:
    """Return the budget with its law applied, and each client's eps_bar, [K] or [S, K]."""
    if not _has_law(budget):
        return budget, np.full(shape, np.asarray(budget.total()))
    own = np.asarray(run.budget)[..., : shape[-1]]
    return budget.replace(total_epsilon=jnp.asarray(own), law=None), own


def _updates(budget: Budget, participations: np.ndarray) -> np.ndarray:
    """Derive each client's number of released updates from its participation count.

    Once a budget is spent, no updates follow, so bisection finds the last update.
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
    """Return the round of each client's last update (0 if none). ``clients`` is [..., T, slots]."""
    last = np.zeros_like(updates)
    for seed in np.ndindex(updates.shape[:-1]):
        rounds, slots = np.nonzero(clients[seed] >= 0)
        chosen = clients[seed][rounds, slots].astype(int)
        by_client = np.append(rounds[np.argsort(chosen, kind="stable")] + 1, 0)
        times = np.bincount(chosen, minlength=updates.shape[-1])
        # With overlapping rounds, clients may still be training when the run ends.
        number = np.minimum(updates[seed], times)
        last[seed] = np.where(number > 0, by_client[np.cumsum(times) - times + number - 1], 0)
    return last


def _largest_total(
    mechanism: Mechanism, budget: np.ndarray, counts: np.ndarray, spent: np.ndarray, delta: float
) -> float:
    """Return the largest :func:`total_epsilon` of any client.

    For equal budgets, the total grows with the number of participations. For a pure mechanism
    (``mechanism.delta`` = 0), the total is at most ``spent``.
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
    """Return a client's total epsilon, or NaN if dp-accounting is needed but not installed."""
    schedule = mechanism.budget
    if _has_law(schedule):
        schedule = schedule.replace(total_epsilon=float(budget), law=None)
        mechanism = mechanism.with_budget(schedule)
    with contextlib.suppress(ModuleNotFoundError):
        return total_epsilon(mechanism, participations, delta)
    return math.nan


def total_epsilon(mechanism: Mechanism, participations: int, delta: float) -> float:
    """Compose a client's releases over its participations, and return epsilon at ``delta``.

    Args:
      mechanism: mechanism with scalar parameters.
      participations: number of participations, which must not depend on the data. ``num_rounds``
        is a safe upper bound.
      delta: failure probability at which epsilon is computed, in [0, 1).

    Returns:
      Total epsilon per ``mechanism.unit``. It is infinite if the mechanism has no guarantee, and 0
      if there are no releases. For a pure mechanism, the total is at most the sum of the epsilons,
      with equality at delta 0.

    Raises:
      ConfigError: if delta is not in [0, 1).
      ModuleNotFoundError: if dp-accounting is needed but not installed.
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"delta = {delta!r}: must be >= 0 and < 1.")
    # Round the length up to a power of two, because each length is compiled separately.
    longer = np.arange(1, 1 + 2 ** max(participations - 1, 0).bit_length(), dtype=np.int32)
    epsilon, over = (np.asarray(x)[:participations] for x in _schedule(mechanism.budget, longer))
    epsilon = epsilon[~over]
    if not epsilon.size:
        return 0.0
    loss = mechanism.privacy_loss(jnp.asarray(epsilon))
    return TOTALS[type(loss)](loss, delta)


@jax.jit
def _schedule(budget: Budget, participation: Array) -> tuple[Array, Array]:
    """Return each participation's epsilon, and whether the participation releases nothing."""
    return budget.epsilon(participation), budget.exhausted(participation)


def _laplace(loss: LaplaceLoss, delta: float) -> float:
    """Compose privacy loss distributions of ``LaplaceDpEvent(1 / eps_i)`` under ADD_OR_REMOVE_ONE.

    Returns the smaller of dp-accounting's upper estimate (Koskela, Jalko and Honkela 2020) and the
    plain sum. Any two inputs are neighbours (replace-one). The noise scale already accounts for
    the full distance between two inputs (Delta or 2C), so no factor of 2 is needed.
    """
    epsilon = np.asarray(loss.epsilon)
    basic = float(epsilon.sum(dtype=float))
    if delta == 0 or epsilon.max() > MAX_RELEASE:
        return basic
    # Skip the many negligible releases of an endless schedule, which are slow to compose.
    counted = epsilon[epsilon > 1e-20 * basic]
    return min(basic, _composed(_laplace_parts, tuple(counted.tolist()), delta))


def _gaussian(loss: GaussianLoss, delta: float) -> float:
    """Compose releases exactly, as one Gaussian with multiplier (sum 1 / multiplier^2)^(-1/2)."""
    each = np.asarray(loss.multiplier, float)
    return float(_dp_accounting().get_epsilon_gaussian(np.sum(each**-2) ** -0.5, delta))


def _worst(loss: WorstLoss, delta: float) -> float:
    """Compose releases as randomised responses, which are the worst case (Kairouz et al. 2015)."""
    epsilon = np.asarray(loss.epsilon)
    each = float(loss.delta)
    basic = float(epsilon.sum(dtype=float)) if epsilon.size * each <= delta else math.inf
    if delta == 0:
        return basic
    releases = tuple((e, each) for e in epsilon.tolist())
    return min(basic, _composed(_response_parts, releases, delta))


# Composition rule (loss, delta) -> epsilon for each type of privacy loss.
TOTALS: dict[type, Callable[[Any, float], float]] = {
    LaplaceLoss: _laplace,
    GaussianLoss: _gaussian,
    WorstLoss: _worst,
    NoGuarantee: lambda loss, delta: math.inf,
}


@functools.lru_cache(maxsize=256)
def _composed(parts: Callable[[Any], list[Any]], releases: tuple[Any, ...], delta: float) -> float:
    """Compose privacy loss distributions (``parts(releases)``), and return epsilon at ``delta``."""
    try:
        left = parts(releases)
    except OverflowError:  # e^eps overflows for eps >= 710
        return math.inf
    while len(left) > 1:  # pairwise composition is faster than sequential composition
        pairs = zip(left[::2], left[1::2], strict=False)
        left = [a.compose(b) for a, b in pairs] + left[len(left) // 2 * 2 :]
    with np.errstate(over="ignore"):  # a large epsilon overflows to infinity
        return float(left[0].get_epsilon_for_delta(delta))


def _laplace_parts(epsilons: tuple[float, ...]) -> list[Any]:
    pld = _dp_accounting().pld.privacy_loss_distribution
    # A finer grid changes the totals for the papers' schedules by at most 0.01 %.
    grid = sum(epsilons) / 3e4
    return [pld.from_laplace_mechanism(1 / e, value_discretization_interval=grid) for e in epsilons]


def _response_parts(releases: tuple[tuple[float, float], ...]) -> list[Any]:
    pld = _dp_accounting().pld
    # The losses of each release are rounded up to the grid, and the rounding errors add up.
    grid = sum(epsilon for epsilon, _ in releases) / (1e3 * len(releases))
    return [
        pld.privacy_loss_distribution.from_privacy_parameters(
            pld.common.DifferentialPrivacyParameters(epsilon, delta), grid
        )
        for epsilon, delta in releases
    ]


def _dp_accounting() -> Any:
    try:
        import dp_accounting.pld  # imports both submodules used here
    except ImportError:
        raise ModuleNotFoundError(HINT) from None
    return dp_accounting
