"""Plan of a sweep, whose runs are grouped by static structure and split into chunks."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pause_jax.base.memory import tree_bytes
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Dataset, Execution, Given, Learning
from pause_jax.learning.dataset import checked, with_weights
from pause_jax.learning.learner import model_bytes
from pause_jax.policies import POLICIES, OneOf, PolicyConfig, Random
from pause_jax.run.preflight import (
    check_limits,
    check_size,
    checked_devices,
    checked_keys,
    execution_of,
    prepare,
)
from pause_jax.run.programs import compiled_init, compiled_steps, state_shapes
from pause_jax.run.record.quantity import Quantity
from pause_jax.run.record.result import (
    Quantities,
    check_client_scores,
    chosen,
    recorded_bytes,
    with_metrics,
)
from pause_jax.run.rounds.state import State
from pause_jax.run.setup import learner_of
from pause_jax.sweeps import provenance

# Maximum number of configs in a grid or of trials in a search.
MOST = 10_000
# Maximum number of segments per run. After each segment, a run can save a checkpoint or stop.
SEGMENTS = 20
# Maximum memory per thread, in bytes, for concurrently trained clients. Batching slows down runs
# that do not fit in a core's cache.
KEPT_IN_THREAD = 8 * 2**20
# Allowed batch sizes. The list is short, so sweeps of similar size can share a compiled program.
# An entry of IN_THREAD is (batch size per thread, minimum number of runs).
WIDTHS = (1, 2, 4, *(2**n // 4 * part for n in range(3, 31) for part in (4, 6)))
IN_THREAD = ((64, 512), (16, 128), (4, 32), (1, 0))
# Estimated number of copies of the state and the record in memory. A loop step keeps the old, the
# new and an intermediate state in memory. The loop fills one record buffer and returns another.
STATES, RECORDS = 3, 2
# Number of model-sized arrays per training client (model, gradient, two moments, update, flat
# update, noise and release).
MODEL_COPIES = 8


class PreparedConfig(NamedTuple):
    """Validated config of a sweep, with its label and data set."""

    label: str
    config: SimConfig
    data: Any


class Chunk(NamedTuple):
    """Chunk of a sweep, identified by its group and its first run in the group."""

    group: int
    first: int


class Chunking(NamedTuple):
    """Partition of a group's runs into chunks of ``batch`` runs, spread evenly over the devices.

    The rounds are split into ``segments`` segments. Up to ``threads`` chunks run concurrently.
    """

    num_runs: int
    batch: int
    segments: int
    threads: int

    @property
    def firsts(self) -> range:
        """Index of the first run in each chunk."""
        return range(0, self.num_runs, self.batch)

    def runs(self, first: int) -> np.ndarray:
        """Return the run indices of the chunk that starts with run ``first``."""
        return np.arange(first, min(first + self.batch, self.num_runs))


class SweepPlan(NamedTuple):
    """Plan of a validated sweep.

    Attributes:
      groups: lists of configs that share a static structure and a data set.
      made_by: all inputs that can change the result, as plain values keyed by name.
    """

    configs: list[PreparedConfig]
    groups: list[list[PreparedConfig]]
    chunkings: list[Chunking]
    keys: Array
    quantities: Quantities
    execution: Execution
    mesh: Mesh
    made_by: dict[str, Any]

    @property
    def chunks(self) -> list[Chunk]:
        """Chunks of all groups, group by group."""
        return [Chunk(g, first) for g, each in enumerate(self.chunkings) for first in each.firsts]

    def segments(self, chunks: Iterable[Chunk]) -> int:
        """Return the total number of segments in ``chunks``."""
        return sum(self.chunkings[chunk.group].segments for chunk in chunks)


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
    per_client: bool = False,
) -> SweepPlan:
    """Validate a sweep and split it into chunks.

    The arguments are documented in :func:`pause_jax.sweep`. If ``per_client`` is True and
    ``record`` is None, also record all metrics for each client.

    Raises:
      ConfigError: if a config or any other argument is invalid.
    """
    named = _named(configs)
    keys = checked_keys(keys)
    check_limits(memory_limit, max_batch)
    mesh = Mesh(np.asarray(checked_devices(devices)), ("run",))
    execution = execution_of(client_batch)
    quantities = chosen(record)
    groups = _groups(named, None if data is None else checked(data))
    learners = [learner_of(group[0].config, group[0].data) for group in groups]
    if record is None:
        metrics = itertools.chain(*(learner.metrics for learner in learners))
        configs = [group[0].config for group in groups]
        quantities = with_metrics(quantities, metrics, configs, per_client)
    check_client_scores(quantities, learners)
    for group in groups:
        check_size(group[0].config, group[0].data, quantities, len(group) * len(keys))
    chunkings = [
        chunking_of(
            group[0].config,
            group[0].data,
            len(group) * len(keys),
            quantities,
            execution,
            num_devices=mesh.size,
            threads=threads_of(mesh),
            memory_limit=memory_limit,
            max_batch=max_batch,
        )
        for group in groups
    ]
    prepared = {each.label: each for group in groups for each in group}
    in_order = [prepared[label] for label in named]
    made_by = {
        **_described(in_order, quantities),
        "groups": [[each.label for each in group] for group in groups],
        "keys": f"{len(keys)} seeds from {np.asarray(jax.random.key_data(keys))[0]}",
        "the other keys": jax.random.key_data(keys).tolist(),
        "key_impl": str(jax.random.key_impl(keys)),
        "max_batch": max_batch,
        "memory_limit": memory_limit,
        "client_batch": client_batch,
        **provenance.versions(),
        **provenance.machine(mesh.devices.flat),
        **provenance.settings(),
        "code of pause_jax": provenance.code(),
    }
    for group in groups:
        made_by |= _custom(group, keys, quantities)
    return SweepPlan(
        configs=in_order,
        groups=_sharing_policies(groups),
        chunkings=chunkings,
        keys=keys,
        quantities=quantities,
        execution=execution,
        mesh=mesh,
        made_by=made_by,
    )


def _described(configs: Iterable[PreparedConfig], quantities: Quantities) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for each in configs:
        for path, value in provenance.describe_config(each.config).items():
            # A file is identified by its digest, not by its path.
            if path.rpartition(".")[2] not in ("path", "data_dir", "start"):
                described[f"{path} of {each.label!r}"] = value
        described[f"data of {each.label!r}"] = provenance.data_digest(each.data)
    for q in quantities:
        described[f"the quantity {q.name}"] = [q.dims, q.unit, q.gap, q.doc]
    return described


def _named(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
) -> dict[str, SimConfig]:
    if isinstance(configs, SimConfig):
        configs = [configs]
    if not isinstance(configs, Mapping | Iterable):
        raise ConfigError(f"configs = {shown(configs)}: must be one or more SimConfigs.")
    if not isinstance(configs, Mapping):
        configs = list(configs)
        width = len(str(max(len(configs) - 1, 0)))
        configs = {f"{i:0{width}}": config for i, config in enumerate(configs)}
    if not configs:
        raise ConfigError("configs is empty: pass at least one SimConfig.")
    for label in configs:
        if not isinstance(label, str) or not label.isprintable():
            raise ConfigError(f"configs: name {shown(label)} must be a printable string.")
    return dict(configs)


def _groups(named: Mapping[str, SimConfig], data: Dataset | None) -> list[list[PreparedConfig]]:
    """Prepare the configs and group them by static structure and data set."""
    # Load each data set once, because configs share a group only if their data is the same object.
    loaded: dict[Any, Any] = {}
    groups: dict[Any, list[PreparedConfig]] = {}
    for label, config in named.items():
        learning = config.learning if isinstance(config, SimConfig) else None
        source = learning.data if data is None and type(learning) is Learning else None
        config, dataset = prepare(config, loaded.get(source, data))
        if source is not None:
            loaded[source] = dataset
        if type(learning) is Learning:
            weights = learning.start, learning.start_missing
            dataset = loaded.setdefault((source, *weights), dataset)
        if data is not None and config.learning is not None:
            digest = with_weights(dataset, None).digest
            in_words = Given(num_train=config.learning.data.num_train, digest=digest)
            config = config.override({"learning.data": in_words})
        structure = jax.tree.structure(config)
        prepared = PreparedConfig(label, config, dataset)
        groups.setdefault((structure, id(dataset)), []).append(prepared)
    return list(groups.values())


# Latest digest of each customized program, keyed by config structure, quantities and data shapes.
_DIGESTS: dict[Any, str] = {}


def _custom(group: list[PreparedConfig], keys: Array, quantities: Quantities) -> dict[str, str]:
    """Return the program digest of each config in a group, or {} if no component is custom.

    Tracing the program also reveals errors in custom components before any run starts.
    """
    config = group[0].config
    data = group[0].data
    parts = ", ".join(provenance.custom_parts(config, quantities))
    if not parts:
        return {}
    digest = provenance.program_digest(config, data, keys, quantities)
    program = jax.tree.structure(config), quantities, shapes_of(data)
    if _DIGESTS.setdefault(program, digest) != digest:
        compiled_steps.cache_clear()  # a constant has changed since the last trace
        compiled_init.cache_clear()
        _DIGESTS[program] = digest
    return {f"code or a constant of {parts} in {each.label!r}": digest for each in group}


def shapes_of(data: Any) -> tuple[Any, ...]:
    """Return the shape and dtype of each array in a data set."""
    return tuple((np.shape(leaf), str(leaf.dtype)) for leaf in jax.tree.leaves(data))


def _sharing_policies(groups: list[list[PreparedConfig]]) -> list[list[PreparedConfig]]:
    """Let groups that differ only in their policies and run lengths share one program."""
    families: dict[Any, list[int]] = {}
    for number, group in enumerate(groups):
        family = _family(group[0].config, group[0].data)
        if family is not None:
            families.setdefault(family, []).append(number)
    shared = list(groups)
    for numbers in families.values():
        policies = [groups[number][0].config.policy for number in numbers]
        choices = tuple({jax.tree.structure(policy): policy for policy in policies}.values())
        if len(choices) == 1:
            continue
        for number in numbers:
            shared[number] = [
                prepared._replace(config=one_of(prepared.config, choices))
                for prepared in groups[number]
            ]
    return shared


def _family(config: SimConfig, data: Any) -> Any:
    """Return a grouping key for program sharing, or None if the policy cannot share a program."""
    policy = config.policy
    if type(policy) not in POLICIES or policy.alone:
        return None
    rest = config.replace(policy=Random(), num_rounds=1, eval_every=1)
    structure = jax.tree.structure((rest, data))
    return structure, config.cohort_size, policy.releases, shapes_of(data)


def one_of(config: SimConfig, choices: tuple[PolicyConfig, ...]) -> SimConfig:
    """Wrap a config's policy in a ``OneOf`` of ``choices``, with the original policy active."""
    if not choices:
        return config
    place = [*map(jax.tree.structure, choices)].index(jax.tree.structure(config.policy))
    choices = (*choices[:place], config.policy, *choices[place + 1 :])
    return config.replace(policy=OneOf(choices=choices, number=jnp.asarray(place, jnp.int32)))


