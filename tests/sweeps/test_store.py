"""A stopped sweep resumes with the same bits, and a different sweep is rejected."""

import importlib
import json
import logging
import os
import shutil
import sys
import types
import zipfile

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from pause_jax import (
    QUANTITIES,
    Asynchronous,
    ConfigError,
    SweepInterrupted,
    presets,
    quantity,
    sweep,
)
from pause_jax.base import archive
from pause_jax.base.archive import load_arrays, save_arrays
from pause_jax.learning import Classification, Dataset, FedAdam, FlaxModel, Learning, Linear
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy, PerCoordinateLaplace
from pause_jax.sweeps import batch, execute, store
from pause_jax.sweeps.plan import Chunk, plan_sweep
from pause_jax.sweeps.provenance import different, fingerprint
from pause_jax.sweeps.store import Store
from pause_jax.world.latency import Traces
from tests.support.command import python
from tests.sweeps.test_sweep import bandit

pytestmark = pytest.mark.slow


KEY = jax.random.key(0)


FASTEST = bandit("fastest")
CONFIGS = {"one": FASTEST, "two": FASTEST.override({"reward.gamma": 3.0}), "r": bandit("random")}
SETTINGS = {"max_batch": 2, "progress": False}
ON_DATA = bandit(
    "random", num_rounds=1, num_clients=6, learning=Learning(model=Linear()), privacy=NoPrivacy()
)


@pytest.fixture(scope="module", autouse=True)
def two_cores():
    """Sweeps are cut for two cores whatever the machine has: these tests count the chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        yield


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(5), 3)


@pytest.fixture(scope="module")
def undisturbed(keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return sweep(CONFIGS, keys, store=folder / "kept", **SETTINGS), folder / "kept"


@pytest.fixture
def kept(undisturbed, tmp_path):
    """A copy of the finished store."""
    return shutil.copytree(undisturbed[1], tmp_path / "kept")


def played(monkeypatch):
    """The first runs of the chunks that are played from now on."""
    firsts, play = [], batch.run_chunks

    def watched(*arguments):
        for chunk, rows in play(*arguments):
            firsts.append(chunk.first)
            yield chunk, rows

    monkeypatch.setattr(execute, "run_chunks", watched)
    return firsts


def test_store_does_not_change_results(undisturbed, keys):
    xr.testing.assert_identical(undisturbed[0], sweep(CONFIGS, keys, **SETTINGS))


def test_finished_chunks_are_not_rerun(undisturbed, kept, keys, monkeypatch):
    whole = undisturbed[0]
    chunks = sorted(kept.glob("chunk-*.npz"))
    assert len(chunks) == 9
    firsts = played(monkeypatch)
    xr.testing.assert_identical(sweep(CONFIGS, keys, store=kept, **SETTINGS), whole)
    assert firsts == []
    chunks[1].unlink()
    chunks[7].unlink()
    xr.testing.assert_identical(sweep(CONFIGS, keys, store=kept, **SETTINGS), whole)
    assert firsts == [1, 1]


def test_result_has_provenance_attributes(undisturbed, keys):
    result = undisturbed[0]
    np.testing.assert_array_equal(result.key, jax.random.key_data(keys))
    assert result.attrs["interrupted"] == "no"
    assert result.attrs["key_impl"] == "threefry2x32"
    assert len(result.attrs["made_by"]) == 16
    assert result.data_digest.values.tolist() == ["", "", ""]
    mine = Dataset.of(np.eye(60, 4, dtype=np.float32), np.arange(60) % 3)
    told = sweep(ON_DATA, keys[:1], data=mine, progress=False).data_digest
    assert told.values.tolist() == [mine.digest]


@pytest.mark.parametrize("harm", ["cut", "flipped", "other", "empty"])
def test_damaged_chunk_is_rerun(undisturbed, kept, keys, monkeypatch, caplog, harm):
    path = sorted(kept.glob("chunk-*.npz"))[1]
    content = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "flipped":
        with zipfile.ZipFile(path) as file:  # within the values of the largest entry
            largest = max(file.infolist(), key=lambda each: each.file_size)
        content[largest.header_offset + 300] ^= 1
        path.write_bytes(content)
    elif harm == "empty":
        path.write_bytes(b"")
    else:
        arrays = load_arrays(path.read_bytes())
        with path.open("wb") as file:
            save_arrays(file, arrays | {"made_by": np.asarray("0" * 16)})
    firsts = played(monkeypatch)
    xr.testing.assert_identical(sweep(CONFIGS, keys, store=kept, **SETTINGS), undisturbed[0])
    assert firsts == [1]
    assert f"{path} is damaged" in caplog.text


@quantity("round")
def mine(r):
    """The number of the round."""
    return jnp.asarray(r.number, jnp.float32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"configs": CONFIGS | {"two": FASTEST.override({"reward.gamma": 4.0})}},
            r"reward.gamma of 'two' = 4.0 \(was 3.0\)",
        ),
        (
            {"configs": CONFIGS | {"two": bandit("pause")}},
            r"policy of 'two' = pause \(was fastest\)",
        ),
        ({"configs": {name: CONFIGS[name] for name in ("one", "two")}}, "of 'r' was removed"),
        ({"keys": jax.random.split(KEY)}, r"keys = 2 seeds from .* \(was 3 seeds"),
        ({"max_batch": 3}, r"max_batch = 3 \(was 2\)"),
        ({"record": ("clock",)}, "the quantity played was removed"),
        ({"client_batch": 1}, "client_batch"),
        (
            {"record": (*QUANTITIES, mine)},
            "the quantity mine was added; code or a constant of .*mine in 'one' was added",
        ),
    ],
)
def test_store_names_changed_arguments_and_stays_as_it_was(kept, keys, changes, words):
    before = sorted(kept.iterdir())
    with pytest.raises(ConfigError, match=words):
        sweep(**{"configs": CONFIGS, "keys": keys, "store": kept, **SETTINGS, **changes})
    assert sorted(kept.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("code of pause_jax", "0" * 64, "code of pause_jax has changed"),
        ("jax", "0.9.9", r"jax = .* \(was 0.9.9\)"),
        ("platform", "tpu", r"platform = cpu \(was tpu\)"),
        ("threefry_partitionable", False, r"threefry_partitionable = True \(was False\)"),
        ("disable_jit", True, r"disable_jit = False \(was True\)"),
        ("key_impl", "rbg", r"key_impl = threefry2x32 \(was rbg\)"),
    ],
)
def test_store_names_changed_code_and_settings(kept, keys, name, value, words):
    path = kept / "made_by.json"
    table = json.loads(path.read_text())
    table["made_by"][name] = value
    path.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=words):
        sweep(CONFIGS, keys, store=kept, **SETTINGS)


def test_store_names_changed_data(keys, tmp_path):
    x, y = np.eye(60, 4, dtype=np.float32), np.arange(60) % 3
    sweep(ON_DATA, keys[:1], data=Dataset.of(x, y), store=tmp_path, progress=False)
    with pytest.raises(ConfigError, match="data of '0' have changed"):
        sweep(ON_DATA, keys[:1], data=Dataset.of(x + 1, y), store=tmp_path, progress=False)


def test_store_names_a_changed_custom_class_but_accepts_new_comments(keys, tmp_path):
    source = """
