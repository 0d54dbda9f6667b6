"""The persistent compilation cache: on by default, and a second start compiles nothing."""

import contextlib
import gc
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import census
from pause_jax import SimConfig, presets, simulate, sweep
from pause_jax.base import compilation
from pause_jax.base.compilation import Compilations, compiler_options, use_cache
from pause_jax.learning import Dataset, Digits, Dirichlet, Execution, Iid, Learning, Linear, Mlp
from pause_jax.policies import named
from pause_jax.privacy import NoPrivacy
from pause_jax.run.programs import SMALL, compiled_steps, program_spec
from pause_jax.run.record.recorder import chosen
from pause_jax.run.simulate import prepare
from pause_jax.run.sizes import first_state
from pause_jax.sweeps.batch import mesh_of

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def restored():
    """JAX's settings as they were."""
    names = (
        "jax_enable_compilation_cache",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def start(folder: pathlib.Path, **environment: str) -> str:
    """What a small run prints."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TF_CPP_"))}
    ran = subprocess.run(
        [
            sys.executable, "-m", "pause_jax.cli", "compare", "--policies", "random",
            "--rounds", "2", "--seeds", "1", "--set", "learning=none", "--set", "privacy=none",
            "--set", "track_regret=false", "--no-figures", "--no-report",
        ],
        env={**settings, "PYTHONPATH": str(ROOT), "PAUSE_JAX_CACHE": str(folder), **environment},
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    # XLA has long lines to say of every program from a cache.
    assert len(ran.stderr) < 500, ran.stderr[:2000]
    return ran.stdout


def counts(printed: str) -> tuple[int, int]:
    """Programs compiled anew, and from the cache."""
    found = re.search(r"\((\d+) programs compiled, (\d+) from the cache\)", printed)
    assert found, printed[-1000:]
    return int(found[1]), int(found[2])


def test_a_second_identical_command_compiles_nothing(tmp_path):
    compiled, _ = counts(start(tmp_path))
    assert compiled > 5
    assert any((tmp_path / "compiled").iterdir())
    again, from_cache = counts(start(tmp_path))
    assert again == 0
    assert from_cache >= compiled


def test_the_cache_can_be_moved_and_switched_off(tmp_path, monkeypatch, restored):
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path / "ours"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert use_cache() == tmp_path / "ours" / "compiled"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "theirs"))
    assert use_cache() == tmp_path / "theirs"
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "theirs")
    jax.config.update("jax_enable_compilation_cache", False)
    assert use_cache() is None


def test_a_meter_counts_from_its_start():
    first = Compilations()
    jax.block_until_ready(jax.jit(lambda x: jnp.sin(x) * 3.25)(jnp.ones(7)))
    seen = first.seconds
    assert seen > 0
    second = Compilations()
    assert second.seconds == 0
    jax.block_until_ready(jax.jit(lambda x: jnp.cos(x) * 2.75)(jnp.ones(9)))
    assert second.seconds > 0
    assert first.seconds == pytest.approx(seen + second.seconds)


TWICE = """
import sys
import time
import jax
from pause_jax import SimConfig, simulate
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from pause_jax.base.compilation import Compilations
meter = Compilations()
config = SimConfig(policy=Random(), privacy=NoPrivacy(), learning=None, track_regret=False)
simulate(config, jax.random.key(0))
ours = meter.from_cache
jax.jit(lambda x: x * 2 + 1)(3.0)
print(meter.compiled, ours, meter.from_cache)
"""


def test_programs_of_runs_are_kept_in_python_too_and_no_others(tmp_path):
    """Also where JAX is imported first, and then nothing of XLA's loader is to be seen."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TF_CPP_"))}
    settings |= {"PYTHONPATH": str(ROOT), "PAUSE_JAX_CACHE": str(tmp_path)}

    def start() -> list[int]:
        ran = subprocess.run(
            [sys.executable, "-c", TWICE], env=settings, cwd=tmp_path,
            capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip
        assert ran.stderr == ""
        return [int(number) for number in ran.stdout.split()]

    assert start()[1:] == [0, 0]
    kept = {path.name.partition("-")[0] for path in (tmp_path / "compiled").glob("*-cache")}
    assert {"jit_init_run", "jit_advance_run", "jit_finish_run"} <= kept
    _, ours, all_of_them = start()
    assert ours >= 3
    assert all_of_them == ours


def test_there_is_no_cache_where_nothing_is_to_be_kept_or_can_be(tmp_path, monkeypatch, restored):
    own_cache = compilation._own_cache.__wrapped__  # what the first run of a process asks
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    assert not own_cache()
    jax.config.update("jax_enable_compilation_cache", True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "compiled").touch()  # no folder can be made of it
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path / "full"))
    assert not own_cache()
    assert jax.config.values["jax_compilation_cache_dir"] is None
    # Negative control.
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path))
    assert own_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "compiled")


