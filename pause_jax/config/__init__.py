"""Simulation configs, with their validation, presets and TOML files."""

from pause_jax.config.clock import (
    Asynchronous,
    Polynomial,
    StalenessWeight,
    Synchronous,
)
from pause_jax.config.sim_config import SimConfig, stack
from pause_jax.config.sim_config import canonical as canonical
from pause_jax.config.sim_config import loaded as loaded
from pause_jax.config.sim_config import validate as validate
from pause_jax.config.sim_config import with_budgets as with_budgets

from pause_jax.config import config_file as config_file  # isort: skip
from pause_jax.config import presets as presets  # isort: skip

__all__ = [
    "Asynchronous", "Polynomial", "SimConfig", "StalenessWeight", "Synchronous", "stack",
]  # fmt: skip
