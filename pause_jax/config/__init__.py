"""The config of a simulation, its validation, presets and files."""

from pause_jax.config.sim_config import SimConfig, stack
from pause_jax.config.sim_config import canonical as canonical
from pause_jax.config.sim_config import loaded as loaded
from pause_jax.config.sim_config import validate as validate
from pause_jax.config.sim_config import with_budgets as with_budgets

__all__ = ["SimConfig", "stack"]