import jax
from pause_jax.policies import Random

class Own(Random):
    name = "own_of_a_file"

    def build(self, context):
        policy = super().build(context)
        return policy._replace(
            select=lambda key, *rest: policy.select(jax.random.fold_in(key, 1), *rest)
        )
"""
    module = tmp_path / "own.py"

    def again(text):
        module.write_text(text)
        names = {"__name__": "own"}
        exec(compile(text, str(module), "exec"), names)
        config = bandit(policy=names["Own"](), privacy=NoPrivacy())
        return sweep(config, keys, store=tmp_path / "kept", progress=False)

    first = again(source)
    xr.testing.assert_identical(again(f"# A comment.{source}"), first)
    changed = source.replace("(key, 1)", "(key, 2)")
    with pytest.raises(ConfigError, match=r"code or a constant of own\.Own in '0' has changed"):
        again(changed)


FACTOR = 1.0


def of_a_closure(factor):
    return quantity("round")(lambda r: r.seconds * factor)


def of_a_global(factor):
    globals()["FACTOR"] = factor
    return quantity("round")(lambda r: r.seconds * FACTOR)


def of_another_module(factor):
    helper = types.ModuleType("helper")
    vars(helper)["FACTORS"] = np.full(3, factor)
    return quantity("round")(lambda r: r.seconds * jnp.asarray(vars(helper)["FACTORS"])[0])


@pytest.mark.parametrize("made", [of_a_closure, of_a_global, of_another_module])
def test_changed_constant_of_custom_code_is_detected(keys, tmp_path, made):
    def again(factor):
        mine = made(factor)._replace(name="mine")
        arguments = {"record": ("clock", mine), "store": tmp_path, "progress": False}
        return sweep(bandit("random"), keys[:1], **arguments)

    first = again(2.0)
    np.testing.assert_allclose(first.mine.cumsum("round"), 2 * first.clock, rtol=1e-5)
    xr.testing.assert_identical(again(2.0), first)
    with pytest.raises(ConfigError, match=r"code or a constant of .* in '0' has changed"):
        again(3.0)


CALLS_BACK = """
import jax
import numpy as np
from pause_jax import quantity

def host(seconds):
    return np.float32(2 * seconds)

