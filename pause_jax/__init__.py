"""pause_jax: client selection for federated learning, simulated in JAX.

``simulate(config, key)`` runs one simulation, ``sweep(configs, keys)`` many.

Examples:
  A comparison, without learning: every policy meets the same latencies.

  >>> import jax
  >>> from pause_jax import SimConfig, sweep
  >>> from pause_jax.policies import named
  >>> base = SimConfig(num_clients=8, num_selected=2, num_rounds=50, learning=None)
  >>> configs = {name: base.replace(policy=named(name)) for name in ("fastest", "random")}
  >>> result = sweep(configs, jax.random.split(jax.random.key(0), 3), progress=False)
  >>> dict(result.clock.sizes)
  {'config': 2, 'seed': 3, 'round': 50}
  >>> seconds = result.clock.isel(round=-1).mean("seed")
  >>> bool(seconds.sel(config="fastest") < seconds.sel(config="random"))
  True
"""

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pause_jax.sweep as _room  # before the function of that name takes its place
from pause_jax._moved import MovedFinder
from pause_jax.base import renamed, versions

if TYPE_CHECKING:
    from pause_jax import bandit, latency, learning, policies, presets, privacy, reward, search
    from pause_jax.analysis import metrics, plotting, regret
    from pause_jax.bandit.reward import Reward
    from pause_jax.base.struct import ConfigError
    from pause_jax.config import Asynchronous, SimConfig, Synchronous, config_file, stack
    from pause_jax.learning import Learning
    from pause_jax.run.record.quantities import QUANTITIES
    from pause_jax.run.record.quantity import Quantity, quantity
    from pause_jax.run.record.result import Result
    from pause_jax.run.simulate import simulate
    from pause_jax.sweep import distributed
    from pause_jax.sweep.execute import SweepInterrupted
    from pause_jax.sweep.merge import merge
    from pause_jax.sweep.sweep import run_shard, sweep

__version__ = versions.version(__name__)

sys.meta_path.insert(0, MovedFinder())

# Every name is imported when it is first asked for: a program pays for what it uses, and
# `pause-jax --help` not even for JAX. Module -> its names here; None for the module itself.
_PLACES: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(
        ("bandit", "latency", "learning", "policies", "presets", "privacy", "reward", "search")
    ),
    **dict.fromkeys(("analysis.metrics", "analysis.plotting", "analysis.regret")),
    **dict.fromkeys(("config.config_file", "sweep.distributed")),
    "bandit.reward": ("Reward",),
    "base.struct": ("ConfigError",),
    "config": ("Asynchronous", "SimConfig", "Synchronous", "stack"),
    "learning.config": ("Learning",),
    "run.record.quantities": ("QUANTITIES",),
    "run.record.quantity": ("Quantity", "quantity"),
    "run.record.result": ("Result",),
    "run.simulate": ("simulate",),
    "sweep.execute": ("SweepInterrupted",),
    "sweep.merge": ("merge",),
    "sweep.sweep": ("run_shard", "sweep"),
}
_PLACE_OF = {
    name: place for place, names in _PLACES.items() for name in names or (place.rpartition(".")[2],)
}
del _room, sweep


def __getattr__(name: str) -> Any:
    if name == "play_shard":
        renamed.warn("play_shard", "run_shard")
        name = "run_shard"
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACE_OF[name]
    found = importlib.import_module(f"{__name__}.{place}")
    globals()[name] = found if _PLACES[place] is None else getattr(found, name)
    return globals()[name]


_jax = versions.version("jax")
if _jax == "unknown":  # without metadata
    from jax import __version__ as _jax

if _jax == "0.10.2" or _jax.startswith("0.11."):
    warnings.warn(
        f"JAX {_jax} computes wrong results or crashes on CPUs (jax-ml/jax#39103, #39257): "
        "install jax==0.10.1, or 0.12 and newer on Python >= 3.12.",
        stacklevel=2,
    )

# JAX 0.10.0 and 0.10.1 compute the largest, least or mean entry of a product wrongly on a CPU, from
# the 32,769th client on where the sums are over 3 (tests/support/canaries.py), unless XLA
# leaves out the library of kernels that 0.10.2 is wrong with. XLA reads this when JAX first meets
# its devices.
_KERNELS = "--xla_cpu_experimental_ynn_fusion_type="
_flags = os.environ.get("XLA_FLAGS", "")
if _jax in ("0.10.0", "0.10.1") and _KERNELS not in _flags:
    os.environ["XLA_FLAGS"] = f"{_flags} {_KERNELS}".strip()
    # Of JAX's own: later versions may do without.
    _bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if _bridge is not None and _bridge.backends_are_initialized():
        warnings.warn(
            f"JAX {_jax} was used before pause_jax was imported, so some reductions of products "
            f"are wrong on CPUs: import pause_jax first, or set XLA_FLAGS={_KERNELS}",
            stacklevel=2,
        )

__all__ = [
    "QUANTITIES",
    "Asynchronous",
    "ConfigError",
    "Learning",
    "Quantity",
    "Result",
    "Reward",
    "SimConfig",
    "SweepInterrupted",
    "Synchronous",
    "bandit",
    "config_file",
    "distributed",
    "latency",
    "learning",
    "merge",
    "metrics",
    "plotting",
    "policies",
    "presets",
    "privacy",
    "quantity",
    "regret",
    "reward",
    "run_shard",
    "search",
    "simulate",
    "stack",
    "sweep",
]
