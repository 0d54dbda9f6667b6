"""Runs reproduce, batch and compile once; what learning leaves in a result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import simulate, stack
from pause_jax.learning import Digits
from pause_jax.learning import data as data_module
from pause_jax.policies import NAMED
from pause_jax.privacy import NoPrivacy
from pause_jax.run.contract import NotFinite
from pause_jax.world.latency import Traces
from tests.support.compilations import Compilations
from tests.support.runs import (
    BANDIT,
    KEY,
    LEARN,
    assert_close,
    assert_same_bits,
    learn_run,
)

pytestmark = pytest.mark.slow

# --- reproducibility, batching, compilation


def test_key_alone_determines_the_bits_of_a_run():
    one, other = learn_run(0), learn_run(1)
    assert_same_bits(one, simulate(LEARN, jax.random.key(0)))
    for name in ("clients", "latency", "train_loss", "test_loss", "data_size"):
        assert not np.array_equal(getattr(one, name), getattr(other, name)), name


def test_vmap_over_keys_and_configs_matches_single_runs():
    weights = [{"reward__alpha": 0.0, "reward__gamma": gamma} for gamma in (0.0, 0.5, 50.0, 50.0)]
    seeds = (0, 1, 0, 2)
    singles = [learn_run(seed, **each) for seed, each in zip(seeds, weights, strict=True)]
    configs = stack(
        [LEARN.override({k.replace("__", "."): v for k, v in w.items()}) for w in weights]
    )
    batched = jax.vmap(simulate)(configs, jnp.stack([jax.random.key(seed) for seed in seeds]))
    batched = jax.tree.map(np.asarray, batched)
    for i, single in enumerate(singles):
        row = jax.tree.map(lambda leaf, i=i: leaf[i], batched)
        np.testing.assert_array_equal(row.clients, single.clients)
        np.testing.assert_allclose(row.latency, single.latency, rtol=1e-6)
        np.testing.assert_array_equal(row.data_size, single.data_size)
        assert_close(row, single)
    assert not np.array_equal(batched.clients[0], batched.clients[2]), "gamma has no effect"


@pytest.mark.nightly
def test_result_is_the_same_without_jit():
    config = BANDIT.replace(
        num_clients=3,
        num_selected=2,
        num_rounds=2,
        track_regret=False,
        policy=NAMED["random"],
        privacy=NoPrivacy(),
        latency=Traces.of([[0.1], [0.3], [0.2]]),
    )
    with jax.disable_jit():
        slow = simulate(config, KEY)
    assert_close(slow, simulate(config, KEY))


def test_other_keys_and_values_compile_nothing():
    config = BANDIT.replace(num_clients=5, policy=NAMED["random"])
    values = {
        "reward.alpha": 3,
        "reward.gamma": np.float64(2.0),
        "latency.std": jnp.float32(0.01),
        "availability": 0.9,
        "privacy.budget.horizon": 40,
    }
    of_learning = {"learning.learning_rate": 0.02, "learning.partition.concentration": 1.0}
    key = jax.random.key(9)
    first = Compilations()
    simulate(config, KEY)
    assert first.programs, "the count of compilations sees nothing"
    learn_run()
    second = Compilations()
    simulate(config, key)
    simulate(config.override(values), KEY)
    simulate(LEARN.override(of_learning), key)
    assert second.programs == 0


def test_simulating_inside_a_trace_leaves_the_data_set_usable():
    data_module._digits.cache_clear()
    try:
        jax.eval_shape(lambda key: simulate(LEARN, key), KEY)
        assert not isinstance(Digits().load().x_train, jax.core.Tracer)
    finally:
        data_module._digits.cache_clear()


# --- learning


def test_first_nonfinite_round_is_found():
    # Clients release twice from round 4 on (three rounds visit everyone), and the second time the
    # budget is e^-40 of the first: noise beyond float32.
    with pytest.warns(NotFinite, match="first in round 4"):
        result = learn_run(privacy__budget__decay=40.0, privacy__sensitivity=1e23)
    np.testing.assert_array_equal(np.sort(np.ravel(result.clients[:3])), np.arange(6))
    assert result.first_nonfinite_round == 4
    np.testing.assert_array_equal(np.isnan(result.test_accuracy), [False, True, True])
