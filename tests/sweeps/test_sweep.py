"""Sweeps: equality with single runs, compilations, labels, chunks and interrupts."""

import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from pause_jax import (
    ConfigError,
    SweepInterrupted,
    config_file,
    policies,
    presets,
    simulate,
    sweep,
)
from pause_jax.learning import Execution, Linear
from pause_jax.run.preflight import prepare
from pause_jax.run.programs import ROOMS, program_spec
from pause_jax.run.record.result import chosen
from pause_jax.sweeps import batch, execute, plan
from pause_jax.sweeps.labels import Rows
from tests.support.compilations import Compilations
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

RECORDED = ("clients", "clock", "spent", "reward", "counts")
FLOATS = ("latency", "clock", "max_spent", "spent", "reward", "genie_reward", "regret")


def bandit(policy="pause", **changes):
    base = presets.digits_small(policy).replace(learning=None, num_rounds=20, track_regret=False)
    return base.replace(**changes)


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(3), 3)


@pytest.fixture
def two_cores(monkeypatch):
    """On any machine a sweep plays two chunks at a time."""
    monkeypatch.setattr(plan, "threads_of", lambda mesh: 2)


@pytest.fixture(scope="module")
def learned(keys):
    base = presets.digits_small("pause").replace(num_rounds=20, eval_every=8)
    base = base.override({"learning.model": Linear()})
    configs = {"five": base, "zero": base.override({"reward.gamma": 0.0})}
    return configs, sweep(configs, keys[:2], progress=False)


def test_row_equals_the_single_run(learned, keys):
    configs, data = learned
    for label, config in configs.items():
        row, single = data.sel(config=label, seed=1), simulate(config, keys[1])
        for name in ("clients", "counts"):
            np.testing.assert_array_equal(row[name], getattr(single, name))
        for name in FLOATS:
            np.testing.assert_allclose(row[name], getattr(single, name), rtol=1e-5, atol=1e-6)
        # Batched matrix products round differently, and twenty rounds of Adam carry it on.
        for name in ("train_loss", "test_loss", "test_accuracy"):
            np.testing.assert_allclose(row[name], getattr(single, name), rtol=0.02, atol=0.02)


def test_chunk_size_and_threads_do_not_change_results(keys, monkeypatch):
    configs = [bandit().override({"reward.gamma": g}) for g in (0.0, 5.0)]
    results = []
    for threads, max_batch, expected in ((1, None, 8), (1, 2, 2), (3, None, 1)):
        monkeypatch.setattr(plan, "threads_of", lambda mesh, threads=threads: threads)
        given = {"record": RECORDED, "max_batch": max_batch}
        assert plan.plan_sweep(configs, keys, **given).chunkings[0].batch == expected
        results.append(sweep(configs, keys, progress=False, **given))
    for result in results[1:]:
        xr.testing.assert_allclose(result, results[0], rtol=1e-6, atol=1e-5)


SETUP = (chosen(RECORDED), Execution())


def chunking_for(config, data, num_runs, num_devices, threads, memory_limit, max_batch):
    limits: dict[str, Any] = {"memory_limit": memory_limit, "max_batch": max_batch}
    return plan.chunking_of(
        config, data, num_runs, *SETUP, num_devices=num_devices, threads=threads, **limits
    )


def play(config, keys, tick):
    """Run one by one in two threads."""
    planned = plan.plan_sweep(config, keys, record=RECORDED)
    chunking = plan.Chunking(num_runs=len(keys), batch=1, segments=20, threads=2)
    planned = planned._replace(chunkings=[chunking])
    return batch.run_chunks(planned, planned.chunks, tick)


def test_threads_stop_when_the_iterator_is_closed(keys):
    many = jax.random.split(keys[0], 200)
    ticks = []

    def tick(segments):
        ticks.append(segments)

    parts = play(bandit(), many, tick)
    next(parts)
    parts.close()
    stopped = len(ticks)
    assert 20 <= stopped < 200 * 20
    time.sleep(0.1)
    assert len(ticks) == stopped, "a thread kept running"


def test_failure_in_a_thread_ends_the_sweep(keys):
    ticks = itertools.count()

    def tick(segments):
        if next(ticks) == 25:
            raise RuntimeError("out of memory")

    parts = play(bandit(), keys, tick)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(parts)


def test_each_static_structure_compiles_once(keys, two_cores):
    config = bandit(num_clients=12)
    values = [config.override({"reward.gamma": g}) for g in (0.0, 1.0, 2.0, 3.0)]
    others = [value.override({"reward.alpha": 3.0}) for value in values]
    longer = config.replace(num_rounds=300, eval_every=7)
    five, one = jax.random.split(keys[0], 5), keys[1]
    simulate(config, keys[0])
    sweep(config, keys, progress=False)
    compilations = Compilations()
    sweep(config, five, progress=False)
    sweep(values[:3], keys, progress=False)
    sweep(values, keys, progress=False)
    sweep(others, keys, progress=False)
    assert len(sweep(longer, keys, progress=False)["round"]) == 300
    assert len(simulate(longer, one).clock) == 300
    assert compilations.programs == 0
    sweep([bandit("random", num_clients=12)], keys, progress=False)
    assert 0 < compilations.programs <= 3


