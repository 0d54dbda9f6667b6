"""The wheel: what is in it, and that a user's first program runs from it.

Its environment holds the wheel and what the wheel says it needs, nothing else: no checkout, no
optional dependency. To install those again would take a minute and a gigabyte; they are linked.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools import release

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib.util
import jax
import pause_jax
from pause_jax import SimConfig, simulate

config = SimConfig(num_clients=5, num_selected=2, num_rounds=3, learning=None)
result = simulate(config, jax.random.key(0))
assert result.clients.shape == (3, 2)
for optional in (
    *("altair", "array_record", "dask", "distributed", "dp_accounting", "jinja2"),
    *("flwr", "matplotlib", "optuna", "PIL", "pyarrow", "pytest", "safetensors", "submitit"),
    *("tabulate", "tensorflow_datasets", "vl_convert", "zarr"),
):
    assert importlib.util.find_spec(optional) is None, optional
print(pause_jax.__file__, pause_jax.__version__)
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_as_user(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(*command, cwd=cwd, env=env)


def pip(*arguments: str | Path, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: what an earlier build left in the checkout must not get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    leftovers = shutil.ignore_patterns(
        ".*", "__pycache__", "*.egg-info", "build", "dist", "results"
    )
    shutil.copytree(ROOT, folder / "source", ignore=leftovers)
    pip("wheel", "--no-deps", "--no-build-isolation", folder / "source", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def needed_by(wheel: Path) -> set[str]:
    """Every distribution that the wheel needs here, and those that these need."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(path).decode().splitlines()
    asked = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    wanted = [(Requirement(text), "") for text in asked]
    found: set[tuple[str, str]] = set()
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for part in {"", *requirement.extras} - {part for known, part in found if known == name}:
            found.add((name, part))
            more = metadata.distribution(name).requires or []
            wanted += [(Requirement(text), part) for text in more]
    return {name for name, _ in found}


def link(distribution: metadata.Distribution, folder: Path) -> None:
    """Link to what a distribution has at the top of its own folder of packages."""
    files = distribution.files or []
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """An environment of the wheel and its dependencies; the folder of its programs."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    programs = folder / "venv" / "bin"
    pip("--python", programs / "python", "install", "--no-deps", wheel, cwd=folder)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(programs / "python", "-c", ask, cwd=folder).strip())
    for name in needed_by(wheel):
        link(metadata.distribution(name), packages)
    return programs


def test_it_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top.partition("-")[0] for top in tops} == {"pause_jax"}
    assert len(tops) == 2
    held = {name for name in names if name.startswith("pause_jax/")}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pause_jax").rglob("*.py")}
    others = {
        *("py.typed", "__init__.pyi"),
        *("analysis/gauntlet/digits.nc", "analysis/gauntlet/fashion.nc"),
        *(f"world/latency/{x}.csv" for x in ("devices", "phones")),
        *(f"analysis/report/page.{x}" for x in ("css", "html", "js")),
    }
    assert held == sources | {f"pause_jax/{name}" for name in others}


def test_a_first_program_runs_from_it(environment, tmp_path):
    where, version = run_as_user(environment / "python", "-c", PROGRAM, cwd=tmp_path).split()
    assert Path(where).is_relative_to(environment.parent)
    assert version == metadata.version("pause_jax")


@pytest.mark.nightly
def test_its_command_runs(environment, tmp_path):
    command = ("compare", "--policies", "random", "--rounds", "5", "--seeds", "2", "--no-figures")
    changes = ("--set", "learning=none", "--set", "track_regret=false")
    run_as_user(environment / "pause-jax", *command, *changes, cwd=tmp_path)
    assert (tmp_path / "results" / "compare-digits_small" / "data.nc").exists()
    said = run_as_user(environment / "pause-jax", "--version", cwd=tmp_path)
    assert said == run_as_user(environment / "python", "-m", "pause_jax", "--version", cwd=tmp_path)
    assert said.startswith(f"pause_jax {metadata.version('pause_jax')}, JAX ")


def test_the_sdist_makes_the_same_wheel(wheel):
    """From a copy that the wheel was built from, as ``python -m build`` does."""
    folder = wheel.parent
    build = "import flit_core.buildapi as b; print(b.build_sdist('.'))"
    name = run(sys.executable, "-c", build, cwd=folder / "source").splitlines()[-1]
    with tarfile.open(folder / "source" / name) as archive:
        held = {each.partition("/")[2] for each in archive.getnames()}
        archive.extractall(folder / "unpacked", filter="data")
    assert held >= {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"}
    assert not any(each.startswith(("tests", "docs", "experiments")) for each in held)
    (source,) = (folder / "unpacked").iterdir()
    out = folder / "again"
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", out, source, cwd=folder)
    first, second = (zipfile.ZipFile(each) for each in (wheel, out / wheel.name))
    with first, second:
        assert first.namelist() == second.namelist()
        same = [each for each in first.namelist() if first.read(each) != second.read(each)]
        assert same == []


def test_its_version_stands_in_one_place():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert version == metadata.version("pause_jax")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in (ROOT / "pause_jax").rglob("*.py")]
    assert not any(f'"{version}"' in source for source in sources)


def test_the_page_of_what_works_is_of_the_versions_that_are_allowed():
    lines = [line.strip("|").split("|") for line in release.PAGE.read_text("utf-8").splitlines()]
    rows = [[cell.strip() for cell in line] for line in lines if len(line) > len(release.SHOWN)]
    head, _, *rows = rows
    assert {row[0] for row in rows} >= {"3.11", "3.12"}
    for row in rows:
        said = dict(zip(head, row, strict=True))
        assert said["works"] == "yes"
        least = dict(each.split("==") for each in release.floors(said["Python"]))
        for name in release.SHOWN:
            asked, tried = Version(least[name]), Version(said[name])
            assert (tried == asked) if row[1] == "oldest" else (tried >= asked)


def test_without_a_declared_dependency_it_does_not_run(environment, tmp_path):
    """The control: the environment of the tests does not shine through."""
    packages = next((environment.parent / "lib").glob("python*/site-packages"))
    link = packages / "jax"
    target = link.readlink()
    link.unlink()
    try:
        with pytest.raises(AssertionError, match="No module named 'jax'"):
            run_as_user(environment / "python", "-c", PROGRAM, cwd=tmp_path)
    finally:
        link.symlink_to(target)
