"""Whether the speeds of a fleet can be told apart: a warning of latencies in other units."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.compilation import compiler_options, compiling
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.world.latency import Latency

# Share of the fastest client's latency. PAUSE with Thompson sampling (30 lognormal clients, 300
# rounds, 8 seeds) ends after 251 s at 1/2, 284 s at 1/10 and 298 s at 1/50; random, after 293 s.
FAR_BELOW = 1 / 50
# Clients whose latencies are looked at, at most.
_MOST = 1000


def warn_of_speeds(config: SimConfig) -> None:
    """Warn if ``min_latency`` is far below the fastest client, as with latencies in milliseconds.

    Speeds, ``min_latency`` by latency, are then all near 0, beside exploration bonuses of about 1.

    Args:
      config: its files are read. Within a trace nothing is known, and nothing said.
    """
    latency = config.latency
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(latency)):
        return
    latency = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), latency)
    try:
        with compiling():
            fastest = _compiled()(latency, min(config.num_clients, _MOST))
    except ConfigError:  # what a round consists of is known in the run only
        return
    if not isinstance(fastest, jax.core.Tracer):
        warn_if_far(float(latency.min_latency), float(fastest))


def warn_if_far(least: float, fastest: float) -> None:
    """Warn if tau_min, seconds, is far below the fastest client's latency."""
    if least < FAR_BELOW * fastest:
        warnings.warn(
            f"latency.min_latency = {least:g}: is far below the {fastest:.3g} s of the fastest "
            "client, so all speeds are near 0 and policies hardly learn. Give all latencies in "
            "seconds, and set it a little below the fastest client.",
            stacklevel=3,
        )


@functools.cache
def _compiled() -> Callable[[Latency, int], Array]:
    """``_fastest``; not at import, where JAX must not start."""
    options = compiler_options(quickly=True, level=0)
    return jax.jit(_fastest, static_argnums=1, compiler_options=options)


def _fastest(latency: Latency, num_clients: int) -> Array:
    """Expected seconds of the fastest client."""
    return jnp.min(latency.expected_latency(num_clients))
