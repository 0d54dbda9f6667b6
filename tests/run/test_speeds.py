"""A warning where all speeds are near 0, as with latencies in milliseconds."""

import warnings

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, simulate, sweep
from pause_jax.base.memory import refused_if_too_large
from pause_jax.policies import named
from pause_jax.run.preflight import warn_if_far
from pause_jax.world.latency import LogNormal, Traces

pytestmark = pytest.mark.slow

BASE = SimConfig(
    num_clients=4, num_selected=2, num_rounds=2, learning=None, policy=named("random"),
    track_regret=False,
)  # fmt: skip
FAR = r"latency.min_latency = 0.05: is far below the .* s of the fastest client"


@pytest.mark.parametrize(
    "latency",
    [LogNormal(fastest=100.0, slowest=1000.0), Traces.of([[300.0, 420.0], [800.0]] * 2)],
    ids=lambda latency: latency.name,
)
def test_latencies_in_milliseconds_warn_once(latency):
    with pytest.warns(UserWarning, match=FAR) as warned:
        simulate(BASE.replace(latency=latency), jax.random.key(0))
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)


def test_sweep_warns_of_latencies_in_milliseconds():
    config = BASE.replace(latency=LogNormal(fastest=100.0, slowest=1000.0))
    with pytest.warns(UserWarning, match=FAR):
        sweep(config, jax.random.split(jax.random.key(0), 2), progress=False)


def test_warning_bound_is_a_fiftieth_of_the_fastest_client():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_far(0.05, 2.5)
        warn_if_far(np.full(2, 0.05), np.array([0.1, 2.5]))
    with pytest.warns(UserWarning, match="0.05: is far below the 3 s"):
        warn_if_far(np.full(2, 0.05), np.array([0.1, 3.0]))


def test_out_of_memory_gives_one_clear_error():
    with (
        pytest.raises(ConfigError, match=r"num_clients = 9: out of memory .* 5 bytes\). Fewer\."),
        refused_if_too_large("num_clients = 9", "Fewer."),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.")
    with pytest.raises(jax.errors.JaxRuntimeError), refused_if_too_large("a", "b"):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_run_out_of_memory_is_refused(monkeypatch):
    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.")

    monkeypatch.setattr("pause_jax.run.simulate.single_run", exhausted)
    with pytest.raises(ConfigError, match=r"num_clients = 4: out of memory"):
        simulate(BASE, jax.random.key(0))
