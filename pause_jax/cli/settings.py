"""Implementation of the options ``--policy``, ``--set`` and ``--vary``."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable
from typing import Any, TypeVar

from pause_jax.base.registry import look_up
from pause_jax.base.struct import Config, ConfigError, prefixed
from pause_jax.cli.options import Source
from pause_jax.config import SimConfig, config_file, validate
from pause_jax.config.presets import PRESETS
from pause_jax.policies import named
from pause_jax.privacy import Mechanism
from pause_jax.sweeps.plan import MOST

C = TypeVar("C", bound=Config)


def changed(config: C, changes: Iterable[str] | None) -> C:
    """Apply the ``--set`` changes to a config."""
    try:
        return config_file.changed(config, changes or ())
    except ConfigError as error:
        raise ConfigError(f"--set {error}") from None


def base_config(base: str, source: Source) -> SimConfig:
    """Return the config of a preset or a file, with the changes that the options specify."""
    policy, colon, mechanism = (source.policy or "").partition(":")
    if base in PRESETS:
        named_policy = {"policy": policy} if policy else {}
        config = PRESETS[base](data_dir=source.data_dir, **named_policy)
    elif source.data_dir is not None:
        raise ConfigError(
            f"--data-dir {source.data_dir}: applies only to presets. Set the folder in {base}."
        )
    elif not os.path.isfile(base):
        raise ConfigError(f"{base}: must be a config file or one of {', '.join(PRESETS)}.")
    else:
        config = config_file.load(base)
        config = config.replace(policy=named(policy)) if policy else config
    rounds = [] if source.rounds is None else [f"num_rounds={source.rounds}"]
    with prefixed(base):
        config = changed(config, [*rounds, *(source.change or ())])
    if colon:
        chosen = look_up(Mechanism, mechanism, "privacy")
        # If the config already has this mechanism, keep the mechanism's fields.
        if type(chosen) is not type(config.privacy):
            config = config.replace(privacy=chosen.with_budget(config.privacy.budget))
    return config


def valid_config(base: str, source: Source) -> SimConfig:
    """Validate and return the config from :func:`base_config`."""
    config = base_config(base, source)
    with prefixed(base):
        validate(config)
    return config


def grid(config: SimConfig, vary: list[str]) -> dict[str, SimConfig]:
    """Return a config for each combination of the values in ``PATH=A,B,...``, keyed by label."""
    axes: list[list[tuple[str, str, Any]]] = []
    for entry in vary:
        path, equals, values = entry.partition("=")
        texts = _separate(values)
        if not equals or not all(texts):
            raise ConfigError(f"--vary {entry}: must be PATH=A,B,..., e.g. reward.gamma=0,1,5.")
        if len(set(texts)) < len(texts):
            raise ConfigError(f"--vary {entry}: a value is listed twice. Remove one.")
        if path in (axis[0][0] for axis in axes):
            raise ConfigError(f"--vary {entry}: {path} is varied twice. Use --vary once per field.")
        axes.append([(path, text, config_file.parse_value(config, path, text)) for text in texts])
    if (number := math.prod(map(len, axes))) > MOST:
        raise ConfigError(
            f"--vary: defines {number} configs, but at most {MOST} are allowed. List fewer values."
        )
    # Shorten each path to its last component, unless two paths end in the same component.
    short = {axis[0][0]: axis[0][0].rpartition(".")[2] for axis in axes}
    if len(set(short.values())) < len(short):
        short = {path: path for path in short}
    configs = {}
    for point in itertools.product(*axes):
        label = ", ".join(f"{short[path]} = {text}" for path, text, _ in point)
        label = label or config.policy.name
        configs[label] = config.override({path: value for path, _, value in point})
    return configs


def _separate(values: str) -> list[str]:
    """Split a list at commas outside brackets."""
    parts, depth = [""], 0
    for letter in values:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
