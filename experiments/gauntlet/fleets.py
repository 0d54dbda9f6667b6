"""The fleets and the policies of the gauntlet."""

from __future__ import annotations

from experiments.which_policy import fleets as nine
from experiments.which_policy.fleets import BASE, sorted_digits
from pause_jax import SimConfig
from pause_jax.learning import Dataset, Natural
from pause_jax.policies import NAMED, PolicyConfig
from pause_jax.privacy import (
    Constant,
    LogNormalBudgets,
    PerClient,
    PerCoordinateLaplace,
    Schedule,
    Tiers,
    Uniform,
)

# With whom each is compared.
YARDSTICK = "random"
# Left out, and why.
LEFT_OUT = {"pause_exhaustive": "chooses as pause does, and scores 142,506 cohorts a round for it"}
# Samples of the test set that the server holds on every fleet, for policies that value updates.
HELD = 60
MEANING = {
    **nine.MEANING,
    "tiers": "budgets of 3, 12 and 48 releases for 40, 40 and 20 % of the clients",
    "unequal": "24 releases each, whose noise differs: log-normal budgets, sigma 1",
    "shy": "the third that has the labels 7 to 9 has budget for 6 releases, the others for 20",
}


def policies() -> dict[str, PolicyConfig]:
    """The library's named policies, but those left out."""
    return {name: policy for name, policy in NAMED.items() if name not in LEFT_OUT}


def fleets() -> dict[str, tuple[SimConfig, Dataset | None]]:
    """The nine fleets of ``which_policy`` and three of unequal budgets, with their data if they are
    not the config's.
    """
    # Budgets as numbers: each release costs 200 / 12, as in the fleet `spent`.
    own = Constant(total_epsilon=1.0, per_release=200.0 / 12)
    tiers = Tiers(values=(50.0, 200.0, 800.0), shares=(0.4, 0.4, 0.2))
    fading = Uniform(total_epsilon=200.0, horizon=24.0, law=LogNormalBudgets(sigma=1.0))
    # The last third of the clients has the labels 7 to 9, and less budget than the others. Labels
    # that few clients have need larger steps and less noise to be learnt at all.
    mild = Constant(total_epsilon=1.0, per_release=100.0)
    shy = mild.replace(law=PerClient(values=(2000.0,) * 20 + (600.0,) * 10))
    every = {
        **nine.fleets(),
        "tiers": (private(own.replace(law=tiers)), None),
        "unequal": (private(fading), None),
        "shy": (private(shy, 0.02).override({"learning.partition": Natural()}), sorted_digits()),
    }
    return {
        name: (config.override({"learning.validation": HELD}), data)
        for name, (config, data) in every.items()
    }


def private(budget: Schedule, sensitivity: float = 0.003) -> SimConfig:
    """The basic fleet with the papers' noise; clients whose budget is spent are not chosen."""
    return BASE.replace(privacy=PerCoordinateLaplace(sensitivity=sensitivity, budget=budget))
