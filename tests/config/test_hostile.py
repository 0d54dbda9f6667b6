"""Files from elsewhere: none of them runs code, leaves its folder, or takes what is not ours."""

import csv
import os
import pathlib
import pickle
import sys

import h5py
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from pause_jax import ConfigError, config_file
from pause_jax import SimConfig as SimConfig  # named in a case: names of ours load when asked for
from pause_jax.analysis import ledger_table, summary
from pause_jax.analysis.ledger import ledger
from pause_jax.base.registry import LOADED
from pause_jax.cli import program, result_folder
from pause_jax.config import validate
from pause_jax.deploy.selector import Selector
from pause_jax.learning import Files
from pause_jax.sweeps.labels import Rows
from pause_jax.sweeps.plan import Chunk, plan_sweep
from pause_jax.sweeps.store import Store, discard_store
from tests.support.hostile import damaged, outcome, repacked, rewritten
from tests.support.pages import play
from tests.support.results import made, small_config

pytestmark = pytest.mark.slow

# A module beside the config file, which must not even be imported.
EVIL = """
import pathlib
pathlib.Path("PWNED").touch()
from os import system
import flax.linen as nn
class Net(nn.Module):
    pass
def make(*args, **kwargs):
    pathlib.Path("PWNED").touch()
rate = make
"""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A folder with that module on Python's path, in which nothing may be left behind."""
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert "evil" not in sys.modules
    assert not list(tmp_path.rglob("PWNED"))


def refused(*arguments: str | pathlib.Path) -> str:
    """The one line with which the program refuses a command."""
    done = CliRunner().invoke(program(), [str(each) for each in arguments])
    assert isinstance(done.exception, ConfigError), (done.exception, done.output)
    return one_line(done.exception)


def one_line(error: BaseException) -> str:
    line = str(error)
    assert line.isprintable()
    assert 10 < len(line) < 2100
    assert "Traceback" not in line
    return line


def model(source, arguments='[["command", "touch PWNED"]]'):
    return f'[learning.model]\nname = "flax"\nsource = {source}\narguments = {arguments}\n'


def dense(arguments):
    return model('"flax.linen:Dense"', arguments)


