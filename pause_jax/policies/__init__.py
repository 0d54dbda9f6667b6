"""Selection policies and their registry."""

from typing import cast

from pause_jax.policies.base import (
    Answer,
    Context,
    Info,
    Observation,
    Policy,
    PolicyConfig,
    Query,
    Selection,
    by_data_size,
    check_selected,
    draw_clients,
    equal_weights,
    no_info,
    stateless,
    top_clients,
)
from pause_jax.policies.baselines import All, Fastest, Random, RoundRobin
from pause_jax.policies.clustered import ClusteredSimilarity
from pause_jax.policies.cs_ucb import CsUcb, CsUcbQ
from pause_jax.policies.fedcs import FedCs
from pause_jax.policies.index import INDEX_RULES, IndexRule, KlUcb, Thompson, Ucb, UcbV
from pause_jax.policies.oort import Oort
from pause_jax.policies.pause import Bsfl, Genie, Pause, maximiser
from pause_jax.policies.power_of_choice import PowerOfChoice
from pause_jax.policies.rbcs_f import RbcsF
from pause_jax.policies.sampling import ClusteredSize, MdSampling
from pause_jax.search import Annealing, Exhaustive
from pause_jax.struct import ConfigError, choices, nearest

POLICIES: tuple[type[PolicyConfig], ...] = (
    Pause,
    Bsfl,
    CsUcb,
    CsUcbQ,
    RbcsF,
    PowerOfChoice,
    Oort,
    FedCs,
    MdSampling,
    ClusteredSize,
    ClusteredSimilarity,
    Random,
    RoundRobin,
    Fastest,
    All,
    Genie,
)

# What a name on the command line or in `policy="..."` stands for: the registered policies, and
# named settings of them.
NAMED: dict[str, PolicyConfig] = {
    **{policy.name: policy() for policy in POLICIES},
    "pause_exhaustive": Pause(search=Exhaustive()),
    "sa_pause": Pause(search=Annealing()),
    "vanilla_sa": Pause(search=Annealing(neighbourhood="vanilla")),
    "alsa": Bsfl(search=Annealing(neighbourhood="alsa")),
    "pause_kl_ucb": Pause(index=KlUcb()),
    "pause_ucb_v": Pause(index=UcbV()),
    "pause_thompson": Pause(index=Thompson()),
    "cpow_d": PowerOfChoice(loss="batch"),
    "rpow_d": PowerOfChoice(loss="stale"),
    "adapow_d": PowerOfChoice(schedule="linear"),
    "random_by_data": Random(weighting="data"),
}


def named(policy: str | PolicyConfig) -> PolicyConfig:
    """The config that a name stands for, also a user's own policy's; a config passes through.

    Raises:
      ConfigError: for an unknown name, with the names that exist.
    """
    if isinstance(policy, PolicyConfig):
        return policy
    own = choices(PolicyConfig)
    for cls in POLICIES:
        if own[cls.name] is not cls:
            raise ConfigError(
                f"{own[cls.name].__module__}.{own[cls.name].__name__}.name = {cls.name!r}: is the "
                "name of a policy of the library. Give your policy another one."
            )
    if policy in NAMED:
        return NAMED[policy]
    if policy not in own:
        known = [*NAMED, *(name for name in own if name not in NAMED)]
        raise ConfigError(
            f"policy = {policy!r}: must be one of {', '.join(known)}.{nearest(policy, known)} "
            "A policy of your own needs a `name`, and its file must be loaded (--load FILE.py)."
        )
    return cast(PolicyConfig, own[policy]())


__all__ = [
    "INDEX_RULES",
    "NAMED",
    "POLICIES",
    "All",
    "Answer",
    "Bsfl",
    "ClusteredSimilarity",
    "ClusteredSize",
    "Context",
    "CsUcb",
    "CsUcbQ",
    "Fastest",
    "FedCs",
    "Genie",
    "IndexRule",
    "Info",
    "KlUcb",
    "MdSampling",
    "Observation",
    "Oort",
    "Pause",
    "Policy",
    "PolicyConfig",
    "PowerOfChoice",
    "Query",
    "Random",
    "RbcsF",
    "RoundRobin",
    "Selection",
    "Thompson",
    "Ucb",
    "UcbV",
    "by_data_size",
    "check_selected",
    "draw_clients",
    "equal_weights",
    "maximiser",
    "named",
    "no_info",
    "stateless",
    "top_clients",
]
