"""Commands that list policies, latency models, availability traces and data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rich.console import Console

from pause_jax.analysis.table import make_table, word
from pause_jax.base.compilation import cache_folder
from pause_jax.base.struct import Config
from pause_jax.config import config_file
from pause_jax.learning import DATASETS, Tfds
from pause_jax.learning.data import is_decoded
from pause_jax.learning.tensorflow_datasets import Prepared
from pause_jax.policies import NAMED, PolicyConfig
from pause_jax.world.availability import AVAILABILITY_TRACES
from pause_jax.world.latency import LATENCIES


def list_policies() -> None:
    """List the selection policies, with their observations and assumptions."""
    columns = word("name"), "description", "observes", "assumes known", "reference"
    rows = []
    for name, policy in NAMED.items():
        note = "" if name == policy.name else f" ({_difference(policy)})"
        observes = "; released: ".join((policy.observes, *policy.releases))
        rows.append((name, policy.summary + note, observes, policy.assumes, policy.reference))
    Console().print(make_table(columns, rows))


def list_latencies() -> None:
    """List the latency models, with their fields and defaults."""
    _list_with_fields(LATENCIES)


def list_availability_traces() -> None:
    """List the availability traces, with their fields and defaults."""
    _list_with_fields(AVAILABILITY_TRACES)


def _list_with_fields(models: Iterable[type[Config]]) -> None:
    rows = []
    for model in models:
        values = config_file.to_dict(model())
        names = [field.name for field in dataclasses.fields(model)]
        named = [f"{n} = {values[n]!r}" if n in values else f"{n} = none" for n in names]
        rows.append((model.name, model.summary, ", ".join(named)))
    Console().print(make_table((word("name"), "description", "fields"), rows))


def list_datasets() -> None:
    """List the data sets, and print the path of the cache folder for decoded images."""
    rows = []
    for data in DATASETS:
        cached = "yes" if is_decoded(data.name) else "no"
        downloaded = issubclass(data, Prepared) and data is not Tfds
        rows.append((data.name, data.summary, cached if downloaded else "-"))
    console = Console()
    console.print(make_table((word("name"), "description", "decoded and cached"), rows))
    console.print(
        f"Cache folder: {cache_folder()} (safe to delete; set $PAUSE_JAX_CACHE to move it). "
        "The subfolder compiled/ contains compiled JAX programs."
    )


def _difference(policy: PolicyConfig) -> str:
    """Describe the fields in which a named policy differs from its class defaults."""
    default = config_file.to_dict(type(policy)())
    parts = []
    for field, value in config_file.to_dict(policy).items():
        if value != default[field]:
            chosen = value["name"] if isinstance(value, dict) else value
            kind = value.get("neighbourhood", "") if isinstance(value, dict) else ""
            parts.append(f"{field} = {chosen}" + (f", neighbourhood {kind}" if kind else ""))
    return ", ".join(parts)