NO_KIND, NOT_THERE, NOT_LOADED = (
    "must be a linen module, or a linen or nnx module class",
    "has no '",
    "is not loaded",
)
CONFIGS = {
    # What is called.
    "shell": (model('"os:system"'), NO_KIND),
    "a function of flax": (model('"flax.nnx:jit"', "[]"), NO_KIND),
    "a class of flax that is no module": (model('"flax.nnx:Rngs"', "[]"), NO_KIND),
    "a class of ours that is no module": (model('"pause_jax:SimConfig"', "[]"), NO_KIND),
    "a chain of attributes": (model('"flax.linen:Module.__init__.__globals__"'), NOT_THERE),
    "a module in a module": (model('"pathlib:os.system"'), NOT_THERE),
    "builtins of a module": (model('"os:__builtins__.eval"'), NOT_THERE),
    # What is imported.
    "import": (model('"evil:Net"', "[]"), NOT_LOADED),
    "a path": (model('"../evil.py:Net"', "[]"), NOT_LOADED),
    "NUL": (model('"evil\\u0000:Net"', "[]"), NOT_LOADED),
    "a module alone": (model('"os"', "[]"), NOT_THERE),
    # Optimisers.
    "optimizer shell": ('[learning]\noptimizer = "os:abort"', "GradientTransformation"),
    "optimizer import": ('[learning]\noptimizer = "evil:rate"', NOT_LOADED),
    "optimizer of optax": ('[learning]\noptimizer = "optax:adam"', "GradientTransformation"),
    # Arguments that are no plain data, and values of other kinds.
    "no pairs": (dense('[["features"]]'), "must be (name, value) pairs"),
    "a table": (dense("[{features = 3}]"), "must be (name, value) pairs"),
    "a dunder for a name": (dense('[["__class__", 4]]'), "could not be created"),
    "a date": (model("1979-05-27", "[]"), "must be a linen module"),
    "a field that is none": ('[reward]\n"__class__" = 1', "no field '__class__'"),
    # Sizes.
    "deep lists": (dense("[" * 5000 + "]" * 5000), "nested too deeply"),
    "deep tables": ("x = " + "{a = " * 3000 + "1" + "}" * 3000, "nested too deeply"),
    "a long number": ("num_rounds = " + "9" * 5000, "not a TOML file"),
    "a long name": (f'policy = "{"a" * 10**6}"', "must be one of"),
    "a long key": ("a" * 10**6 + " = 1", "no field"),
    "a long file": ("#" * (config_file.LARGEST + 1), "at most 10 MiB"),
    "letters for a terminal": ('policy = "\\u001b[31m\\u009b"', "must be one of"),
    # Files that a config names.
    "latency from a device": ('[latency]\nname = "traces"\npath = "/dev/zero"', "regular file"),
    "latency from a pipe": ('[latency]\nname = "traces"\npath = "pipe"', "regular file"),
    "latency from more than the machine": (
        '[latency]\nname = "traces"\npath = "huge.csv"', "this machine has"),
    "availability from a device": (
        '[availability_trace]\nname = "intervals"\npath = "/dev/zero"', "regular"),
    "a long path": (f'[latency]\nname = "traces"\npath = "{"a" * 10**5}"', "cannot be read"),
    "code of a community": (
        '[learning.data]\nname = "tfds"\ndataset = "evil:net"\ndownload = true', "third-party"),
    "a data set elsewhere": (
        '[learning.data]\nname = "tfds"\ndataset = "../../etc"', "learning.data.dataset"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_config_file_runs_no_code(case):
    text, words = CONFIGS[case]
    os.mkfifo("pipe")
    with pathlib.Path("huge.csv").open("wb") as file:
        file.truncate(2**42)  # terabytes of nothing
    pathlib.Path("mine.toml").write_text(text)
    before = sorted(os.listdir())
    assert words in refused("run", "mine.toml", "--no-figures", "--no-report")
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("command", ["sweep", "tune", "compare"])
def test_no_command_calls_object_named_by_option(command):
    base = ["--policies=random"] if command == "compare" else ["digits_small"]
    more = ["--vary=reward.gamma=1..2"] if command == "tune" else []
    changes = ["--set=learning.model=flax", "--set=learning.model.source=os:system"]
    arguments = '--set=learning.model.arguments=[["command", "touch PWNED"]]'
    assert NO_KIND in refused(command, *base, *more, *changes, arguments)
    if command == "sweep":
        vary = "--vary=learning.model.source=os:system,os:abort"
        assert NO_KIND in refused(command, *base, changes[0], arguments, vary)


def test_python_reads_files_like_the_program():
    text = CONFIGS["shell"][0]
    pathlib.Path("mine.toml").write_text(text)
    table = config_file.parsed(text)
    for config in (
        *(config_file.load("mine.toml"), config_file.loads(text), config_file.from_dict(table)),
        config_file.changed(config_file.loads(text), ["num_rounds=3"]),
    ):
        with pytest.raises(ConfigError, match=NO_KIND):
            validate(config)


@pytest.mark.parametrize("source", ["flax.linen:Dense", "flax.nnx:Linear"])
def test_a_config_file_may_name_modules_of_flax(source):
    arguments = (
        '[["features", 10]]' if "linen" in source else '[["in_features", 64], ["out_features", 10]]'
    )
    validate(config_file.loads(model(f'"{source}"', arguments)))


# ---------------------------------------------------------------- --load

NETS = """
from os import system
import flax.linen as nn
class Net(nn.Module):
    width: int = 3
def make(width):
    raise RuntimeError("called")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [("Net", ""), ("make", NO_KIND), ("system", NO_KIND), ("nn.Dense", NOT_THERE)],
)
def test_config_may_name_modules_of_loaded_file(name, words):
    pathlib.Path("nets.py").write_text(NETS)
    pathlib.Path("mine.toml").write_text(model(f'"nets.py:{name}"', '[["width", 4]]'))
    assert "--load nets.py" in refused("run", "mine.toml")
    try:
        # What is right so far is refused by the last rule before a run.
        pathlib.Path("empty.npz").touch()
        data = ("--set=learning.data=files", "--set=learning.data.path=empty.npz")
        message = refused("run", "mine.toml", "--load", "nets.py", *data)
        assert (words or "empty.npz: must be an .npz file") in message
    finally:
        LOADED.clear()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.py", b"1 / 0", "ZeroDivisionError"),
        ("bad.py", b"def (", "SyntaxError"),
        ("bad.py", b"\x80\x04", "bad.py"),
        ("bad.py", b"(" * 10_000, "bad.py"),
        ("folder", None, "must be an existing Python file"),
        ("nowhere.py", None, "must be an existing Python file"),
    ],
)
def test_unloadable_file_is_refused(name, content, words):
    pathlib.Path("folder").mkdir()
    if content is not None:
        pathlib.Path(name).write_bytes(content)
    assert words in refused("compare", "--policies=random", "--load", name)


# ---------------------------------------------------------------- data that were pickled


class Bomb:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("PWNED"),)


def pickled(path):
    np.savez(path, x=np.asarray([Bomb()], object), config=np.asarray([Bomb()], object))
    return path


def test_nothing_is_unpickled(tmp_path):
    path = str(pickled(tmp_path / "bomb.npz"))
    pathlib.Path("bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    for each in (path, "bomb.pkl"):
        with pytest.raises(ConfigError, match=r"must be an \.npz file") as error:
            Files(path=each).load()
        one_line(error.value)
        with pytest.raises(ConfigError, match="is not a saved selector") as error:
            Selector.load(each)
        one_line(error.value)


def test_a_pipe_among_the_files_of_clients_is_refused():
    pathlib.Path("data").mkdir()
    os.mkfifo("data/client0.npz")
    with pytest.raises(ConfigError, match="regular file"):
        Files(path="data").load()


# ---------------------------------------------------------------- names

OUTSIDE = (
    *("../x", "../../x", "/tmp/x", "a/b", "..", ".", "", "a\0b", "a\nb", "\x1b[2J", "a\\b", "C:x"),
    *("x" * 201, "\u00e9" * 101, "\ud800"),
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_result_name_stays_inside_results_folder(name, tmp_path):
    out = tmp_path / "out"
    for explicit in (True, False):
        with pytest.raises(ConfigError, match=r"--name .*must be a folder name") as error:
            result_folder.reserve(out, name, explicit=explicit)
        one_line(error.value)
        with pytest.raises(ConfigError, match="--name"):
            result_folder.existing(out, name, explicit=explicit)
    assert not out.exists()


@pytest.mark.parametrize("command", ["compare", "run", "sweep", "tune"])
def test_no_command_accepts_name_outside_results(command):
    pathlib.Path("mine.toml").write_text('learning = "none"\n')
    base = ["--policies=random"] if command == "compare" else ["mine.toml"]
    vary = ["--vary=reward.gamma=1..2"] if command == "tune" else []
    for name in ("../x", "/tmp/x", ""):
        assert "must be a folder name" in refused(command, *base, *vary, "--name", name)
    assert os.listdir() == ["mine.toml"]


def test_file_named_two_dots_gives_no_result_name():
    pathlib.Path("...toml").write_text('learning = "none"\n')
    assert "--name '..'" in refused("run", "...toml")


def test_link_in_place_of_result_folder_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    pathlib.Path("out").mkdir()
    pathlib.Path("out/mine").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="exists"):
        result_folder.reserve(pathlib.Path("out"), "mine", explicit=True)
    assert result_folder.reserve(pathlib.Path("out"), "mine", explicit=False).name == "mine-2"
    with pytest.raises(ConfigError, match="not a link"):
        result_folder.check_links(pathlib.Path("out/mine"))


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("label", ["=1+1", "@x", "-y", "a, b", 'a "b"', "tab\t", "\uff1d1"])
def test_labels_round_trip_through_csv_files(label, tmp_path):
    result = made({label: small_config(), "x": None})
    result = result.assign_coords({label: ("config", [-1.5, 2.0])})
    summary.save(summary.summary(result, 0.8), tmp_path / "summary.csv")
    books = {str(name): ledger(result.sel(config=name)) for name in result.config.values}
    ledger_table.save(books, tmp_path / "ledger.csv")
    for name in ("summary.csv", "ledger.csv"):
        with (tmp_path / name).open(newline="") as file:
            rows = list(csv.reader(file))
        assert {label, "x"} <= {row[0] for row in rows}, name
        assert len({len(row) for row in rows}) == 1
    with (tmp_path / "summary.csv").open(newline="") as file:
        assert next(csv.DictReader(file))[label] == "-1.5"


# ---------------------------------------------------------------- result folders


def test_labels_with_equal_file_names_get_separate_files(tmp_path):
    labels = ("a b", "a_b", "a_b-2", "a.b")
    configs = {label: small_config().replace(num_selected=1 + i) for i, label in enumerate(labels)}
    for _ in range(2):  # the second result replaces an interrupted one
        result_folder.save(made(configs), tmp_path, {"command": "pause-jax"})
    stems = ("a_b", "a_b-2", "a_b-2-2", "a.b")
    assert set(os.listdir(tmp_path / "configs")) == {f"{stem}.toml" for stem in stems}
    for stem, config in zip(stems, configs.values(), strict=True):
        assert config_file.load(tmp_path / "configs" / f"{stem}.toml") == config


def test_user_files_in_unfinished_folder_are_kept():
    for name in ("made_by.json", "chunk-000-0000000.npz", "mine.txt"):
        pathlib.Path(name).touch()
    discard_store(pathlib.Path())
    assert os.listdir() == ["mine.txt"]


# ---------------------------------------------------------------- stores


def tiny_plan():
    config = SimConfig(num_clients=6, num_selected=2, num_rounds=4, learning=None)
    return plan_sweep(config, jax.random.split(jax.random.key(0)), max_batch=1)


def test_pickled_chunk_is_not_read(tmp_path, caplog):
    store = Store.create(tmp_path / "kept", tiny_plan())
    pickled(store.path(Chunk(0, 0)))
    assert store.rows(Chunk(0, 0)) is None
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("harm", [damaged, rewritten])
def test_damaged_store_description_is_refused_or_read_unchanged(harm, tmp_path):
    plan, path = tiny_plan(), tmp_path / "made_by.json"
    Store.create(tmp_path, plan)
    whole = path.read_bytes()
    for seed in range(100):
        content = harm(whole, seed)
        path.write_bytes(content)
        read = outcome(lambda: Store.create(tmp_path, plan), str(tmp_path), content, longest=2100)
        assert read is None or read.plan.chunkings == plan.chunkings, (seed, content)


@pytest.mark.parametrize("harm", [damaged, repacked])
def test_damaged_chunk_is_missing_or_read_unchanged(harm, tmp_path):
    store, chunk = Store.create(tmp_path, tiny_plan()), Chunk(0, 0)
    values = {"clock": np.arange(8.0).reshape(1, 8), "clients": np.arange(6).reshape(1, 3, 2)}
    rows = Rows(values, "update", 7, ("loss",))
    store.save(chunk, rows)
    whole = store.path(chunk).read_bytes()
    missing = 0
    for seed in range(100):
        store.path(chunk).write_bytes(harm(whole, seed))
        read = store.rows(chunk)
        missing += read is None
        if read is not None:
            assert read[1:] == rows[1:]
            for name, value in values.items():
                np.testing.assert_array_equal(read.values[name], value)
    assert missing > 60


@pytest.mark.parametrize("harm", [damaged, rewritten])
def test_damaged_run_file_is_refused_or_has_known_fields(harm, tmp_path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "run.json"
    about = {"command": "pause-jax run", "seed": 0, "seeds": 3, "made_by": "0" * 16}
    about |= {"interrupted": "no", "versions": {"jax": "1", "pause_jax": "2"}}
    result_folder.write_run(path.parent, about)
    whole = path.read_bytes()
    valid = result_folder.about(path.parent)
    for seed in range(100):
        content = harm(whole, seed)
        path.write_bytes(content)
        read = outcome(
            lambda: result_folder.about(path.parent), str(path.parent), content, longest=2100
        )
        if harm is damaged and read is not None:
            assert read.keys() <= valid.keys()
        assert all(
            isinstance(version, str) for version in (read or {}).get("versions", {}).values()
        )


# ---------------------------------------------------------------- data.nc

DATA = {
    "no NetCDF": (b"no", "cannot be read as NetCDF"),
    "pickle": (pickle.dumps(Bomb()), "cannot be read as NetCDF"),
    "the head of HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "cannot be read as NetCDF"),
    "no TOML": ("x = [", "not a TOML file"),
    "deep TOML": ("x = " + "[" * 5000, "not a TOML file"),
    "a number for TOML": (3, "not a TOML file"),
}


@pytest.fixture(scope="module")
def result():
    return made({"a": None, "b": None})


@pytest.mark.parametrize("kind", ["link", "soft link", "raw", "virtual"])
def test_values_stored_in_another_file_are_refused(kind, result):
    result.to_netcdf("data.nc", engine="h5netcdf")
    with h5py.File("secret.h5", "w") as file:
        file["secret"] = [1.0, 2.0]
    os.mkfifo("pipe")
    with h5py.File("data.nc", "a") as file:
        del file["config_toml"]
        if kind == "link":
            file["config_toml"] = h5py.ExternalLink("pipe", "/secret")
        elif kind == "soft link":
            file["config_toml"] = h5py.SoftLink("/config")
        elif kind == "raw":
            file.create_dataset("config_toml", (2,), "u1", external=[("/etc/passwd", 0, 2)])
        else:
            layout = h5py.VirtualLayout((2,), "f8")
            layout[:] = h5py.VirtualSource("secret.h5", "secret", (2,))
            file.create_virtual_dataset("config_toml", layout)
    assert "'config_toml' is in another file, but must be in this one" in refused("report", ".")


def test_impossible_sizes_are_refused_before_work():
    values = ",".join(map(str, range(400)))
    axes = [f"--vary=reward.{name}={values}" for name in ("gamma", "alpha", "beta")]
    line = refused("sweep", "digits_small", *axes)
    assert "defines 64000000 configs, but at most 10000" in line
    search = ("tune", "digits_small", "--vary=reward.gamma=1..2", "--objective=accuracy")
    for name in ("width", "budget", "seeds"):
        line = refused(*search, f"--{name}=100000000")
        assert line == f"{name} = 100000000: must be >= 1 and <= 10000."
    os.mkfifo("pipe")
    for path in ("pipe", "/dev/zero"):
        assert path in refused("run", path)
        assert "must be a regular file" in refused("fit", path)
        for source in ("leaf", "fedscale"):
            assert "must be a regular file" in refused("import", source, path, "--out", "out")
        with pytest.raises(ConfigError, match="must be a regular file"):
            config_file.load(path)


@pytest.mark.parametrize("case", DATA)
def test_forged_data_file_is_refused(case, result):
    change, words = DATA[case]
    if isinstance(change, bytes):
        pathlib.Path("data.nc").write_bytes(change)
    else:
        changed = result.assign_coords(config_toml=("config", [change, change]))
        changed.to_netcdf("data.nc", engine="h5netcdf")
    assert words in refused("report", ".")
    assert os.listdir() == ["data.nc"]


def test_report_of_forged_data_runs_no_code():
    cases = ("shell", "latency from a pipe")
    os.mkfifo("pipe")
    result = made(dict.fromkeys(cases))
    texts = [CONFIGS[case][0] for case in cases]
    result.assign_coords(config_toml=("config", texts)).to_netcdf("data.nc", engine="h5netcdf")
    done = CliRunner().invoke(program(), ["report", "."])
    assert done.exception is None, done.exception
    pathlib.Path("report.html").unlink()
    pathlib.Path("report.html").symlink_to("precious")
    assert "not a link" in refused("report", ".")


def test_the_page_on_trust_runs():
    names = play("docs/guides/trust.md")
    validate(names["config"])
