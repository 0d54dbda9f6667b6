"""A sweep before it runs: configs checked, grouped by static structure, cut into chunks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.learning import DataConfig, Dataset, Execution, Given, Learning
from pause_jax.learning.dataset import checked
from pause_jax.run.driver import single_run
from pause_jax.run.preflight import (
    check_limits,
    check_size,
    checked_devices,
    checked_keys,
    client_ids,
    execution_of,
    prepare,
)
from pause_jax.run.programs import compiled_init, compiled_steps
from pause_jax.run.record.quantity import Quantity
from pause_jax.run.record.recorder import Quantities, chosen, with_metrics
from pause_jax.run.record.result import RESERVED
from pause_jax.run.setup import learner_of
from pause_jax.sweeps import distributed, provenance
from pause_jax.sweeps.batch import Batch, mesh_of
from pause_jax.sweeps.chunks import Chunking, Limits, chunking_of, threads_of
from pause_jax.sweeps.config_summary import summarised, variable
from pause_jax.sweeps.families import family_of, one_of
from pause_jax.sweeps.store import FORMAT


class PreparedConfig(NamedTuple):
    """One config of a sweep, checked and ready: its name, itself, and its data set."""

    label: str
    config: SimConfig
    data: Any


class SweepPlan(NamedTuple):
    """A sweep that can run.

    Attributes:
      groups: configs of one static structure and data set, which are one compilation.
      plans: how the runs of each group are cut into chunks.
      keys: typed keys [S].
      quantities: what is recorded.
      execution: how cohorts are trained.
      mesh: the devices.
      made_by: what the bits of the result depend on, plain values.
    """

    groups: list[list[PreparedConfig]]
    plans: list[Chunking]
    keys: Array
    quantities: Quantities
    execution: Execution
    mesh: Mesh
    made_by: dict[str, Any]

    def batch(self, number: int, chunking: Chunking) -> Batch:
        """The runs of a group, by its number, in the chunks of the sweep that was begun first."""
        group = self.groups[number]
        return Batch(
            configs=jax.tree.map(lambda *x: np.stack(x), *(each.config for each in group)),
            data=group[0].data,
            keys=self.keys,
            chunking=chunking,
            quantities=self.quantities,
            execution=self.execution,
            mesh=self.mesh,
        )


# As many arguments as `sweep` has: it hands them on.
def plan_sweep(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
    keys: Array,
    *,
    data: Dataset | None = None,
    record: Sequence[str | Quantity] | None = None,
    memory_limit: float = 2.0,
    max_batch: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    client_batch: int | None = None,
    shards: int = 1,
) -> SweepPlan:
    """Check a sweep and cut it into chunks.

    The arguments are those of :func:`pause_jax.sweep`, and ``shards``: the processes that share it,
    for each of which there is a chunk if there are as many runs.

    Raises:
      ConfigError: if any config or another argument cannot run.
    """
    named, keys = _named(configs), checked_keys(keys)
    check_limits(memory_limit, max_batch)
    mesh, execution = mesh_of(checked_devices(devices)), execution_of(client_batch)
    quantities = chosen(record, RESERVED)
    groups = _groups(named, None if data is None else checked(data))
    if record is None:
        of_all = (learner_of(g[0].config, g[0].data).metrics for g in groups)
        names, configs = itertools.chain(*of_all), [group[0].config for group in groups]
        quantities = with_metrics(quantities, names, RESERVED, configs)
    for group in groups:
        check_size(group[0].config, group[0].data, quantities, len(group) * len(keys))
    settings = {
        "max_batch": max_batch,
        "memory_limit": memory_limit,
        "client_batch": client_batch,
        "shards": shards,
    }
    made_by = _made_by(list(named), groups, keys, quantities, mesh, settings)
    if jax.process_count() > 1:
        distributed.check_same(repr(made_by))
    share = -(-len(named) * len(keys) // shards)
    limits = Limits(
        num_devices=mesh.size,
        threads=threads_of(mesh),
        memory=memory_limit,
        max_batch=max_batch if shards == 1 else min(max_batch or share, share),
    )
    plans = [
        chunking_of(
            group[0].config, group[0].data, len(group) * len(keys), quantities, execution, limits
        )
        for group in groups
    ]
    return SweepPlan(_shared(groups), plans, keys, quantities, execution, mesh, made_by)


def _groups(named: Mapping[str, SimConfig], data: Dataset | None) -> list[list[PreparedConfig]]:
    """Prepare the configs and group them by static structure and data set."""
    once: dict[DataConfig, Any] = {}
    groups: dict[Any, list[PreparedConfig]] = {}
    for label, config in named.items():
        prepared = _prepared(label, config, data, once)
        groups.setdefault((jax.tree.structure(prepared.config), id(prepared.data)), []).append(
            prepared
        )
    return list(groups.values())


def _made_by(
    labels: list[str],
    groups: list[list[PreparedConfig]],
    keys: Array,
    quantities: Quantities,
    mesh: Mesh,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Collect what the bits of the result depend on, as plain values."""
    summaries = {
        prepared.label: summarised(
            label=prepared.label,
            config=prepared.config,
            toml=config_file.dumps(prepared.config),
            data=provenance.data_digest(prepared.data),
            client_ids=client_ids(prepared.config, prepared.data),
        )._asdict()
        for group in groups
        for prepared in group
    }
    return {
        "format": FORMAT,
        "summaries": [summaries[label] for label in labels],
        "groups": [[prepared.label for prepared in group] for group in groups],
        "keys": jax.random.key_data(keys).tolist(),
        "key_impl": str(jax.random.key_impl(keys)),
        "recorded": [variable(q)._asdict() for q in quantities],
        **settings,
        "versions": provenance.versions(),
        "machine": provenance.machine(mesh.devices.flat),
        "code": provenance.code(),
        "own": [own for group in groups for own in _own(group, keys, quantities)],
    }


