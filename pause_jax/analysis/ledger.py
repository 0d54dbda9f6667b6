"""The ledger: what each client released in a run, and what that adds up to.

Host side only; the tight totals need dp-accounting (the extra ``accounting``).
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax import config_file
from pause_jax.engine.result import Result
from pause_jax.privacy.mechanisms import L1Laplace, Mechanism, PerCoordinateLaplace
from pause_jax.privacy.projection import Projected
from pause_jax.struct import ConfigError

if TYPE_CHECKING:
    import xarray as xr

HINT = "dp-accounting is missing: pip install 'pause_jax[accounting]'"
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
      spent: float, epsilon by basic composition (a plain sum), in the mechanism's unit.
      per_coordinate: float, the same for one coordinate of its updates.
      whole_update: float, the same for all d coordinates; NaN if d is 0.
      exhausted: bool, nothing is left of its budget, so it releases nothing more.
      basic, basic_delta: the most ``spent``, and its delta: 0 for a pure mechanism.
      tight: :func:`total_epsilon` of the same releases; NaN if dp-accounting is missing.
      tight_at_most: the same for a client that takes part in every round: holds whatever the number
        of its participations depends on. NaN without learning.
      unnoised: all that left clients without noise.
    """

    mechanism: str
    unit: str
    num_parameters: int
    delta: float
    participations: np.ndarray
    releases: np.ndarray
    spent: np.ndarray
    per_coordinate: np.ndarray
    whole_update: np.ndarray
    exhausted: np.ndarray
    basic: float
    basic_delta: float
    tight: float
    tight_at_most: float
    unnoised: tuple[str, ...]

    @property
    def warning(self) -> str:
        """Why no epsilon here covers a whole message; empty if one does, data sizes being public.

        No epsilon of whole updates may be printed without it.
        """
        names = ", ".join(name for name in self.unnoised if name != SIZES)
        text = f"NO GUARANTEE for all that a client sends: without noise leave {names}."
        return text if names else ""


def ledger(run: Result | xr.Dataset, delta: float = 1e-5) -> Ledger:
    """The ledger of a run.

    Args:
      run: a ``Result``, or one config of a ``sweep``: ``result.sel(config=...)``, with its
        dimension ``seed`` or without.
      delta: of the tight total, in [0, 1).

    Returns:
      The ledger. ``tight`` is at the most participations that happened, as if that number had been
      fixed beforehand. Where a policy's choice depends on releases the number depends on the data:
      then quote ``tight_at_most``, which holds in every case.

    Raises:
      ConfigError: for several configs at once, or a bad delta.
    """
    if isinstance(run, Result):
        config, unnoised = run.config, run.unnoised
        if any(jnp.ndim(leaf) for leaf in jax.tree.leaves(config.privacy)):
            raise ConfigError("run is a batch: choose one, jax.tree.map(lambda x: x[i], run).")
    elif run.config_toml.ndim:
        raise ConfigError("run holds several configs: choose one, result.sel(config=...).")
    else:
        config = config_file.loads(run.config_toml.item())
        unnoised = tuple(filter(None, run.unnoised.item().split(", ")))
    mechanism, learns, size = config.privacy, config.learning is not None, int(run.num_parameters)
    # A smaller config's row of a sweep is filled up with clients that do not exist.
    counts, queried, spent = (
        np.asarray(getattr(run, name))[..., : config.num_clients]
        for name in ("counts", "queried", "spent")
    )
    if learns:
        unnoised += ("updates", SIZES) if mechanism.unit == "none" else (SIZES,)
    times = size if mechanism.unit == "coordinate" else 1
    most, tight, tight_at_most = int(counts.max()), math.nan, math.nan
    sends = np.asarray(mechanism.epsilon(jnp.arange(1, most + 1))) > 0
    updates = np.concatenate([[0], np.cumsum(sends)])[counts]  # after n participations
    with contextlib.suppress(ModuleNotFoundError):
        tight = total_epsilon(mechanism, most, delta)
        if learns:
            tight_at_most = total_epsilon(mechanism, config.num_rounds, delta)
    return Ledger(
        mechanism=mechanism.name,
        unit=mechanism.unit,
        num_parameters=size,
        delta=delta,
        participations=counts,
        releases=updates + (queried if learns and config.policy.releases else 0),
        spent=spent,
        per_coordinate=spent,
        whole_update=spent.astype(float) * times if size else np.full(spent.shape, math.nan),
        exhausted=np.asarray(mechanism.epsilon(jnp.asarray(counts + 1))) == 0,
        basic=float(spent.max()),
        basic_delta=int(updates.max()) * float(mechanism.delta),
        tight=tight,
        tight_at_most=tight_at_most,
        unnoised=unnoised,
    )


