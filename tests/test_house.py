"""The house keeps its order: imports point downwards, nothing goes in circles, files stay small."""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import house
import pytest

from pause_jax import config, learning, policies, presets, privacy
from pause_jax.bandit import search
from pause_jax.world import availability, latency

PACKAGE = house.ROOT / "pause_jax"
MAX_LINES = 350
NAMES_THAT_SAY_NOTHING = {"utils.py", "types.py", "helpers.py"}
# Folders of tests/ that are no room of the package.
OTHER_TESTS = {"docs", "experiments", "flower", "reference", "support"}

# Ratchets: what the package has reached. Lower a number after an improvement; do not raise one.
MAX_FLOORS = 8
MAX_ARROWS = 65
MAX_FUNCTION_LINES = 77
MAX_LONG_FUNCTIONS = 2  # functions of more than 60 lines
MAX_ARGUMENTS = 11
MAX_WIDE_FUNCTIONS = 4  # functions of more than 8 arguments
MAX_PUBLIC_NAMES = 120  # besides what a config can choose
MAX_MAIN_PATH_LINES = 2748
# What a reader of `simulate(config, key)` with PAUSE opens.
MAIN_PATH = (
    "run/simulate.py",
    "run/driver.py",
    "run/programs.py",
    "run/rounds/loop.py",
    "run/setup.py",
    "run/rounds/round.py",
    "run/rounds/world.py",
    "run/rounds/arrival.py",
    "run/horizon.py",
    "run/rounds/state.py",
    "policies/pause.py",
    "policies/index.py",
    "bandit/stats.py",
    "bandit/reward.py",
    "bandit/search/exact.py",
    "learning/local_sgd.py",
    "learning/fedavg.py",
    "learning/client.py",
    "privacy/mechanisms.py",
    "rng/keys.py",
)


parsed = functools.cache(ast.parse)


@pytest.fixture(scope="module", autouse=True)
def imports_read_once():
    """Read the package's own imports once for all tests; a toy's, which changes, each time."""
    read, found = house.imports, house.imports(PACKAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            house, "imports", lambda package: found if package == PACKAGE else read(package)
        )
        yield


def without_a_room(package: Path) -> list[str]:
    return sorted({house.room(name) for name in house.modules(package)} - {"", *house.ORDER})


def upwards(package: Path) -> list[str]:
    place = {name: number for number, name in enumerate(house.ORDER)}
    return [
        str(each)
        for each in house.imports(package)
        if place.get(house.room(each.importer), len(place))
        < place.get(house.room(each.imported), len(place))
    ]


def of_the_whole(package: Path) -> list[str]:
    return [
        str(each)
        for each in house.imports(package)
        if house.room(each.importer) and not house.room(each.imported)
    ]


