"""Results of sweeps that nobody ran, for tests of what reads them."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from pause_jax import config_file, presets
from pause_jax.config import SimConfig
from pause_jax.run.record.quantities import QUANTITIES
from pause_jax.world.latency import Pareto

_SIZES = {"round": 20, "eval_round": 4, "client": 6, "slot": 2}
_KINDS = {"played": True, "in_time": True}
_WHOLE = ("clients", "counts", "queried", "data_size", "num_played")
_NEVER = ("first_nonfinite_round", "first_broken_round", "broken_rules", "queried")


def small_config(**changes) -> SimConfig:
    """A config of the sizes of these results."""
    # A law whose expectation takes few operations: a report computes each by a program.
    config = presets.digits_small("random").replace(latency=Pareto())
    return config.replace(num_clients=6, num_selected=2, num_rounds=20, eval_every=5, **changes)


def with_client_accuracy(result: xr.Dataset) -> xr.Dataset:
    """The result with accuracies of 0.5, 0.4, ..., 0 at the six clients after the last evaluation.

    The second of several configs has a tenth more at every client.
    """
    each = 0.5 - np.arange(6) / 10 + 0.1 * np.arange(result.sizes["config"])[:, None, None, None]
    shape = (*(result.sizes[dim] for dim in ("config", "seed", "eval_round")), 6)
    values = np.broadcast_to(each, shape).copy()
    values[:, :, :-1] = 0.9
    dims = ("config", "seed", "eval_round", "client")
    return result.assign(client_accuracy=(dims, values))


def made(
    configs: Mapping[str, SimConfig | None],
    seeds: int = 3,
    learning: str = "accuracy",
    spread: float = 0.02,
) -> xr.Dataset:
    """A result like that of ``sweep``, of configs with less and less accuracy.

    Args:
      configs: by label; None for ``small_config()``.
      seeds: how many.
      learning: ``accuracy``, ``loss`` or ``none``.
      spread: standard deviation of the accuracy over seeds.
    """
    # One generator for what tests compare: a further quantity must not change it.
    rng, others = np.random.default_rng(0), np.random.default_rng(1)
    head, data = (len(configs), seeds), {}
    for name, quantity in QUANTITIES.items():
        shape = (*head, *(_SIZES[dim] for dim in quantity.dims))
        values = np.ones(shape, bool) if name in _KINDS else others.random(shape, np.float32)
        if name in _WHOLE or name in _NEVER:
            values = np.full(shape, 0 if name in _NEVER else 7, np.int32)
        data[name] = (("config", "seed", *quantity.dims), values)
    place = np.arange(len(configs))[:, None, None]
    rise = np.array([0.3, 0.6, 0.85, 0.9])
    noise = spread * rng.standard_normal((*head, 4))
    accuracy = np.clip(rise - 0.1 * place + noise, 0, 1)
    nothing = np.full((*head, 4), np.nan)
    dims = ("config", "seed", "eval_round")
    data["test_accuracy"] = (dims, accuracy if learning == "accuracy" else nothing)
    data["test_loss"] = (dims, nothing if learning == "none" else 1.2 - accuracy)
    clock = np.cumsum(rng.random((*head, 20)) + 0.5, axis=2)
    data["clock"] = (("config", "seed", "round"), clock)
    data["eval_clock"] = (dims, clock[..., 4::5])
    data["clients"] = (("config", "seed", "round", "slot"), np.zeros((*head, 20, 2), np.int32))
    texts = [config_file.dumps(config or small_config()) for config in configs.values()]
    units = [(config or small_config()).privacy.unit for config in configs.values()]
    coords = {
        "config": list(configs),
        "seed": np.arange(seeds),
        "round": np.arange(1, 21),
        "eval_round": np.arange(5, 21, 5),
        "client": np.arange(6),
        "epsilon_unit": ("config", units),
        "num_parameters": ("config", [10] * len(configs)),
        "unnoised": ("config", [""] * len(configs)),
        "config_toml": ("config", texts),
        "data_digest": ("config", [""] * len(configs)),
        "reward.gamma": ("config", np.arange(len(configs)) / 2),
    }
    return xr.Dataset(
        data,
        coords=coords,
        attrs={"pause_jax": "0", "interrupted": "no", "seed": 5, "command": "a & b"},
    )
