"""Fleets, contestants and claims, fixed before the runs."""

from __future__ import annotations

import jax
import xarray as xr

from pause_jax import Asynchronous, Learning, SimConfig, Synchronous, sweep
from pause_jax.learning import Digits, Dirichlet, Mlp
from pause_jax.policies import named
from pause_jax.privacy import PerCoordinateLaplace, Uniform
from pause_jax.world.availability import Diurnal
from pause_jax.world.latency import LogNormal, Network, Pareto

BUDGET = Uniform(total_epsilon=20_000.0, horizon=100.0)
BASE = SimConfig(
    num_clients=60, num_selected=5, num_rounds=2000, eval_every=5, track_regret=False,
    privacy=PerCoordinateLaplace(sensitivity=0.003, budget=BUDGET),
    learning=Learning(data=Digits(), model=Mlp(hidden=(32,)), partition=Dirichlet()),
)  # fmt: skip
FLEETS = {
    "equal": BASE.replace(latency=LogNormal(fastest=0.4, slowest=0.4)),
    "tails": BASE.replace(latency=Pareto()),
    "phones": BASE.replace(
        latency=Network(), availability_trace=Diurnal(recheck=30.0), dropout=0.1
    ),
}
FEDBUFF = Asynchronous(concurrency=10, buffer=5, open_slots=1)
# Server of Pisces, whose pace limits staleness to about b = 10 server steps.
PACED = FEDBUFF.replace(buffer=20, pace=10.0)
# Policy and clock by name.
CONTESTANTS = {
    "rounds, random": ("random", Synchronous()),
    "rounds, pause": ("pause", Synchronous()),
    "fedbuff, random": ("random", FEDBUFF),
    "fedbuff, pause": ("pause", FEDBUFF),
    "fedbuff, useful rate": ("pause_useful_rate", FEDBUFF),
    "fedbuff, fastest": ("fastest", FEDBUFF),
    "fedbuff, pisces": ("pisces", FEDBUFF),
    "paced, pisces": ("pisces", PACED),
    # Not in any claim: added after a first run, to separate the effects of pace and choice.
    "paced, random": ("random", PACED),
}
# For each fleet, the first contestant is above the second.
CLAIMS = (
    ("fedbuff, random", "rounds, pause"),
    ("fedbuff, pause", "fedbuff, random"),
    ("fedbuff, random", "fedbuff, fastest"),
    ("fedbuff, useful rate", "fedbuff, pause"),
    ("fedbuff, pisces", "fedbuff, random"),
    ("paced, pisces", "fedbuff, random"),
)


def play(base: SimConfig, keys: jax.Array, rounds: int) -> tuple[xr.Dataset, float]:
    """Run all contestants for the mean duration of ``rounds`` random rounds, returned too."""
    alone = base.replace(policy=named("random"), num_rounds=rounds)
    clock = sweep(alone, keys[:4], record=("clock",), progress=False).clock
    seconds = float(clock.isel(round=-1).mean())
    base = base.replace(max_seconds=seconds)
    configs = {
        name: base.replace(policy=named(policy), clock=clock)
        for name, (policy, clock) in CONTESTANTS.items()
    }
    record = "clock", "eval_clock", "test_accuracy", "num_played", "counts", "waiting", "staleness"
    return sweep(configs, keys, record=record, progress=False), seconds