def cycle(package: Path) -> list[str]:
    graph: dict[str, set[str]] = {}
    for each in house.imports(package):
        graph.setdefault(each.importer, set()).add(each.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def too_long(package: Path) -> list[str]:
    lengths = {path: lines_of(path) for path in package.rglob("*.py")}
    return [f"{path.name}: {lines} lines" for path, lines in lengths.items() if lines > MAX_LINES]


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def functions(package: Path) -> Iterator[ast.FunctionDef]:
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield node


def function_lines(package: Path) -> list[int]:
    """The length of each function, with its signature and docstring."""
    return [(each.end_lineno or 0) - each.lineno + 1 for each in functions(package)]


def arguments(package: Path) -> list[int]:
    """How many named arguments each function takes, without ``self`` and ``cls``."""
    counts = []
    for each in functions(package):
        names = [arg.arg for arg in each.args.posonlyargs + each.args.args]
        counts.append(len(names) - (names[:1] in (["self"], ["cls"])) + len(each.args.kwonlyargs))
    return counts


def choices() -> set[str]:
    """What a config can choose: the library's own classes of each kind, and the presets."""
    kinds = (
        *(policies.POLICIES, policies.INDEX_RULES, privacy.MECHANISMS, privacy.BUDGETS),
        privacy.BUDGET_LAWS,
        *(latency.LATENCIES, availability.AVAILABILITY_TRACES, search.SEARCHES, learning.DATASETS),
        *(learning.MODELS, learning.PARTITIONS, learning.TASKS, learning.SCHEDULES),
        *(learning.SERVER_OPTIMIZERS, config.CLOCKS, config.STALENESS_WEIGHTS),
    )
    return {cls.__name__ for kind in kinds for cls in kind} | set(presets.PRESETS)


def public_names(package: Path) -> set[str]:
    """What all ``__all__`` of the package list."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for node in parsed(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found.update(ast.literal_eval(node.value))
    return found


def test_every_choice_is_public():
    # Given stands for data that a caller passes in.
    assert choices() - set(presets.PRESETS) - public_names(PACKAGE) == {"Given"}


def nameless(package: Path) -> list[str]:
    return [path.name for path in package.rglob("*.py") if path.name in NAMES_THAT_SAY_NOTHING]


@pytest.mark.parametrize(
    "faults", [without_a_room, upwards, of_the_whole, cycle, too_long, nameless]
)
def test_the_house_is_in_order(faults):
    assert faults(PACKAGE) == []


# What is measured -> (the number of a package, its limit).
RATCHETS = {
    "floors": (lambda package: len(house.FLOORS), MAX_FLOORS),
    "arrows": (lambda package: len(house.between_rooms(house.imports(package))), MAX_ARROWS),
    "function lines": (lambda package: max(function_lines(package)), MAX_FUNCTION_LINES),
    "long functions": (
        lambda package: sum(lines > 60 for lines in function_lines(package)),
        MAX_LONG_FUNCTIONS,
    ),
    "arguments": (lambda package: max(arguments(package)), MAX_ARGUMENTS),
    "wide functions": (
        lambda package: sum(count > 8 for count in arguments(package)),
        MAX_WIDE_FUNCTIONS,
    ),
    "public names": (lambda package: len(public_names(package) - choices()), MAX_PUBLIC_NAMES),
    "lines of the main path": (
        lambda package: sum(lines_of(package / name) for name in MAIN_PATH),
        MAX_MAIN_PATH_LINES,
    ),
}


@pytest.mark.parametrize("name", RATCHETS)
def test_a_ratchet_holds(name):
    measure, limit = RATCHETS[name]
    assert measure(PACKAGE) <= limit


def test_the_main_path_is_on_the_page_of_the_house():
    page = (house.ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert [name for name in MAIN_PATH if f"| `{name}` |" not in page] == []
    assert len(MAIN_PATH) <= 22


def test_the_tests_mirror_the_package():
    folders = {path.parent.name for path in (house.ROOT / "tests").glob("*/__init__.py")}
    assert folders - OTHER_TESTS <= set(house.ORDER)
    assert folders >= OTHER_TESTS


def test_the_walk_sees_the_package():
    seen = {(each.importer, each.imported) for each in house.imports(PACKAGE)}
    assert ("pause_jax.config.sim_config", "pause_jax.base.struct") in seen
    assert len(seen) > 100


def test_the_picture_is_up_to_date():
    assert house.PICTURE.read_text("utf-8") == house.draw(PACKAGE), "make house"


@pytest.fixture
def toy(tmp_path):
    """A package in good order, and a way to change one of its files."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path / "toy"

    write("base.py", '"""The ground."""\nimport os\n')
    write("bandit/__init__.py", "from toy.bandit.exact import exact\n")
    write("bandit/exact.py", "from toy import base\nexact = base\n")
    write("run/__init__.py", "")
    write("run/rounds/round.py", "from toy.bandit import exact\nimport toy.base\n")
    write("__main__.py", "import toy\n")
    write("__init__.py", "from toy import bandit, base\nfrom toy.run import round\n")
    return write


def test_a_house_in_order_has_no_fault(toy):
    package = toy("rng.py", "")
    for faults in (without_a_room, upwards, of_the_whole, cycle, too_long, nameless):
        assert faults(package) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from toy.run import round",
        "from toy.run.round import play",
        "import toy.run.round as r",
        "def f():\n    from toy import run",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.run import round",
        "from ..run import round",
        "from .. import run",
    ],
)
def test_an_arrow_upwards_is_seen(toy, statement):
    package = toy("bandit/exact.py", f"{statement}\n")
    (found,) = upwards(package)
    assert found.startswith("toy.bandit.exact, line ")
    assert "imports toy.run" in found


@pytest.mark.parametrize("statement", ["import toy", "from toy import version", "from .. import v"])
def test_an_import_of_the_whole_package_is_seen(toy, statement):
    package = toy("bandit/exact.py", f"{statement}\n")
    assert "toy.bandit.exact, line 1, imports toy" in of_the_whole(package)


def test_a_cycle_within_a_room_is_seen(toy):
    toy("bandit/prefix.py", "def f():\n    from toy.bandit.exact import exact\n")
    package = toy("bandit/exact.py", "from toy.bandit import prefix\n")
    assert upwards(package) == []
    assert set(cycle(package)) == {"toy.bandit.prefix", "toy.bandit.exact"}


def test_a_name_that_a_room_rebinds_is_the_rooms(toy):
    # `exact` is a function of the room, so the room must have been imported to its end.
    package = toy("bandit/exact.py", "from toy.bandit import exact\n")
    assert set(cycle(package)) == {"toy.bandit", "toy.bandit.exact"}


def test_a_long_file_and_names_that_say_nothing_are_seen(toy):
    toy("bandit/utils.py", "")
    toy("run/long.py", "\n" * MAX_LINES)
    assert too_long(toy("rng.py", "")) == []
    package = toy("run/long.py", "\n" * (MAX_LINES + 1))
    assert too_long(package) == [f"long.py: {MAX_LINES + 1} lines"]
    assert nameless(package) == ["utils.py"]


def test_lengths_arguments_and_public_names_are_counted(toy):
    toy(
        "run/wide.py",
        "class A:\n    def f(self, a, /, b, *, c):\n        pass\n\n\n__all__ = ['A']\n",
    )
    package = toy("rng.py", "def g():\n\n    def h(): ...\n\n    return h\n__all__ = ['A', 'g']\n")
    assert sorted(function_lines(package)) == [1, 2, 5]
    assert sorted(arguments(package)) == [0, 0, 3]
    assert public_names(package) == {"A", "g"}


def test_a_module_outside_of_all_rooms_is_seen(toy):
    assert without_a_room(toy("attic/box.py", "")) == ["attic"]


def test_the_picture_shows_an_arrow_upwards_in_red(toy):
    assert 'class="dot up"' not in house.draw(toy("rng.py", ""))
    assert 'class="dot up"' in house.draw(toy("base.py", "from toy.run import round\n"))
