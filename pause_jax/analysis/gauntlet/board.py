"""Stored scores of the benchmark board, and functions that compare a policy with the board."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pause_jax.analysis.gauntlet.fleets import VERSION, YARDSTICK, Fleet, fleets
from pause_jax.analysis.gauntlet.play import play, server_seconds
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.base.versions import version
from pause_jax.config import validate
from pause_jax.policies import PolicyConfig, named


def gauntlet(
    policy: PolicyConfig | str,
    *,
    track: str = "digits",
    tuned: bool = False,
    only: Sequence[str] | None = None,
    data_dir: str | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Run a policy on the benchmark, and return its scores together with the board's scores.

    The board's policies are not rerun. Runs with the same fleet and seed share a world, so policies
    can be compared by their paired differences (``analysis.gauntlet.standings``).

    Args:
      policy: policy, or the name of a registered policy.
      track: data set, ``digits`` or ``fashion`` (Fashion-MNIST).
      tuned: whether to compare with the scores that the board's policies achieve with tuned
        parameters instead of default parameters.
      only: fleet names, or None for all fleets.
      data_dir: folder of data sets prepared by tensorflow-datasets, used only for ``fashion``.
      progress: whether to show progress bars.

    Returns:
      Scores [policy, fleet, seed] of the board's policies, followed by those of ``policy``. If the
      board already has a policy with that name, ``policy`` is labelled ``NAME (yours)``. Scores
      are NaN for fleets on which a policy cannot run. The ``settings`` coordinate describes each
      policy's parameters.

    Raises:
      ConfigError: if a name is unknown, the data set cannot be read, the policy cannot run on any
        chosen fleet, or a fleet's current definition has no stored scores. Errors are raised
        before any run starts.

    Examples:
      >>> import pause_jax
      >>> scores = pause_jax.gauntlet("fastest", only=["tails"])  # doctest: +SKIP
    """
    policy = named(policy)
    found = _chosen(fleets(track, data_dir), only)
    kept = read(found, track, tuned=tuned)
    label = policy.name if policy.name not in kept.policy.values else f"{policy.name} (yours)"
    refusals = {name: refusal(fleet, policy) for name, fleet in found.items()}
    runnable = [name for name in found if not refusals[name]]
    if not runnable:
        raise ConfigError(f"{policy.name} cannot run on any fleet. {refusals[next(iter(found))]}")
    readings = {}
    for number, name in enumerate(runnable, 1):
        if progress and sys.stderr.isatty():
            print(f"Fleet {number} of {len(runnable)}: {name}", file=sys.stderr)
        readings[name] = play(found[name], {label: policy}, progress=progress)
    new = together(readings).map(_four_digits)  # same rounding as stored scores, to detect ties
    new = new.assign_coords(settings=("policy", [repr(policy)]))
    scores = xr.concat([kept, new], "policy", join="outer").reindex(fleet=list(found))
    return scores.assign_attrs(pause_jax=version("pause_jax"))


def server_time(policy: PolicyConfig, scores: xr.Dataset, track: str, data_dir: str | None) -> str:
    """Report the server times of a policy and ``YARDSTICK`` on the largest fleet the policy ran on.

    ``scores`` is the data set that :func:`gauntlet` returned for ``policy``.
    """
    found = fleets(track, data_dir)
    ran = scores.fleet[scores.late.isel(policy=-1).notnull().all("seed").values]
    name = max(map(str, ran.values), key=lambda fleet: found[fleet].config.num_clients)
    own, usual = (1e3 * server_seconds(found[name], each) for each in (policy, named(YARDSTICK)))
    return f"Server time per round on {name}: {own:.2g} ms ({usual:.2g} ms with {YARDSTICK})."


