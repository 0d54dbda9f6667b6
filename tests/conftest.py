"""Strict JAX settings for every test, and the folder of real data and recorded runs."""

import gc
import os
import pathlib
import sys
from collections.abc import Callable

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile(
    "pause_jax", deadline=None, derandomize=True, print_blob=True, max_examples=60
)
hypothesis.settings.load_profile("pause_jax")

SHARED = pathlib.Path(
    os.environ.get("PAUSE_JAX_SHARED", pathlib.Path(__file__).parents[1].parent / "shared")
)


# XLA's passes that make loops faster and start its other simplifications again.
UNUSED_PASSES = (
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
    "reshape-mover",
)
# Programs that compile faster are not kept on disk: writing them takes as long.
LEAST_SECONDS = 0.1


def pytest_configure(config: pytest.Config) -> None:
    """Set XLA's flags, and keep compiled programs for all tests, both workers and the next start.

    Most of the time of a first start is compilation. XLA's older emitters without optimisation take
    a fifth of it, a program in one piece a tenth less, and loops as they are written another tenth;
    with a level of 1 LLVM aborts on some masks of AVX-512. Flags of the caller take precedence, so
    ``XLA_FLAGS= make test`` compiles as users do.
    """
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # the process that hands out tests runs none
    # A trace makes many objects and little garbage: looking for it took a sixth of a compilation.
    gc.set_threshold(50_000, 20, 50)
    assert "pause_jax" not in sys.modules, "imported before the tests' flags of XLA were set"
    flags = f"--xla_backend_optimization_level=0 --xla_disable_hlo_passes={','.join(UNUSED_PASSES)}"
    if jax.__version_info__ < (0, 11):  # later ones do not know it, and end at an unknown flag
        flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", flags)
    # Imported only now: pause_jax adds a flag of its own on some versions of JAX, and flags that
    # are set are not set again.
    from tests.support import shapes

    settings = {
        "jax_compilation_cache_dir": str(config.cache.mkdir("compiled")),
        "jax_persistent_cache_min_compile_time_secs": LEAST_SECONDS,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        # Innermost lines alone: whole stacks take a fiftieth of a compilation.
        "jax_traceback_in_locations_limit": 1,
    }
    shapes.watch_all()
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)  # for the processes that tests start


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Stop collecting garbage: pytest just did, and each collection takes seconds."""
    gc.freeze()


# A process may have 65,530 memory maps on Linux; every compiled program takes some.
MAX_MAPS = 10_000


@pytest.fixture(scope="module", autouse=True)
def bounded_compilations():
    """Drop compiled programs after a file if they take many memory maps, or none are counted."""
    # The command line, which some tests call, keeps all programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    yield
    maps = pathlib.Path("/proc/self/maps")
    if not maps.is_file() or maps.read_bytes().count(b"\n") > MAX_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder with real data sets and the authors' recorded runs, beside the checkout."""
    if not SHARED.is_dir():
        message = f"{SHARED} is missing: real data and recorded runs; set PAUSE_JAX_SHARED to it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return SHARED


@pytest.fixture
def file(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Write a file of text and return its path."""

    def write(text: str, name: str = "table.csv") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def key() -> jax.Array:
    return jax.random.key(0)
