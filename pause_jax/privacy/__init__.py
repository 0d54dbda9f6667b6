"""Local differential privacy: budgets, mechanisms and empirical audits."""

# Names imported as "X as X" are used by other subpackages but are not public.
# ruff: noqa: I001

from pause_jax.privacy.budget import (
    BUDGETS as BUDGETS, Budget, Constant, Geometric, Schedule, Table, Uniform,
    Unlimited as Unlimited,
)  # fmt: skip
from pause_jax.privacy.budget_law import (
    BudgetLaw, LogNormalBudgets, PerClient, Tiers,
)  # fmt: skip
from pause_jax.privacy.gaussian import GaussianMechanism
from pause_jax.privacy.mechanisms import (
    Budgeted, L1Laplace, Mechanism, NoPrivacy, PerCoordinateLaplace,
)  # fmt: skip
from pause_jax.privacy.projection import Projected
from pause_jax.privacy.sphere import DuchiL2, PrivUnitG

MECHANISMS = (
    NoPrivacy, PerCoordinateLaplace, L1Laplace, GaussianMechanism, PrivUnitG, DuchiL2, Projected,
)  # fmt: skip

__all__ = [
    "Budget", "BudgetLaw", "Budgeted", "Constant", "DuchiL2", "GaussianMechanism",
    "Geometric", "L1Laplace", "LogNormalBudgets", "Mechanism", "NoPrivacy", "PerClient",
    "PerCoordinateLaplace", "PrivUnitG", "Projected", "Schedule", "Table", "Tiers",
    "Uniform",
]  # fmt: skip
