"""Run in a process of its own with eight CPU devices: compares them with one. Prints ``ok``."""

import jax
import numpy as np
import xarray as xr

from pause_jax import SimConfig, presets, simulate, sweep
from pause_jax.learning import Dirichlet, Linear
from pause_jax.policies import named
from pause_jax.privacy import L1Laplace

jax.config.update("jax_num_cpu_devices", 8)

RECORDED = (
    *("clients", "counts", "data_size", "clock", "spent", "reward", "train_loss"),
    *("test_loss", "test_accuracy"),
)


def main() -> None:
    assert len(jax.devices()) == 8
    keys = jax.random.split(jax.random.key(0), 3)
    base = presets.digits_small().replace(num_rounds=6, eval_every=3, num_clients=8, num_selected=3)
    base = base.replace(privacy=L1Laplace(), track_regret=False)
    base = base.override({"learning.model": Linear()})
    asks = base.replace(policy=named("clustered_similarity"))
    rates = (0.001, 0.003, 0.01, 0.03)
    # Twelve runs: not a multiple of the devices.
    configs = {f"{rate:g}": asks.override({"learning.learning_rate": rate}) for rate in rates}
    eight = sweep(configs, keys, record=RECORDED, progress=False)
    third = sweep(configs, keys, record=RECORDED, devices=jax.devices()[2:3], progress=False)
    for name in ("clients", "counts", "data_size", "seed"):
        np.testing.assert_array_equal(eight[name], third[name])
    xr.testing.assert_allclose(eight, third, rtol=1e-4, atol=1e-4)
    losses = third.test_loss.values[..., -1]
    assert len(np.unique(np.round(losses, 3))) == losses.size, "one run stands for another"
    spread_a_cohort(base, keys[0])
    print("ok")


def spread_a_cohort(base: SimConfig, key: jax.Array) -> None:
    """One run, its cohort of 11 clients shared by eight devices."""
    unequal = {"learning.partition": Dirichlet(), "learning.keep_optimizer_state": True}
    config = base.replace(num_clients=12, num_selected=11, policy=named("random")).override(unequal)
    one = simulate(config, key, record=RECORDED)
    eight = simulate(config, key, record=RECORDED, devices=jax.devices())
    np.testing.assert_array_equal(eight.clients, one.clients)
    assert len(jax.tree.leaves(eight.variables)[0].sharding.device_set) == 8
    for a, b in zip(jax.tree.leaves(eight), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
