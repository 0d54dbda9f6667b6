"""What is compiled, by which options, and what a second start takes from the cache."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from benchmarks.kernels import census, steps
from pause_jax import ConfigError, SimConfig, presets, simulate, sweep
from pause_jax.base import compilation
from pause_jax.base.compilation import cache_folder, compiler_options, use_cache
from pause_jax.learning import Dataset, Execution, Learning, Linear, Mlp
from pause_jax.policies import named
from pause_jax.privacy import NoPrivacy
from pause_jax.run import programs
from pause_jax.run.preflight import prepare
from pause_jax.run.programs import SMALL, program_spec
from pause_jax.run.record.result import chosen
from tests.support.compilations import Compilations
from tests.support.pages import play

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TF_CPP_"))}
SETTINGS["PYTHONPATH"] = str(ROOT)


@pytest.fixture
def restored():
    """Restore JAX's settings afterwards."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def start(folder: pathlib.Path, *arguments: str, **environment: str) -> str:
    """Run Python in a folder, and return what it prints."""
    ran = subprocess.run(
        [sys.executable, *arguments], env={**SETTINGS, **environment}, cwd=folder,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    # On some processors, XLA logs long lines for every program that it loads (see the FAQ).
    logged = [line for line in ran.stderr.splitlines() if "cpu_aot_loader" not in line]
    assert len("".join(logged)) < 500, logged
    return ran.stdout


RUN_AND_COMMAND = """
import sys
import jax
from pause_jax import SimConfig, simulate
from pause_jax.cli import main
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from tests.support.compilations import Compilations
meter = Compilations()
config = SimConfig(policy=Random(), privacy=NoPrivacy(), learning=None, track_regret=False)
simulate(config, jax.random.key(0))
print(meter.compiled, meter.from_cache, jax.config.values["jax_compilation_cache_dir"])
sys.argv[1:] = ["compare", "--policies", "random", "--rounds", "2", "--seeds", "1",
                "--set", "learning=none", "--set", "privacy=none", "--set", "track_regret=false",
                "--no-figures", "--no-report"]
meter = Compilations()
try:
    main()
finally:
    print("command:", meter.compiled, meter.from_cache)
"""


def test_second_identical_run_and_command_compile_nothing(tmp_path):
    def counts() -> list[int]:
        printed = start(tmp_path, "-c", RUN_AND_COMMAND, PAUSE_JAX_CACHE=str(tmp_path))
        of_run = re.match(rf"(\d+) (\d+) {tmp_path}/compiled\n", printed)
        found = of_run, re.search(r"^command: (\d+) (\d+)$", printed, re.MULTILINE)
        assert all(found), printed[-1000:]
        return [int(number) for match in found if match for number in match.groups()]

    run, _, command, _ = counts()
    assert min(run, command) > 2
    kept = {path.name.partition("-")[0] for path in (tmp_path / "compiled").glob("*-cache")}
    assert {"jit_init_run", "jit_advance_run", "jit_finish_run"} <= kept
    run, run_from_cache, command, command_from_cache = counts()
    assert run == command == 0
    assert min(run_from_cache, command_from_cache) >= 3


def test_nothing_is_cached_without_a_home(monkeypatch, restored):
    for name in ("HOME", "XDG_CACHE_HOME", "PAUSE_JAX_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # of nobody
    jax.config.update("jax_compilation_cache_dir", None)
    with pytest.raises(ConfigError, match=r"HOME is not set\. Set HOME, or set PAUSE_JAX_CACHE"):
        cache_folder()
    use_cache.__wrapped__()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_nothing_is_cached_without_a_folder(tmp_path, monkeypatch, restored):
    (tmp_path / "compiled").touch()  # no folder can be made of it
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    use_cache.__wrapped__()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_the_cache_can_be_moved(tmp_path, monkeypatch, restored):
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path / "ours"))
    for folder in (None, str(tmp_path / "theirs")):
        jax.config.update("jax_compilation_cache_dir", folder)
        use_cache.__wrapped__()
        expected = folder or str(tmp_path / "ours" / "compiled")
        assert jax.config.values["jax_compilation_cache_dir"] == expected


def test_notebook_reports_compilation_without_widgets(capsys, monkeypatch, recwarn):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(compilation, "PATIENCE", 0.0)
    with compilation.telling():
        time.sleep(0.1)
    captured = capsys.readouterr()
    assert captured.err == compilation.COMPILING + "\n"
    assert captured.out == ""
    assert not recwarn.list


