"""Selection policies and their registry."""

# Names imported as "X as X" are used by other subpackages and are not in `__all__`.
# ruff: noqa: I001

from pause_jax.bandit.protocol import Info, Observation, Selection, no_info
from pause_jax.bandit.search import Annealing, Exhaustive
from pause_jax.base.registry import look_up, name_settings
from pause_jax.policies.base import (
    Answer, Context, Policy, PolicyConfig, Query, check_selected as check_selected,
    learns_of_training as learns_of_training, policy_of as policy_of, readings as readings,
)  # fmt: skip
from pause_jax.policies.baselines import All, Fastest, Random, RoundRobin
from pause_jax.policies.choose import (
    by_data_size, draw_clients, equal_weights, stateless, top_clients,
)  # fmt: skip
from pause_jax.policies.clustered import ClusteredSimilarity, HicsFl
from pause_jax.policies.divfl import DivFl
from pause_jax.policies.e3cs import E3cs
from pause_jax.policies.fedcor import FedCor
from pause_jax.policies.fedcs import FedCs
from pause_jax.policies.greedyfed import GreedyFed
from pause_jax.policies.index import (
    INDEX_RULES as INDEX_RULES, DiscountedUcb, IndexRule, KlUcb, Thompson, Ucb, UcbV, UsefulRate,
)  # fmt: skip
from pause_jax.policies.one_of import OneOf as OneOf
from pause_jax.policies.latency_bandits import CsUcb, CsUcbQ, RbcsF
from pause_jax.policies.oort import Oort, Pisces
from pause_jax.policies.pause import Bsfl, Genie, Mixture, Pause, maximiser as maximiser
from pause_jax.policies.polaris import Polaris
from pause_jax.policies.power_of_choice import PowerOfChoice
from pause_jax.policies.privacy_aware import BudgetGroups, NoiseSampling, TolerantFirst
from pause_jax.policies.refl import Refl
from pause_jax.policies.sampling import ClusteredSize, F3ast, MdSampling
from pause_jax.policies.speed_turns import SpeedTurns
from pause_jax.policies.tifl import Tifl

POLICIES: tuple[type[PolicyConfig], ...] = (
    Pause, Bsfl, CsUcb, CsUcbQ, RbcsF, PowerOfChoice, Oort, FedCs, MdSampling, ClusteredSize,
    ClusteredSimilarity, DivFl, HicsFl, FedCor, GreedyFed, E3cs, F3ast, Polaris, Refl, Pisces,
    Tifl, NoiseSampling, TolerantFirst, BudgetGroups, Mixture, SpeedTurns, Random, RoundRobin,
    Fastest, All, Genie,
)  # fmt: skip

# Policies, keyed by the names used on the command line, in config files and in presets.
NAMED: dict[str, PolicyConfig] = {
    **{policy.name: policy() for policy in POLICIES},
    "pause_exhaustive": Pause(search=Exhaustive()),
    "sa_pause": Pause(search=Annealing()),
    "vanilla_sa": Pause(search=Annealing(neighbourhood="vanilla")),
    "alsa": Bsfl(search=Annealing(neighbourhood="alsa")),
    "pause_kl_ucb": Pause(index=KlUcb()),
    "pause_ucb_v": Pause(index=UcbV()),
    "pause_thompson": Pause(index=Thompson()),
    "pause_discounted": Pause(index=DiscountedUcb()),
    "pause_useful_rate": Pause(index=UsefulRate()),
    "cpow_d": PowerOfChoice(loss="batch"),
    "rpow_d": PowerOfChoice(loss="stale"),
    "adapow_d": PowerOfChoice(schedule="linear"),
    "noise_sampling_unbiased": NoiseSampling(form="unbiased"),
    "e3cs_inc": E3cs(quota=1.0, schedule="late"),
    "random_by_data": Random(weighting="data"),
}
name_settings(PolicyConfig, NAMED)


def named(policy: str | PolicyConfig) -> PolicyConfig:
    """Return the policy config registered under a name. A config is returned unchanged.

    Raises:
      ConfigError: if the name is unknown. The message lists the known names.

    Examples:
      >>> from pause_jax.policies import named
      >>> named("pause_thompson").index
      Thompson()
      >>> named("rondom")
      Traceback (most recent call last):
      pause_jax.base.struct.ConfigError: policy = 'rondom': ...
    """
    return policy if isinstance(policy, PolicyConfig) else look_up(PolicyConfig, policy, "policy")


__all__ = [
    "NAMED", "All", "Answer", "Bsfl", "BudgetGroups", "ClusteredSimilarity", "ClusteredSize",
    "Context", "CsUcb", "CsUcbQ", "DiscountedUcb", "DivFl", "E3cs", "F3ast", "Fastest", "FedCor",
    "FedCs", "Genie", "GreedyFed", "HicsFl", "IndexRule", "Info", "KlUcb", "MdSampling", "Mixture",
    "NoiseSampling", "Observation", "Oort", "Pause", "Pisces", "Polaris", "Policy", "PolicyConfig",
    "PowerOfChoice", "Query", "Random", "RbcsF", "Refl", "RoundRobin", "Selection", "SpeedTurns",
    "Thompson", "Tifl", "TolerantFirst", "Ucb", "UcbV", "UsefulRate", "by_data_size",
    "draw_clients", "equal_weights", "named", "no_info", "stateless", "top_clients",
]  # fmt: skip