def _prepared(
    label: str, config: SimConfig, data: Dataset | None, once: dict[DataConfig, Any]
) -> PreparedConfig:
    """One config, prepared; ``once`` holds what was loaded, so that equal data are one object, and
    configs of equal structure one group.
    """
    learning = config.learning if isinstance(config, SimConfig) else None
    if data is None and type(learning) is Learning and learning.data in once:
        config, loaded = prepare(config, once[learning.data])
    else:
        config, loaded = prepare(config, data)
        if type(learning) is Learning:
            once[learning.data] = loaded
    if data is not None and config.learning is not None:
        told = Given(num_train=config.learning.data.num_train, digest=loaded.digest)
        config = config.override({"learning.data": told})
    return PreparedConfig(label, config, loaded)


# By what a program is compiled for, what the custom parts of this process computed last.
_COMPUTED: dict[Any, str] = {}


def _own(group: list[PreparedConfig], keys: Array, quantities: Quantities) -> list[dict[str, str]]:
    """What the custom parts of a group compute, for each of its configs; nothing without any.

    They are traced once, so their mistakes show before any run, and hashed as they are computed:
    their constants may come from anywhere. The library's own parts are known by their files.

    Raises:
      Exception: whatever a part raises.
    """
    _, config, data = group[0]
    parts = provenance.own_parts(config, quantities)
    if not parts:
        return []
    run = functools.partial(single_run, quantities=quantities)
    key = jax.random.key(0, impl=jax.random.key_impl(keys))
    program, result = jax.make_jaxpr(run, return_shape=True)(config, data, key)
    said = result.epsilon_unit, result.num_parameters, *result.unnoised
    digest = f"{provenance.program_digest(program)} {said}"
    shapes = tuple((np.shape(leaf), str(leaf.dtype)) for leaf in jax.tree.leaves(data))
    known = jax.tree.structure(config), quantities, shapes
    if _COMPUTED.setdefault(known, digest) != digest:
        compiled_steps.cache_clear()  # they hold a constant that has changed since they were traced
        compiled_init.cache_clear()
        _COMPUTED[known] = digest
    return [
        {"label": prepared.label, "parts": ", ".join(parts), "digest": digest} for prepared in group
    ]


def _shared(groups: list[list[PreparedConfig]]) -> list[list[PreparedConfig]]:
    """The groups, those that differ in their policy and length alone with configs of one structure:
    so one program serves them all.
    """
    families: dict[Any, list[int]] = {}
    for number, (first, *_) in enumerate(groups):
        family = family_of(first.config, first.data)
        if family is not None:
            families.setdefault(family, []).append(number)
    shared = list(groups)
    for numbers in families.values():
        own = {
            jax.tree.structure(policy): policy
            for policy in (groups[number][0].config.policy for number in numbers)
        }
        if len(own) == 1:
            continue
        choices = tuple(own.values())
        for number in numbers:
            shared[number] = [
                prepared._replace(config=one_of(prepared.config, choices))
                for prepared in groups[number]
            ]
    return shared


def _named(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
) -> dict[str, SimConfig]:
    if isinstance(configs, SimConfig):
        configs = [configs]
    if not isinstance(configs, Mapping | Iterable):
        raise ConfigError(f"configs = {shown(configs)}: must be a SimConfig or several.")
    if not isinstance(configs, Mapping):
        configs = list(configs)
        width = len(str(max(len(configs) - 1, 0)))
        configs = {f"{i:0{width}}": config for i, config in enumerate(configs)}
    if not configs:
        raise ConfigError("configs is empty: give at least one SimConfig.")
    for label in configs:
        if not isinstance(label, str):
            raise ConfigError(f"configs: the name {shown(label)} must be a text.")
    return dict(configs)
