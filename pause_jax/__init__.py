"""pause_jax: client selection for federated learning, simulated in JAX.

``simulate(config, key)`` runs one simulation, and ``sweep(configs, keys)`` runs many.

Examples:
  Compare two policies without training a model. Both policies see the same latencies.

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

import os
import sys
import warnings

import lazy_loader

from pause_jax.base import versions

# Names in __init__.pyi are imported on first use, so `pause-jax --help` does not wait for JAX.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = versions.version(__name__)

_jax = versions.version("jax")
if _jax == "unknown":  # installed without metadata
    from jax import __version__ as _jax

if _jax == "0.10.2" or _jax.startswith("0.11."):
    warnings.warn(
        f"JAX {_jax} computes wrong results or crashes on CPUs (jax-ml/jax#39103, #39257). "
        "Install jax==0.10.1 or, on Python >= 3.12, jax>=0.12.",
        stacklevel=2,
    )

# On CPUs, JAX 0.10.0 and 0.10.1 compute wrong sums, means, maxima and minima of matrix-vector
# products with inner dimension 3 when vmapped over more than 32,768 clients
# (tests/support/canaries.py). This flag disables the faulty kernels. XLA reads it when JAX
# initializes its devices. Changing the number of devices then fails, which reveals a late import.
_KERNELS = "--xla_cpu_experimental_ynn_fusion_type="
_flags = os.environ.get("XLA_FLAGS", "")
if _jax in ("0.10.0", "0.10.1") and _KERNELS not in _flags:
    os.environ["XLA_FLAGS"] = f"{_flags} {_KERNELS}".strip()
    if "jax" in sys.modules:
        import jax

        _number = jax.config.jax_num_cpu_devices
        try:
            jax.config.update("jax_num_cpu_devices", _number + 2)
            jax.config.update("jax_num_cpu_devices", _number)
        except RuntimeError:
            warnings.warn(
                f"JAX {_jax} was initialized before pause_jax was imported, so some sums, means, "
                "maxima and minima are wrong on CPUs. Import pause_jax first, or set "
                f"XLA_FLAGS={_KERNELS}",
                stacklevel=2,
            )