@quantity("round")
def mine(r):
    shape = jax.ShapeDtypeStruct((), "float32")
    return jax.pure_callback(host, shape, r.seconds, vmap_method="sequential")
"""


def test_source_of_a_part_with_callbacks_is_compared(keys, tmp_path, monkeypatch):
    """What the callback computes is not in the program."""
    monkeypatch.syspath_prepend(tmp_path)

    def digest(source):
        (tmp_path / "calls_back.py").write_text(source)
        sys.modules.pop("calls_back", None)
        record = ("clock", importlib.import_module("calls_back").mine)
        plan = plan_sweep(bandit("random"), keys, record=record)
        return custom(plan)

    assert digest(CALLS_BACK) == digest(CALLS_BACK)
    assert digest(CALLS_BACK) != digest(CALLS_BACK.replace("(2 *", "(3 *"))


@quantity("round")
def of_now(r):
    """The clock times a global."""
    return r.after.clock * FACTOR


@quantity("round")
def begun(r):
    """What the policy's state began with."""
    return r.after.policy


class OfNow(Random):
    """Its state is a global."""

    name = "of_now"

    def build(self, context):
        policy = super().build(context)
        return policy._replace(init=lambda: jnp.float32(FACTOR))


def test_changed_global_recompiles_within_a_process(keys):
    config = bandit("random").replace(policy=OfNow())
    for factor in (2.0, 3.0):
        globals()["FACTOR"] = factor
        result = sweep(config, keys[:1], record=("clock", of_now, begun), progress=False)
        np.testing.assert_allclose(result.of_now, factor * result.clock, rtol=1e-6)
        np.testing.assert_array_equal(result.begun, factor)


def custom(plan):
    """What a plan knows of custom parts."""
    return {name: each for name, each in plan.made_by.items() if name.startswith("code or a")}


def test_class_attributes_of_custom_parts_change_the_digest(keys):
    class Own(PerCoordinateLaplace):
        name = "own"

    class Other(Own):
        name = "own"
        unit = "update"

    def digest(mechanism):
        plan = plan_sweep(bandit("random").replace(privacy=mechanism), keys)
        return list(custom(plan).values())

    assert digest(Own()) == digest(Own())
    assert digest(Own()) != digest(Other())


def test_digests_cover_the_custom_parts_of_every_config(keys):
    class Own(Random):
        name = "own"

    own = bandit("random").replace(policy=Own())
    configs = {"ours": bandit("random"), "a": own, "b": own.override({"reward.gamma": 3.0})}
    part = f"{__name__}.{Own.__qualname__}"
    names = {f"code or a constant of {part} in {label!r}" for label in ("a", "b")}
    assert set(custom(plan_sweep(configs, keys))) == names


def flat(x):
    return x.reshape(len(x), -1)


def fingerprints(factor, names=("custom", "plain")):
    """Of configs with and without parts that a factor changes."""

    @jax.custom_jvp
    def scaled(x):
        return x * factor

    scaled.defjvp(lambda x, t: (scaled(*x), factor * t[0]))

    class Own(Classification):
        name = "own"

        def loss(self, outputs, target):
            return scaled(super().loss(outputs, target))

    net = nn.Sequential([flat, nn.Dense(3), lambda x: scaled(x), nn.Dense(10)])
    custom = {
        "learning.task": Own(),
        "learning.model": FlaxModel.of(net),
        "learning.optimizer": optax.sgd(optax.constant_schedule(factor)),
    }
    base = presets.digits_small("random").replace(
        num_rounds=2, num_clients=5, track_regret=False, privacy=NoPrivacy()
    )
    configs, keys = {"custom": base.override(custom), "plain": base}, jax.random.split(KEY)
    return {name: fingerprint(plan_sweep({name: configs[name]}, keys).made_by) for name in names}


def test_program_digest_is_the_same_in_every_process():
    program = (
        f"import json; from {__name__} import *; print(json.dumps(fingerprints(0.5, ['custom'])))"
    )
    ran = python("-c", program, PYTHONHASHSEED="1", PYTHONPATH=".")
    first, other = fingerprints(0.5), fingerprints(0.25)
    assert json.loads(ran.stdout) == {"custom": first["custom"]}, ran.stderr
    assert {name for name, each in first.items() if other[name] == each} == {"plain"}


def test_path_of_the_data_does_not_matter(keys, tmp_path):
    def made_by(name, seconds):
        lines = [f"{client},{seconds}" for client in range(30)]
        (tmp_path / name).write_text("\n".join(["client,seconds", *lines, ""]))
        return plan_sweep(bandit(latency=Traces(path=str(tmp_path / name))), keys).made_by

    assert different(made_by("here.csv", 1.0), made_by("there.csv", 1.0)) == []
    assert different(made_by("here.csv", 1.0), made_by("there.csv", 2.0)) != []