@pytest.mark.parametrize("num_runs", [1, 8])
@pytest.mark.parametrize("hidden", [0, 8, 200])
def test_small_runs_are_compiled_quickly(num_runs, hidden, monkeypatch):
    config = presets.digits_small().replace(learning=None)
    if hidden:
        config = presets.digits_small().override({"learning.model": Mlp(hidden=(hidden,))})
    config, data = prepare(config)
    spec = program_spec(config, data, chosen(None), num_runs=num_runs)
    small = hidden == 0 or (hidden == 8 and num_runs == 1)
    assert spec.options == ("small" if small else "large")
    asked: list[str] = []

    def recorded(row):
        asked.append(row)
        return compiler_options(row)

    monkeypatch.setattr(programs, "compiler_options", recorded)
    mesh = None if num_runs == 1 else jax.make_mesh((1,), ("run",))
    programs.compiled_steps.__wrapped__(spec, chosen(None), Execution(), mesh)
    assert asked[-2:] == [spec.options, "small"]


def test_user_options_take_precedence(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert compiler_options("small") is None
    monkeypatch.setenv("XLA_FLAGS", "")
    assert compiler_options("large") == {"xla_backend_optimization_level": 2}
    older = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
    assert compiler_options("small") == {"xla_backend_optimization_level": 2, **older}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler_options("large") is None


BOTH_ROWS = """
import json
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
    leaves = [result.clock, *jax.tree.leaves(result.variables)]
    print(json.dumps([result.clients.tolist(), [leaf.ravel().tolist() for leaf in leaves]]))
"""


@pytest.mark.nightly
def test_both_option_sets_give_the_same_run(tmp_path):
    printed = start(tmp_path, "-c", BOTH_ROWS, XLA_FLAGS="", PAUSE_JAX_CACHE=str(tmp_path))
    (quick, few), (full, many) = map(json.loads, printed.splitlines())
    assert quick == full
    few, many = np.concatenate(few), np.concatenate(many)
    assert len(few) > 64 * 8
    assert SMALL > 3 * 64 * 8
    np.testing.assert_allclose(few, many, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kernels", "loops", "draws"), [("init", 101, 16, 10), ("advance", 256, 19, 11)]
)
def test_compiled_program_size_does_not_grow(name, kernels, loops, draws):
    """A fifth more than when it was counted is too much: each kernel takes its time to compile."""
    found = census(steps(presets.digits_small())[name])
    assert found.kernels <= 1.2 * kernels
    assert found.loops <= 1.2 * loops
    assert found.draws <= 1.2 * draws
    # Most can be told from the code that asks for them.
    assert found.lines_of["elsewhere"] < found.kernels / 2


@pytest.mark.nightly
def test_documentation_page_on_programs_runs():
    names = play("docs/guides/programs.md")
    config = SimConfig(num_clients=8, num_selected=2, num_rounds=50, learning=None)
    expected = simulate(config, jax.random.key(0), record=("clock",)).clock
    np.testing.assert_allclose(names["clock"], expected, rtol=1e-6)


def test_arrays_of_equal_shape_share_programs():
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


RESUMED = """
import logging
import jax
from pause_jax import SimConfig, sweep
from pause_jax.policies import Random
from pause_jax.sweeps import store
from pause_jax.sweeps.execute import SweepInterrupted

store.SAVE_EVERY = 0.0
config = SimConfig(
    num_clients=6, num_selected=2, num_rounds=40, learning=None, policy=Random(), track_regret=False
)
save = store.Checkpoint.save

def saved_once(*arguments):
    save(*arguments)
    raise KeyboardInterrupt

def run(number):
    keys = jax.random.split(jax.random.key(0), number)
    return sweep(config, keys, store=f"store{number}", max_batch=number, progress=False)

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=__import__("sys").stdout)
for number in (1, 4):
    store.Checkpoint.save = saved_once
    try:
        run(number)
    except SweepInterrupted:
        store.Checkpoint.save = save
    run(number)
"""


@pytest.mark.nightly
def test_checkpoint_is_restored_with_user_flags(tmp_path):
    printed = start(tmp_path, "-c", RESUMED, XLA_FLAGS="", PAUSE_JAX_CACHE=str(tmp_path))
    assert printed.count("Resuming a chunk after segment 1.") >= 2
    assert "damaged" not in printed
