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
import logging
import os
import sys
import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax

from pause_jax import bandit, latency, learning, policies, presets, privacy, reward, search
from pause_jax._moved import MovedFinder
from pause_jax.bandit.reward import Reward
from pause_jax.base import renamed
from pause_jax.base.struct import ConfigError
from pause_jax.config import Asynchronous, SimConfig, Synchronous, stack
from pause_jax.learning import Learning
from pause_jax.run.record.quantities import QUANTITIES
from pause_jax.run.record.quantity import Quantity, quantity
from pause_jax.run.record.result import Result
from pause_jax.run.simulate import simulate
from pause_jax.sweep.execute import SweepInterrupted
from pause_jax.sweep.merge import merge
from pause_jax.sweep.sweep import run_shard, sweep

if TYPE_CHECKING:
    from pause_jax.analysis import metrics, plotting, regret
    from pause_jax.config import config_file
    from pause_jax.sweep import distributed

try:
    __version__ = metadata.version(__name__)
except metadata.PackageNotFoundError:  # a checkout that was not installed
    __version__ = "unknown"

sys.meta_path.insert(0, MovedFinder())

# What most programs do not need is imported when it is asked for.
_LATER = {
    "config_file": "pause_jax.config.config_file",
    "distributed": "pause_jax.sweep.distributed",
    "metrics": "pause_jax.analysis.metrics",
    "plotting": "pause_jax.analysis.plotting",
    "regret": "pause_jax.analysis.regret",
}

if jax.__version__ == "0.10.2" or jax.__version__.startswith("0.11."):
    warnings.warn(
        f"JAX {jax.__version__} computes wrong results or crashes on CPUs (jax-ml/jax#39103, "
        "#39257): install jax==0.10.1, or 0.12 and newer on Python >= 3.12.",
        stacklevel=2,
    )

# JAX 0.10.0 and 0.10.1 compute the largest, least or mean entry of a product wrongly on a CPU, from
# the 32,769th client on where the sums are over 3 (tests/support/canaries.py), unless XLA
# leaves out the library of kernels that 0.10.2 is wrong with. XLA reads this when JAX first meets
# its devices.
_KERNELS = "--xla_cpu_experimental_ynn_fusion_type="
_flags = os.environ.get("XLA_FLAGS", "")
if jax.__version__ in ("0.10.0", "0.10.1") and _KERNELS not in _flags:
    from jax._src import xla_bridge  # later versions may do without

    os.environ["XLA_FLAGS"] = f"{_flags} {_KERNELS}".strip()
    if xla_bridge.backends_are_initialized():
        warnings.warn(
            f"JAX {jax.__version__} was used before pause_jax was imported, so some reductions of "
            f"products are wrong on CPUs: import pause_jax first, or set XLA_FLAGS={_KERNELS}",
            stacklevel=2,
        )


# JAX 0.10.1 logs two long lines for each program from a cache: the processor does not list two
# tuning hints of the compiler (jax-ml/jax#38445). Errors are raised at any level. JAX sets the
# variable to 1; another value is the user's.
if (
    os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1"
    and jax.config.values["jax_logging_level"] == "NOTSET"
):
    _levels = {name: logging.getLogger(name).level for name in ("jax", "jaxlib")}
    # The first update sets the levels of C++ and Python. The second one keeps that of C++.
    jax.config.update("jax_logging_level", "CRITICAL")
    jax.config.update("jax_logging_level", "NOTSET")
    for _name, _level in _levels.items():
        logging.getLogger(_name).setLevel(_level)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(_LATER[name])
    if name == "play_shard":
        renamed.warn("play_shard", "run_shard")
        return run_shard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
