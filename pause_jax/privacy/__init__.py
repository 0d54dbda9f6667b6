"""Local differential privacy: budget schedules and mechanisms."""

from pause_jax.privacy.budget import BUDGETS, Budget, Geometric, Power, Table, Uniform
from pause_jax.privacy.gaussian import GaussianMechanism
from pause_jax.privacy.mechanisms import L1Laplace, Mechanism, NoPrivacy, PerCoordinateLaplace
from pause_jax.privacy.projection import Projected
from pause_jax.privacy.sphere import DuchiL2, PrivUnitG

MECHANISMS = (
    NoPrivacy,
    PerCoordinateLaplace,
    L1Laplace,
    GaussianMechanism,
    PrivUnitG,
    DuchiL2,
    Projected,
)

__all__ = [
    "BUDGETS",
    "MECHANISMS",
    "Budget",
    "DuchiL2",
    "GaussianMechanism",
    "Geometric",
    "L1Laplace",
    "Mechanism",
    "NoPrivacy",
    "PerCoordinateLaplace",
    "Power",
    "PrivUnitG",
    "Projected",
    "Table",
    "Uniform",
]
