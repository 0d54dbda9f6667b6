"""Local differential privacy: budget schedules and mechanisms."""

from pause_jax.privacy.budget import BUDGETS, Budget, Geometric, Power, Table, Uniform
from pause_jax.privacy.mechanisms import (
    MECHANISMS,
    L1Laplace,
    Mechanism,
    NoPrivacy,
    PerCoordinateLaplace,
)

__all__ = [
    "BUDGETS",
    "MECHANISMS",
    "Budget",
    "Geometric",
    "L1Laplace",
    "Mechanism",
    "NoPrivacy",
    "PerCoordinateLaplace",
    "Power",
    "Table",
    "Uniform",
]