def test_large_rounds_are_not_padded():
    small, large = bandit("all"), bandit("all", num_clients=100_000)
    assert program_spec(small, None, SETUP[0]).room == ROOMS[0] > small.num_rounds
    assert program_spec(large, None, SETUP[0]) == (large.num_rounds, True, "small")
    assert program_spec(large, None, SETUP[0], longest=3) == (3, True, "small")


def test_chunks_respect_the_memory_limit():
    config, data = prepare(bandit())
    tiny = chunking_for(config, data, 3, 1, 1, memory_limit=1e-9, max_batch=None)
    assert (tiny.batch, len(tiny.firsts)) == (1, 3)
    assert chunking_for(config, data, 3, 1, 2, memory_limit=1e-9, max_batch=None).threads == 1
    ample = chunking_for(config, data, 3, 1, 1, memory_limit=2.0, max_batch=None)
    assert (ample.batch, len(ample.firsts)) == (4, 1)
    # Learning takes more memory, and eight devices have more.
    learned = prepare(presets.digits_small().replace(num_rounds=20))
    sizes = [
        chunking_for(*learned, 10_000, devices, threads, memory_limit=0.02, max_batch=None).batch
        for devices, threads in ((1, 1), (8, 1), (1, 4))
    ]
    assert 4 < sizes[0] < 10_000
    assert sizes[1] == pytest.approx(8 * sizes[0], rel=0.2)
    assert sizes[0] / 8 <= sizes[2] <= sizes[0] / 4


def test_thread_width_fits_in_the_cache_of_a_core():
    small = prepare(presets.digits_small())
    wide = prepare(presets.digits_small().override({"learning.model.hidden": (1000, 1000)}))
    plans = [
        chunking_for(*each, 64, 1, 2, memory_limit=8.0, max_batch=None) for each in (small, wide)
    ]
    assert 1 < plans[0].batch <= 32
    assert (plans[1].batch, plans[1].threads) == (1, 2)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 16), st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 100)), st.integers(1, 100),
)  # fmt: skip
def test_plan_covers_every_run(num_runs, num_devices, threads, max_batch, rounds):
    config, data = prepare(bandit().replace(num_rounds=rounds))
    chunking = chunking_for(config, data, num_runs, num_devices, threads, 1e-4, max_batch)
    assert chunking.batch % num_devices == 0
    assert list(chunking.firsts) == list(range(0, num_runs, chunking.batch))
    assert chunking.segments == min(rounds, plan.SEGMENTS)
    if max_batch is not None:
        assert chunking.threads <= threads
        assert chunking.threads * chunking.batch < max_batch + chunking.threads * num_devices


def test_dataset_has_labels_and_fill_values(keys):
    configs = {
        "fastest": bandit("fastest"),
        "all": bandit("all").replace(num_rounds=10),
        "small": bandit("fastest", num_clients=6, num_selected=2),
    }
    data = sweep(configs, keys, progress=False)
    assert dict(data.sizes) == {
        "config": 3, "seed": 3, "round": 20, "slot": 30, "client": 30, "eval_round": 4,
        "word": 2,
    }  # fmt: skip
    assert data.config.values.tolist() == ["fastest", "all", "small"]
    assert data["num_rounds"].values.tolist() == [20, 10, 20]
    assert data["policy"].values.tolist() == ["fastest", "all", "fastest"]
    assert "reward.gamma" not in data.coords
    assert (data.clients.sel(config="fastest").isel(slot=slice(5, None)) == -1).all()
    assert (data.counts.sel(config="small").isel(client=slice(6, None)) == -1).all()
    assert data.clock.sel(config="all", round=slice(11, None)).isnull().all()
    assert data.clock.sel(config="all", round=10).notnull().all()
    for name, config in configs.items():
        text = data.config_toml.sel(config=name).item()
        assert text == config_file.dumps(config)


def test_swept_field_is_a_coordinate(learned):
    _, data = learned
    assert data["reward.gamma"].values.tolist() == [5.0, 0.0]
    assert data.eval_round.values.tolist() == [8, 16, 20]
    np.testing.assert_array_equal(data.eval_clock, data.clock.sel(round=[8, 16, 20]))
    assert data.epsilon_unit.values.tolist() == ["coordinate", "coordinate"]


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_result_survives_a_round_trip_to_file(learned, tmp_path, suffix):
    _, data = learned
    path = tmp_path / f"data.{suffix}"
    if suffix == "nc":
        data.to_netcdf(path)
        back = xr.load_dataset(path)
    else:
        data.to_zarr(path, zarr_format=2, consolidated=True)
        back = xr.open_zarr(path, consolidated=True).load()
    for name in data.data_vars:
        np.testing.assert_array_equal(back[name], data[name])
    assert back.config_toml.values.tolist() == data.config_toml.values.tolist()