def test_the_cache_takes_programs_while_any_thread_compiles(monkeypatch, restored):
    def least() -> float:
        return jax.config.values["jax_persistent_cache_min_compile_time_secs"]

    monkeypatch.setattr(compilation, "_own_cache", lambda: True)
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        one.enter_context(compilation.kept())
        other.enter_context(compilation.kept())
        assert least() == 0
        one.close()
        assert least() == 0
    assert least() == math.inf
    with pytest.raises(KeyError), compilation.kept():
        raise KeyError
    assert least() == math.inf


def test_python_collects_rarely_while_any_thread_compiles_and_as_before_afterwards():
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 11, 12)
        with contextlib.ExitStack() as one, compilation.kept():
            one.enter_context(compilation.kept())
            one.close()
            assert gc.get_threshold() == (50_000, 11, 12)
        assert gc.get_threshold() == (700, 11, 12)
        for own in (0, 90_000):  # off, and rarer already
            gc.set_threshold(own, 11, 12)
            with compilation.kept():
                assert gc.get_threshold() == (own, 11, 12)
            assert gc.get_threshold() == (own, 11, 12)
    finally:
        gc.set_threshold(*before)


LEVELS = """
import logging
import jax
logging.getLogger("jax").setLevel(logging.WARNING)
import pause_jax
loggers = [logging.getLogger(name) for name in ("jax", "jaxlib")]
print([logger.level for logger in loggers], [logger.handlers for logger in loggers])
print(jax.config.values["jax_logging_level"])
"""


@pytest.mark.parametrize("level", ["NOTSET", "INFO"])
def test_the_loader_is_silenced_without_a_change_to_the_levels_of_python(level):
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TF_CPP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", LEVELS], text=True, timeout=600, check=True, capture_output=True,
        env=settings | {"PYTHONPATH": str(ROOT), "JAX_LOGGING_LEVEL": level},
    )  # fmt: skip
    levels, left = ran.stdout.splitlines()
    assert left == level  # also where the user has asked for one
    if level == "NOTSET":
        assert levels == "[30, 0] [[], []]"


def test_a_notebook_says_that_it_compiles_without_widgets(capsys, monkeypatch, recwarn):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(compilation, "PATIENCE", 0.0)
    with compilation.compiling():
        time.sleep(0.1)
    captured = capsys.readouterr()
    assert captured.err == compilation.COMPILING + "\n"
    assert captured.out == ""
    assert not recwarn.list


@pytest.mark.parametrize("width", [None, 1, 8])
@pytest.mark.parametrize("hidden", [0, 8, 200])
def test_what_is_small_is_compiled_sooner(width, hidden):
    base = presets.digits_small()
    config = base.replace(learning=None)
    if hidden:
        config = base.override({"learning.model": Mlp(hidden=(hidden,))})
    config, data = prepare(config)
    spec = program_spec(config, chosen(None))
    mesh = None if width is None else mesh_of(jax.devices()[:1])
    step = compiled_steps(mesh, chosen(None), Execution(), spec.any_length)
    seen, keys = spec.config_of(config), jax.random.key(0)
    if width is not None:
        keys = jax.random.split(keys, width)
        seen = jax.tree.map(lambda x: jnp.stack([x] * width), seen)
    state = step.shapes().first(seen, data, keys, jnp.int32(0))
    soon = hidden == 0 or (hidden == 8 and width in (None, 1))
    assert step.advance(seen, state) is (step.advance_quick if soon else step.advance_full)
    assert 5 * 64 * 8 < SMALL < 5 * 64 * 200


