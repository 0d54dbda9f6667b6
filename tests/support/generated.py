"""Configs drawn from the rules of their own fields, and values that no field has a rule for."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from pause_jax import Asynchronous, SimConfig, Synchronous
from pause_jax.base.registry import choices
from pause_jax.base.struct import Config, Rule, fields, is_node, is_static, nested
from tests.support.runs import ASK

# What fixes a shape or a loop is at most so much more than its least, so that runs are short.
SMALL = 5
LARGEST = float(np.finfo(np.float32).max)

WEIRD: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 2.5, -0.0, 1e-30, 1e30, 1e300, -1e300, 5e-324, 10**30, -(10**30),
    2**31, float("nan"), float("inf"), -float("inf"), 1j,
    "", "x", "none", "nan", "1", "two\nlines", "no\0file", "ünïcode", b"bytes",
    (), (1, 2), (None,), ("a", ()), [], [1.0, 2.0], {}, {"name": "pause"}, set(),
    object, Config(), SimConfig, len,
    np.float32(1.5), np.int64(2), np.bool_(True), np.float64("nan"), np.zeros(0), np.ones((2, 2)),
    np.asarray("x"), np.asarray(None), np.datetime64("2020-01-01"),
    jnp.asarray(2), jnp.asarray(1.5), jnp.asarray([1.0, 2.0]),
)  # fmt: skip


def kinds(kind: type[Config]) -> list[type[Config]]:
    """The library's choices for a nested config."""
    ours = [cls for cls in choices(kind).values() if cls.__module__.startswith("pause_jax.")]
    return ours or [kind]


def every_kind(cls: type[Config] = SimConfig) -> set[type[Config]]:
    """All classes of configs that a config may hold, at any depth."""
    found: set[type[Config]] = set()
    new = {cls}
    while new:
        found |= new
        nodes = [field for each in new for field in dataclasses.fields(each) if is_node(field)]
        new = {kind for field in nodes for kind in kinds(field.metadata["rule"].kind)} - found
    return found


def _numbers(rule: Rule) -> st.SearchStrategy[float]:
    low = rule.above if rule.at_least is None else rule.at_least
    least = -LARGEST if low is None else float(np.float32(low))
    most = LARGEST if rule.at_most is None else float(np.float32(rule.at_most))

    def between(low: float, high: float) -> st.SearchStrategy[float]:
        """Ends that the rule does not admit are left out."""
        no_low, no_high = (not rule.admitted(end) for end in (low, high))
        return st.floats(low, high, width=32, exclude_min=no_low, exclude_max=no_high)

    return between(max(least, -10.0), min(most, 10.0)) | between(least, most)


def _whole(rule: Rule) -> st.SearchStrategy[int]:
    low = int(rule.at_least or 0)
    most = low + SMALL if rule.at_most is None else min(low + SMALL, int(rule.at_most))
    return st.integers(low, most)


def _static(field: dataclasses.Field[Any], rule: Rule) -> st.SearchStrategy[Any]:
    if rule.choices is not None:
        return st.sampled_from(rule.choices)
    if isinstance(field.default, tuple) and rule.kind in (int, float):
        entry = _whole(rule) if rule.kind is int else _numbers(rule)
        return st.lists(entry, max_size=3).map(tuple)
    if rule.kind is bool:
        return st.booleans()
    if rule.kind is int:
        return _whole(rule)
    if rule.kind is float:
        return _numbers(rule)
    return st.just(field.default)


@functools.cache
def values(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    """Values that keep the rule of a field."""
    rule = field.metadata["rule"]
    if is_node(field):
        drawn = st.sampled_from(kinds(rule.kind)).flatmap(configs)
    else:
        drawn = _static(field, rule) if is_static(field) else _numbers(rule)
    return st.none() | drawn if rule.optional else drawn


@functools.cache
def configs(cls: type[Config]) -> st.SearchStrategy[Any]:
    """Configs of a class, each field by its own rule; those of several fields may be broken."""
    return st.builds(cls, **{field.name: values(field) for field in dataclasses.fields(cls)})


@st.composite
def simulations(draw: st.DrawFn, learning: bool) -> SimConfig:
    """A config of a few clients, whose numbers fit each other; without ``learning`` it can run."""
    parts = {
        field.name: draw(values(field))
        for field in dataclasses.fields(SimConfig)
        if learning or field.name != "learning"
    }
    clients = draw(st.integers(1, SMALL))
    parts["num_clients"], parts["num_selected"] = clients, draw(st.integers(1, clients))
    parts["wait_for"] = draw(st.none() | st.integers(1, clients))
    clock, policy = parts["clock"], parts["policy"]
    if policy.name in ASK:
        clock = parts["clock"] = Synchronous()
    if isinstance(clock, Asynchronous):
        asked = policy.cohort_size(clients, parts["num_selected"])
        parts["clock"] = clock = clock.replace(
            concurrency=draw(st.integers(asked, clients)),
            buffer=draw(st.integers(1, clients)),
            open_slots=draw(st.none() | st.integers(1, asked)),
        )
        parts["deadline"] = parts["wait_for"] = None
    if parts["deadline"] is not None:
        parts["deadline"] = max(parts["deadline"], float(parts["latency"].min_latency))
    if (parts["deadline"], parts["wait_for"]) == (None, None):
        parts["stale_updates"] = "lost"
    return SimConfig(**{"learning": None, **parts})


@st.composite
def renumbered(draw: st.DrawFn, config: SimConfig) -> SimConfig:
    """The same structure with other numbers, each by its own rule."""
    changes = {}
    for path, part in nested(config):
        for name, value, rule, field in fields(part):
            if not is_node(field) and not is_static(field) and value is not None:
                changes[f"{path}.{name}" if path else name] = draw(_numbers(rule))
    return config.override(changes)


def paths(config: Config, path: str = "") -> list[str]:
    """The dotted path of every field, at any depth."""
    found = []
    for name, value, _, field in fields(config):
        here = f"{path}.{name}" if path else name
        found.append(here)
        if is_node(field) and isinstance(value, Config):
            found += paths(value, here)
    return found


@st.composite
def damaged(draw: st.DrawFn) -> SimConfig:
    """A config with weird values in one field or two."""
    config = draw(simulations(learning=True))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(paths(config)))
        config = config.override({path: draw(st.sampled_from(WEIRD))})
    return config
