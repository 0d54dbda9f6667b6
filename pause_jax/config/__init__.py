"""The config of a simulation, its validation, presets and files."""

from pause_jax.config.sim_config import SimConfig, canonical, loaded, stack, validate

__all__ = ["SimConfig", "canonical", "loaded", "stack", "validate"]