def test_invalid_store_folder_is_rejected_before_any_run(keys, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "run_chunks", lambda *_: pytest.fail("a run was started"))
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nothing"):
        with pytest.raises(ConfigError, match="cannot store a sweep"):
            sweep(CONFIGS, keys, store=place, **SETTINGS)


def test_sweep_continues_after_a_write_error(undisturbed, keys, tmp_path, monkeypatch, caplog):
    play = batch.run_chunks

    def loses_its_folder(*arguments):
        for part in play(*arguments):
            shutil.rmtree(tmp_path / "kept", ignore_errors=True)
            yield part

    monkeypatch.setattr(execute, "run_chunks", loses_its_folder)
    result = sweep(CONFIGS, keys, store=tmp_path / "kept", **SETTINGS)
    xr.testing.assert_identical(result, undisturbed[0])
    assert caplog.text.count("cannot be written (No such file or directory)") == 1


def test_second_process_cannot_run_the_same_sweep(kept, keys):
    store = Store.create(kept, plan_sweep(CONFIGS, keys, max_batch=2))
    with store.locked(), pytest.raises(ConfigError, match="another process is running this sweep"):
        sweep(CONFIGS, keys, store=kept, **SETTINGS)
    sweep(CONFIGS, keys, store=kept, **SETTINGS)


# The middle of a chunk.

# The server has moments, and updates that are late wait in the state.
LEARNED = (
    presets.digits_small("pause")
    .replace(num_rounds=20, eval_every=8, num_clients=8, deadline=0.3, stale_updates="next")
    .replace(track_regret=False)
    .override(
        {
            "learning.model": Linear(),
            "learning.server": FedAdam(),
            "learning.keep_optimizer_state": True,
        }
    )
)


def stop_after(monkeypatch, segments):
    """Interrupt a sweep when so many segments were played."""
    ticks, play = [], batch.run_chunks

    def stopped(plan, chunks, tick, *arguments):
        def counted(done):
            tick(done)
            ticks.append(done)
            if len(ticks) == segments:
                raise KeyboardInterrupt

        return play(plan, chunks, counted, *arguments)

    monkeypatch.setattr(execute, "run_chunks", stopped)
    return ticks


OVERLAPPING = LEARNED.replace(
    deadline=None,
    stale_updates="lost",
    clock=Asynchronous(concurrency=4, buffer=3, open_slots=1),
    policy=Random(),
    privacy=NoPrivacy(),
)
RECORDED = (
    *("clients", "in_time", "latency", "clock", "spent", "counts", "queried", "reward"),
    *("train_loss", "test_loss", "test_accuracy"),
)


@pytest.mark.parametrize(
    "config",
    [LEARNED, OVERLAPPING],
    ids=["learned", "overlapping"],
)
def test_run_resumes_from_a_checkpoint(config, keys, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pause_jax")
    alone = {"max_batch": 1, "record": RECORDED, "progress": False}
    arguments = {"store": tmp_path, **alone}
    whole = sweep(config, keys[:1], **alone)
    with monkeypatch.context() as patch:
        patch.setattr(store, "SAVE_EVERY", 0.0)
        stop_after(patch, 7)
        with pytest.raises(SweepInterrupted, match="0 of 1 runs"):
            sweep(config, keys[:1], **arguments)
    (middle,) = tmp_path.glob("checkpoint-*")
    assert load_arrays(middle.read_bytes())["segments"] == 6
    ticks = stop_after(monkeypatch, 0)
    result = sweep(config, keys[:1], **arguments)
    assert ticks == [6] + [1] * (20 - 6)
    if config is LEARNED:
        assert 0 < whole.in_time.sum() < whole.in_time.size
    assert "Resuming a chunk after segment 6." in caplog.text
    xr.testing.assert_equal(result, whole)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_damaged_checkpoint_is_ignored(tmp_path, monkeypatch, caplog):
    plan = plan_sweep(bandit(), jax.random.split(jax.random.key(0)))
    middle = store.Checkpoint(Store(tmp_path, plan), Chunk(0, 0))
    point = store.Point(2, {"x": jnp.arange(3.0)}, [np.ones(2)])

    def restored():
        return middle.restored({"x": jnp.zeros(3)}, lambda _: [jax.ShapeDtypeStruct((2,), float)])

    middle.save(point)
    np.testing.assert_array_equal(restored().state["x"], point.state["x"])
    with monkeypatch.context() as harm:
        harm.setattr(archive, "digest_of", lambda _: np.zeros(32, np.uint8))
        middle.save(point)
    assert restored() is None
    assert "is damaged (checksum mismatch). Deleting the checkpoint." in caplog.text
    assert not list(tmp_path.glob("checkpoint-*"))