def verify(
    number: int,
    *,
    track: str = "digits",
    tuned: bool = False,
    only: Sequence[str] | None = None,
    data_dir: str | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Replay randomly chosen board runs, and compare them with the stored scores.

    On a different type of processor, rounding differs, and the scores of policies that read losses
    or updates can differ by several points. A replay takes as long as all of a policy's runs.

    Args:
      number: number of runs to replay.
      track: data set, as for :func:`gauntlet`.
      tuned: whether to replay runs with tuned parameters instead of default parameters.
      only: fleet names, or None for all fleets.
      data_dir: folder of prepared data sets, used only for ``fashion``.
      seed: seed for choosing the runs.

    Returns:
      One row per run. The columns are the policy, the fleet, the seed, the stored and the replayed
      ``late`` accuracy in %, and whether all replayed scores equal the stored ones.

    Raises:
      ConfigError: as for :func:`gauntlet`.
    """
    found = _chosen(fleets(track, data_dir), only)
    default, best = (read(found, track, tuned=each) for each in (False, True))
    kept = best if tuned else default
    cells = np.argwhere(kept.late.notnull().values)
    rows = []
    for cell in np.random.default_rng(seed).choice(cells, number):
        before = kept.isel(dict(zip(kept.late.dims, cell, strict=True)))
        policy, fleet, world = (before[name].item() for name in kept.late.dims)
        # Results depend on the batch width, so replay all runs that the board batched together.
        settings = {"best": json.loads(best.settings.sel(policy=policy).item())}
        labels = [policy, *(["best"] if settings["best"] else [])]
        chosen = dict.fromkeys(labels, named(policy))
        new = play(found[fleet], chosen, settings=settings, progress=False)
        after = new.map(_four_digits).sel(policy=labels[-1 if tuned else 0], seed=world)
        equal = all(
            np.array_equal(before[reading], after[reading], equal_nan=True)
            for reading in after.data_vars
        )
        rows.append((policy, fleet, world, before.late.item(), after.late.item(), equal))
    return pd.DataFrame(rows, columns=["policy", "fleet", "seed", "stored", "replayed", "equal"])


def _chosen(found: Mapping[str, Fleet], only: Sequence[str] | None) -> dict[str, Fleet]:
    for name in only or ():
        if name not in found:
            raise ConfigError(f"fleet {shown(name)}: must be one of {', '.join(found)}.")
    return {name: found[name] for name in (only or found)}


def refusal(fleet: Fleet, policy: PolicyConfig) -> str:
    """Return the reason that a policy cannot run on a fleet, or an empty string if it can."""
    try:
        validate(fleet.config.replace(policy=policy))
    except ConfigError as error:
        return str(error)
    return ""


def together(by_fleet: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Combine each fleet's scores [..., policy, seed] into [..., policy, fleet, seed]."""
    along = xr.DataArray(list(by_fleet), dims="fleet", name="fleet")
    joined = xr.concat(list(by_fleet.values()), along, join="outer")
    return joined.transpose(..., "policy", "fleet", "seed")


def path(track: str) -> pathlib.Path:
    """Return the path of a track's stored scores."""
    return pathlib.Path(__file__).with_name(f"{track}.nc")


def read(found: Mapping[str, Fleet], track: str, *, tuned: bool = False) -> xr.Dataset:
    """Load stored scores [policy, fleet, seed]. Raise ConfigError if a fleet has changed.

    The ``settings`` coordinate [policy] contains each policy's config changes as JSON.
    """
    with xr.open_dataset(path(track), engine="h5netcdf") as file:
        kept = file.load()
    for name, fleet in found.items():
        if name not in kept.fleet.values or kept.digest.sel(fleet=name).item() != fleet.digest:
            raise ConfigError(
                f"fleet {shown(name)}: version {VERSION} has no stored scores for this definition. "
                "Restore the old definition, or increase the version and compute new scores "
                "(python -m tools.board)."
            )
    kept = kept.sel(fleet=list(found)).drop_vars("digest")
    return kept.sel(parameters="tuned" if tuned else "default", drop=True)


def write(readings: xr.Dataset, found: Mapping[str, Fleet], track: str) -> None:
    """Store scores [parameters, policy, fleet, seed], rounded to four significant digits."""
    digests = [found[str(name)].digest for name in readings.fleet.values]
    rounded = readings.map(_four_digits).assign_coords(digest=("fleet", digests))
    rounded.attrs = {"version": VERSION, "yardstick": YARDSTICK}
    packed = {str(name): {"zlib": True, "complevel": 9} for name in rounded.data_vars}
    temporary = path(track).with_suffix(".tmp")
    rounded.to_netcdf(temporary, engine="h5netcdf", encoding=packed)
    temporary.replace(path(track))


def _four_digits(values: xr.DataArray) -> xr.DataArray:
    rounded = np.vectorize(lambda x: float(f"{x:.4g}"))(values)
    return values.copy(data=rounded.astype(np.float32))
