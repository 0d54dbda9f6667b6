"""pause_jax: client selection for federated learning, simulated in JAX.

``simulate(config, key)`` runs one simulation, ``sweep(configs, keys)`` many.
"""

from pause_jax import (
    bandit,
    latency,
    learning,
    metrics,
    policies,
    presets,
    privacy,
    regret,
    reward,
    search,
)
from pause_jax.config import Learning, SimConfig, stack
from pause_jax.result import Result
from pause_jax.reward import Reward
from pause_jax.simulate import simulate
from pause_jax.struct import ConfigError
from pause_jax.sweep import SweepInterrupted, sweep

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Learning",
    "Result",
    "Reward",
    "SimConfig",
    "SweepInterrupted",
    "bandit",
    "latency",
    "learning",
    "metrics",
    "policies",
    "presets",
    "privacy",
    "regret",
    "reward",
    "search",
    "simulate",
    "stack",
    "sweep",
]