def test_all_configs_are_validated_before_any_run(keys, monkeypatch):
    monkeypatch.setattr(execute, "run_chunks", lambda *_: pytest.fail("a run was started"))
    bad = bandit().override({"privacy.budget.total_epsilon": 0.0})
    with pytest.raises(ConfigError, match="total_epsilon"):
        sweep([bandit(), bad], keys, progress=False)


# All of an interrupt use one program.
ONE_BY_ONE = {"max_batch": 1, "record": RECORDED, "progress": False}


def fail_in_chunk(monkeypatch, number, failure):
    """Let a sweep fail after so many finished chunks."""
    original, finished = batch.run_chunks, list[Rows]()

    def fail(*args):
        for part in original(*args):
            if len(finished) == number:
                raise failure
            finished.append(part)
            yield part

    monkeypatch.setattr(execute, "run_chunks", fail)


@pytest.mark.parametrize(
    ("failure", "gammas", "chunks", "words", "seeds"),
    [
        (KeyboardInterrupt, (5.0, 1.0), 4, "4 of 6 runs, 1 of 2 configs", 3),
        (RuntimeError("out of memory"), (5.0, 1.0), 4, "4 of 6 runs, 1 of 2 configs", 3),
        (MemoryError(), (5.0,), 2, "2 of 3 runs, 0 of 1 configs", 2),
        (KeyboardInterrupt, (5.0,), 0, "0 of 3 runs, 0 of 1 configs", 0),
    ],
)
def test_interrupt_keeps_finished_runs(keys, monkeypatch, failure, gammas, chunks, words, seeds):
    configs = {f"{gamma}": bandit().override({"reward.gamma": gamma}) for gamma in gammas}
    whole = sweep(configs, keys, **ONE_BY_ONE)
    fail_in_chunk(monkeypatch, chunks, failure)
    with pytest.raises(SweepInterrupted, match=words) as stopped:
        sweep(configs, keys, **ONE_BY_ONE)
    finished = stopped.value.finished
    if finished is None:
        assert seeds == 0
        return
    assert finished.config.values.tolist() == ["5.0"]
    assert finished.attrs == whole.attrs | {"interrupted": f"after {words}"}
    for name in RECORDED:
        np.testing.assert_array_equal(finished[name], whole[name].isel(config=[0])[:, :seeds])


def test_policies_with_equal_cohort_size_share_a_program(keys, two_cores):
    configs = {name: bandit(name, num_clients=11) for name in ("random", "oort")} | {
        f"sa_pause {weight}": bandit("sa_pause", num_clients=11).override(
            {"policy.index.speed_weight": weight, "policy.search.steps": 30}
        )
        for weight in (0.5, 4.0)
    }
    recorded = ("clients", "clock", "energy", "acceptance_rate", "counts")

    def swept(configs):
        return sweep(configs, keys, progress=False, record=recorded)

    groups = plan.plan_sweep(configs, keys, record=recorded).groups
    # Oort reads losses; the others are one program.
    assert len({jax.tree.structure(group[0].config) for group in groups}) == 2
    alone = swept(configs["random"])
    together = swept(configs)
    compilations = Compilations()
    xr.testing.assert_identical(swept(configs["random"]), alone)
    assert compilations.programs == 0
    for name, config in configs.items():
        apart = swept(config)
        row = together.sel(config=name)
        for quantity in ("clients", "counts"):
            np.testing.assert_array_equal(row[quantity], apart[quantity][0])
        for quantity in ("clock", "energy", "acceptance_rate"):
            np.testing.assert_allclose(row[quantity], apart[quantity][0], rtol=1e-5, atol=1e-5)
    clients = together.clients.sel(config=["sa_pause 0.5", "sa_pause 4.0"])
    assert (clients[0] != clients[1]).any()


@pytest.mark.parametrize("name", policies.NAMED)
def test_policies_that_need_a_separate_program_are_marked(name):
    own, asks = policies.NAMED[name], []
    m = own.cohort_size(6, 3)

    def choose_and_learn(key):
        policy = own.build(context([10] * 6, m, update_size=4))
        asks.append(policy.query)
        state = policy.init()
        selection, _ = policy.select(key, state, jnp.int32(1), jnp.ones(6, bool))
        seen = observation(jnp.ones(m), update=jnp.ones((m, 4)))
        return policy.update(state, selection, seen)

    if not own.alone:
        program = str(jax.make_jaxpr(choose_and_learn)(jax.random.key(0)))
        assert asks == [None]
        assert "pure_callback" not in program
    names = {"power_of_choice", "rbcs_f", "fedcs", "clustered_similarity", "refl"}
    names |= {"divfl", "hics_fl", "fedcor", "greedyfed", "tifl"}
    assert own.alone == (own.name in names)