def test_options_give_way_to_those_of_the_user_and_name_nothing_that_jax_does_not_know(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert compiler_options(quickly=True) is None
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(compilation, "_takes", lambda option, value: True)
    assert compiler_options(quickly=True) == {
        "xla_backend_optimization_level": 2,
        "xla_cpu_use_fusion_emitters": False,
    }
    monkeypatch.setattr(compilation, "_takes", lambda option, value: False)
    assert compiler_options(quickly=True) == {"xla_backend_optimization_level": 2}
    assert compiler_options(quickly=False) == {"xla_backend_optimization_level": 2}
    assert compiler_options(quickly=True, level=0) == {"xla_backend_optimization_level": 0}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler_options(quickly=False) is None


def test_a_compiler_option_is_asked_for_by_trial():
    assert compilation._takes("xla_backend_optimization_level", 2)
    assert not compilation._takes("xla_no_such_option", True)


SOON = """
import jax
from pause_jax import SimConfig, simulate
from pause_jax.run import programs
from pause_jax.learning import Digits, Learning, Mlp
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
learning = Learning(
    data=Digits(num_train=300), model=Mlp(hidden=(8,)), max_steps=2, optimizer="sgd"
)
config = SimConfig(
    num_clients=9, num_selected=3, num_rounds=12, eval_every=4, learning=learning,
    policy=Random(), privacy=NoPrivacy(), track_regret=False,
)
for programs.SMALL in (programs.SMALL, 0):
    result = simulate(config, jax.random.key(0), record=("clients", "clock"))
    print(result.clients.tolist())
    print(jax.tree.map(lambda x: x.tolist(), [result.clock, *jax.tree.leaves(result.variables)]))
"""


def test_a_program_that_is_compiled_sooner_plays_the_same_run():
    ran = subprocess.run(
        [sys.executable, "-c", SOON], text=True, timeout=600, check=True,
        env=os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}, capture_output=True,
    )  # fmt: skip
    soon, few, later, many = map(json.loads, ran.stdout.splitlines())
    few, many = (np.concatenate([np.ravel(leaf) for leaf in each]) for each in (few, many))
    assert soon == later
    assert len(few) > 64 * 8
    np.testing.assert_allclose(few, many, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kernels", "loops", "draws"), [("learn", 99, 16, 10), ("advance", 247, 19, 9)]
)
def test_what_a_run_is_compiled_into_does_not_creep(name, kernels, loops, draws):
    """A fifth more than when it was counted is too much: each kernel takes its time to compile.

    As tests compile; as users do, ``advance`` has 256 kernels and 17 loops.
    """
    if "level=0" not in os.environ["XLA_FLAGS"]:
        kernels, loops = max(kernels, 256), max(loops, 17)
    found = census.census(census.steps(presets.digits_small())[name])
    assert found.kernels <= 1.2 * kernels
    assert found.loops <= 1.2 * loops
    assert found.draws <= 1.2 * draws
    # Most can be told from the code that asks for them.
    assert found.lines_of["elsewhere"] < found.kernels / 2


def test_policies_share_the_program_that_begins_learning(monkeypatch):
    traced, build = [], Learning.build

    def counted(learning, *given):
        learner = build(learning, *given)

        def init(streams):
            traced.append(learning)
            return learner.init(streams)

        return learner._replace(init=init)

    monkeypatch.setattr(Learning, "build", counted)
    learning = Learning(
        data=Digits(num_train=40), model=Linear(), max_steps=1, optimizer="sgd", partition=Iid()
    )
    config = SimConfig(
        num_clients=7, num_selected=2, num_rounds=1, learning=learning, privacy=NoPrivacy(),
        track_regret=False,
    )  # fmt: skip

    def begin(config):
        first_state(*prepare(config), chosen(("clock",)))  # traced by the steps of a run

    for policy in map(named, ("random", "round_robin")):
        begin(config.replace(policy=policy))
    assert len(traced) == 1
    # What begins the run of another partition is traced anew.
    begin(config.override({"learning.partition": Dirichlet()}))
    assert len(traced) == 2


def test_arrays_of_one_shape_share_programs_in_runs_and_sweeps():
    learning = Learning(model=Linear(), max_steps=1, optimizer="sgd")
    config = SimConfig(
        num_clients=6, num_selected=2, num_rounds=2, learning=learning, privacy=NoPrivacy(),
        policy=named("random"), track_regret=False,
    )  # fmt: skip
    draw, key, record = np.random.default_rng(0), jax.random.key(0), ("test_loss",)
    ours, other = (Dataset.of(draw.normal(size=(50, 4)), draw.integers(0, 3, 50)) for _ in range(2))
    single = simulate(config, key, ours, record=record)
    of_run = Compilations()
    row = sweep(config, key, data=ours, record=record, max_batch=1, progress=False)
    assert of_run.programs <= 1  # what makes the keys of a sweep
    of_sweep = Compilations()
    another = sweep(config, key, data=other, record=record, max_batch=1, progress=False)
    assert of_sweep.programs == 0
    np.testing.assert_array_equal(row.test_loss[0, 0], single.test_loss)
    assert (another.test_loss != row.test_loss).all()
