"""Run in a process of its own with eight CPU devices: compares them with one. Prints ``ok``."""

import jax
import numpy as np
import xarray as xr

from pause_jax import SimConfig, presets, simulate, sweep
from pause_jax.learning import Dirichlet, Linear
from pause_jax.policies import named
from pause_jax.privacy import L1Laplace, NoPrivacy

jax.config.update("jax_num_cpu_devices", 8)


def main() -> None:
    assert len(jax.devices()) == 8
    keys = jax.random.split(jax.random.key(0), 3)
    base = presets.digits_small().replace(num_rounds=6, eval_every=3, num_clients=8, num_selected=3)
    base = base.replace(privacy=L1Laplace(), track_regret=False)
    base = base.override({"learning.model": Linear()})
    asks = {"policy": named("clustered_similarity"), "privacy": NoPrivacy()}
    # Eleven and twelve runs: not a multiple of the devices.
    configs = {f"{g:g}": base.override({"reward.gamma": g}) for g in (0.0, 1.0, 5.0, 20.0)}
    configs["asks"] = base.replace(**asks)
    eight = sweep(configs, keys, progress=False)
    one = sweep(configs, keys, devices=jax.devices()[:1], progress=False)
    for name in ("clients", "counts", "data_size", "seed"):
        np.testing.assert_array_equal(eight[name], one[name])
    xr.testing.assert_allclose(eight, one, rtol=1e-4, atol=1e-4)
    alone = base.replace(learning=None, policy=named("random"))
    third = sweep(alone, keys[:1], devices=jax.devices()[2:3], progress=False)
    xr.testing.assert_equal(third, sweep(alone, keys[:1], progress=False))
    spread_a_cohort(base, keys[0])
    print("ok")


def spread_a_cohort(base: SimConfig, key: jax.Array) -> None:
    """One run, its cohort of 11 clients shared by eight devices."""
    unequal = {"learning.partition": Dirichlet(), "learning.keep_optimizer_state": True}
    config = base.replace(num_clients=12, num_selected=11).override(unequal)
    one = simulate(config, key)
    eight = simulate(config, key, devices=jax.devices())
    np.testing.assert_array_equal(eight.clients, one.clients)
    assert len(jax.tree.leaves(eight.variables)[0].sharding.device_set) == 8
    for a, b in zip(jax.tree.leaves(eight), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
