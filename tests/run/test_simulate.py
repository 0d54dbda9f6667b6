"""Runs reproduce, batch and compile once; what learning leaves in a result."""

import contextlib
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Learning, SimConfig, simulate, stack
from pause_jax.learning import Cnn3, Dataset, Digits, Execution
from pause_jax.learning import data as data_module
from pause_jax.learning.models import Model
from pause_jax.policies import NAMED
from pause_jax.privacy import (
    NoPrivacy,
    PerCoordinateLaplace,
)
from pause_jax.run.contract import NotFinite
from pause_jax.run.preflight import prepare
from pause_jax.run.programs import compiled_steps, program_spec, state_shapes
from pause_jax.run.record.result import chosen, result_at_end, with_rounds
from pause_jax.run.rounds.loop import advance
from tests.run.test_server_steps import Fixed
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


@pytest.mark.parametrize("config", [BANDIT, LEARN], ids=["bandit", "learning"])
def test_same_key_gives_the_same_bits(config):
    assert_same_bits(simulate(config, KEY), simulate(config, jax.random.key(0)))


def test_different_key_gives_a_different_run():
    one, other = learn_run(0), learn_run(1)
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


def test_advancing_in_steps_matches_the_full_run():
    config, data = prepare(LEARN)
    quantities = chosen(None)
    jit_advance = jax.jit(advance, static_argnums=4)
    spec = program_spec(config, data, quantities)
    steps = compiled_steps(spec, quantities, Execution(), None)
    state, _ = steps.init(spec.config_of(config), data, KEY, np.int32(0))
    records = []
    for first in (1, 5):
        state, record = jit_advance(config, data, state, np.arange(first, first + 4), quantities)
        records.append(record)
    record = jax.tree.map(lambda *parts: np.concatenate(parts), *records)
    ended = steps.finish(spec.config_of(config), state)
    pieces, whole = with_rounds(ended, config, record, quantities), learn_run()
    np.testing.assert_array_equal(pieces.clients, whole.clients)
    np.testing.assert_allclose(pieces.latency, whole.latency, rtol=1e-6)
    assert_close(pieces, whole)


def test_result_is_the_same_without_jit():
    config = BANDIT.replace(
        num_clients=3,
        num_selected=2,
        num_rounds=2,
        track_regret=False,
        policy=NAMED["random"],
        privacy=NoPrivacy(),
        latency=Fixed(seconds=(0.1, 0.3, 0.2)),
    )
    with jax.disable_jit():
        slow = simulate(config, KEY)
    assert_close(slow, simulate(config, KEY))


@contextlib.contextmanager
def compilations(caplog):
    """Collects one entry for each compilation."""
    found: list[str] = []
    caplog.clear()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        yield found
    found += [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]


def test_second_call_with_other_values_compiles_nothing(caplog):
    config = BANDIT.replace(num_clients=5, policy=NAMED["random"])
    with compilations(caplog) as first:
        simulate(config, KEY)
    assert first, "the count of compilations sees nothing"
    other_key = jax.random.key(1)
    others = config.override(
        {
            "reward.alpha": 3,
            "reward.gamma": np.float64(2.0),
            "latency.std": jnp.float32(0.01),
            "availability": 0.9,
            "privacy.budget.horizon": 40,
        }
    )
    with compilations(caplog) as second:
        simulate(config, other_key)
        simulate(others, KEY)
    assert second == []


def test_run_with_learning_compiles_once_for_all_values(caplog):
    learn_run()
    key = jax.random.key(9)
    with compilations(caplog) as again:
        changes = {"learning.learning_rate": 0.02, "learning.partition.concentration": 1.0}
        simulate(LEARN.override(changes), key)
    assert again == []


def test_simulating_inside_a_trace_leaves_the_data_set_usable():
    data_module._digits.cache_clear()
    try:
        jax.eval_shape(lambda key: simulate(LEARN, key), KEY)
        assert not isinstance(Digits().load().x_train, jax.core.Tracer)
    finally:
        data_module._digits.cache_clear()


# --- learning


def test_diverging_learning_rate_is_reported():
    with pytest.warns(NotFinite, match="not finite from round 1 onwards in 1 of 1 seeds"):
        result = learn_run(learning__learning_rate=1e38)
    assert result.first_nonfinite_round == 1
    assert np.all(np.isnan(result.test_accuracy))


def test_first_nonfinite_round_is_found():
    # Clients release twice from round 4 on (three rounds visit everyone), and the second time the
    # budget is e^-40 of the first: noise beyond float32.
    with pytest.warns(NotFinite, match="from round 4 onwards"):
        result = learn_run(privacy__budget__decay=40.0, privacy__sensitivity=1e23)
    np.testing.assert_array_equal(np.sort(np.ravel(result.clients[:3])), np.arange(6))
    assert result.first_nonfinite_round == 4
    np.testing.assert_array_equal(np.isnan(result.test_accuracy), [False, True, True])


def one_client(model: Model) -> SimConfig:
    return SimConfig(
        num_clients=1,
        num_selected=1,
        num_rounds=1,
        track_regret=False,
        policy=NAMED["all"],
        privacy=PerCoordinateLaplace(sensitivity=1e6),
        learning=Learning(model=model, max_steps=1),
    )


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_cnn3_leaves_only_batch_statistics_unnoised(norm):
    data = Dataset.of(
        x=np.zeros((40, 32, 32, 3), np.uint8),
        y=np.arange(40, dtype=np.int32) % 10,
        x_test=np.zeros((4, 32, 32, 3), np.uint8),
        y_test=np.arange(4, dtype=np.int32),
        num_classes=10,
    )
    config, given = prepare(one_client(Cnn3(norm=norm)), data)
    quantities = chosen(("counts",))
    # What a result says of its model is known before the first round: none is traced.
    state = state_shapes(config, given)
    result = jax.eval_shape(lambda state: result_at_end(config, state, quantities), state)
    clear = [f"clear/norm_{i}/{name}" for i in range(6) for name in ("bias", "scale")]
    statistics = [
        f"batch_stats/norm_{i}/statistics/{name}" for i in range(6) for name in ("mean", "var")
    ]
    assert sorted(result.unnoised) == (sorted(clear + statistics) if norm == "batch" else [])
    assert result.num_parameters == (170_474 if norm == "group" else 169_578)