def threads_of(mesh: Mesh) -> int:
    """Return the number of concurrent chunks (one per core on a single CPU device, otherwise 1).

    XLA uses several cores only for large operations, whereas concurrent chunks use all cores.
    """
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def chunking_of(
    config: SimConfig,
    data: Any,
    num_runs: int,
    quantities: Quantities,
    execution: Execution,
    *,
    num_devices: int,
    threads: int,
    memory_limit: float,
    max_batch: int | None,
) -> Chunking:
    """Divide a group's runs into chunks. If set, ``max_batch`` overrides ``memory_limit``."""
    threads = min(threads, num_runs)
    if max_batch is None:
        state = state_shapes(config, data)
        fitting = memory_limit * 2**30 / run_bytes(config, state, quantities)
        threads = max(1, min(threads, int(fitting)))
        width = int(fitting / threads)
        if threads > 1:
            together = min(config.cohort_size, execution.client_batch or config.cohort_size)
            kept = learner_of(config, data).client_bytes(state.learning) * together
            width = min(width, KEPT_IN_THREAD // max(kept, 1))
        width = max(1, width)
    else:
        threads = min(threads, max_batch)
        width = math.ceil(max_batch / threads / num_devices)
    on_each = math.ceil(num_runs / num_devices)
    batch = num_devices * _few_widths(on_each, width, threads)
    return Chunking(num_runs, batch, min(SEGMENTS, config.num_rounds), threads)


def _few_widths(num_runs: int, max_width: int, threads: int) -> int:
    """Return the batch size of each thread, for a device with ``num_runs`` runs."""
    if threads > 1:
        # Only small runs are faster in a batch. If there are many runs, each run is probably small.
        wanted = next(width for width, runs in IN_THREAD if num_runs >= runs)
    else:
        wanted = next(width for width in WIDTHS if width >= num_runs)
    return next(width for width in reversed(WIDTHS) if width <= min(wanted, max_width))


def run_bytes(config: SimConfig, state: State, quantities: Quantities) -> int:
    """Estimate the device memory of one run, in bytes."""
    cohort = config.cohort_size * model_bytes(state.learning)
    record = recorded_bytes(quantities, config)
    leaves = [x for x in jax.tree.leaves(state) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return max(1, STATES * tree_bytes(leaves) + RECORDS * record + MODEL_COPIES * cohort)