def total_epsilon(mechanism: Mechanism, participations: int, delta: float) -> float:
    """Epsilon at ``delta`` of the schedule's first n releases together, in the mechanism's unit.

    * Laplace: by privacy loss distributions (Koskela, Jalko and Honkela 2020; dp-accounting's upper
      estimate) of ``LaplaceDpEvent(1 / eps_i)`` under ADD_OR_REMOVE_ONE. Neighbours here are any
      two inputs (replace-one), but the scale already holds their whole distance (Delta, or 2C), so
      that no further factor of 2 is due. Many coordinates with that distance in all are no worse
      than one.
    * A mechanism with ``noise_multiplier(epsilon)`` (sigma over the L2 distance of
      two inputs): Gaussian. Together exactly one of multiplier (sum 1 / multiplier^2)^(-1/2).
    * Any other: randomised response of eps_i, from which every pure mechanism can be made (Kairouz,
      Oh and Viswanath 2015).

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
    if isinstance(mechanism, Projected):
        mechanism = mechanism.inner  # what is done before it needs no privacy
    epsilon = np.asarray(mechanism.epsilon(jnp.arange(1, participations + 1)))
    epsilon = epsilon[epsilon > 0]
    basic = float(epsilon.sum(dtype=float))
    if epsilon.size == 0 or math.isinf(basic):
        return basic
    multiplier = getattr(mechanism, "noise_multiplier", None)
    if multiplier is not None:
        each = np.asarray(jax.vmap(multiplier)(jnp.asarray(epsilon)), float)
        return float(_dp_accounting().get_epsilon_gaussian(np.sum(each**-2) ** -0.5, delta))
    if delta == 0:
        return basic
    laplace = isinstance(mechanism, PerCoordinateLaplace | L1Laplace)
    return min(basic, _pure(tuple(epsilon.tolist()), laplace, delta))


@functools.lru_cache(maxsize=256)
def _pure(epsilons: tuple[float, ...], laplace: bool, delta: float) -> float:
    """By privacy loss distributions, composed pairwise: far sooner than one after another."""
    pld = _dp_accounting().pld.privacy_loss_distribution
    # With a finer grid the figures of the papers' schedules change by less than 1e-4 of themselves.
    # Atoms of randomised response are rounded up to the grid, each release anew.
    grid = sum(epsilons) / (3e4 if laplace else 1e3 * len(epsilons))
    try:
        if laplace:
            parts = [
                pld.from_laplace_mechanism(1 / e, value_discretization_interval=grid)
                for e in epsilons
            ]
        else:
            pure = _dp_accounting().pld.common.DifferentialPrivacyParameters
            parts = [pld.from_privacy_parameters(pure(e, 0.0), grid) for e in epsilons]
    except OverflowError:  # e^eps, from eps = 710 on
        return math.inf
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [a.compose(b) for a, b in pairs] + parts[len(parts) // 2 * 2 :]
    return float(parts[0].get_epsilon_for_delta(delta))


def _dp_accounting() -> Any:
    try:
        import dp_accounting.pld  # its package names both submodules that are used here
    except ImportError:
        raise ModuleNotFoundError(HINT) from None
    return dp_accounting
