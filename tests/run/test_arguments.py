"""What `simulate` and `sweep` take beside configs, and runs that are larger than the machine."""

import os

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, presets, simulate, sweep
from pause_jax.base import memory
from pause_jax.learning import Characters, LinearRegression
from pause_jax.run import programs
from pause_jax.run.preflight import check_size
from pause_jax.run.record.result import chosen
from pause_jax.run.rounds import loop
from tests.config.test_config_errors import assert_clear
from tests.support.command import run

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 2)
BANDIT = SimConfig(num_clients=6, num_selected=2, num_rounds=3, learning=None)
CPU = jax.devices()[0]


def swept(configs=BANDIT, keys=KEYS, **kwargs):
    return sweep(configs, keys, progress=False, **kwargs)


BAD = [
    (lambda: simulate(BANDIT, KEYS[:0]), "key has shape (0,)"),
    (lambda: swept(keys=KEYS[:0]), "keys has shape (0,): must have shape [S] with S >= 1"),
    (lambda: swept(keys=jax.random.split(KEY, (2, 2))), "keys has shape (2, 2): must have shape"),
    (lambda: swept(keys=np.zeros((3, 2), np.uint32)), "key = array([[0, 0], [0, 0], [0, 0]]"),
    (lambda: swept(keys=jax.random.PRNGKey(0)), "must be a typed JAX key"),
    *(
        (lambda run=run, devices=devices: run(devices), f"devices = {devices!r}: must be a list")
        for devices in ([], "cpu", ["cpu"], CPU, [CPU, CPU], 3)
        for run in (
            lambda devices: simulate(BANDIT, KEY, devices=devices),
            lambda devices: swept(devices=devices),
        )
    ),
    (lambda: simulate(BANDIT, KEY, record=()), "record = (): must have at least one quantity"),
    (lambda: swept(record=()), "record = (): must have at least one quantity"),
    (lambda: swept(record=3), "record = 3: must have at least one quantity"),
    (lambda: swept(max_batch=0), "max_batch = 0: must be a whole number >= 1"),
    (lambda: swept(max_batch=1.5), "max_batch = 1.5: must be a whole number"),
    (lambda: swept(max_batch=True), "max_batch = True: must be a whole number"),
    (lambda: swept(memory_limit="2"), "memory_limit = '2': must be a finite number > 0"),
    (lambda: swept(memory_limit=float("inf")), "memory_limit = inf: must be a finite number"),
    (lambda: swept(3), "configs = 3: must be one or more SimConfigs"),
    (lambda: swept(iter(())), "configs is empty"),
    (lambda: swept({"a\0b": BANDIT}), r"configs: name 'a\x00b' must be a printable string"),
    (lambda: swept({1: BANDIT}), "configs: name 1 must be a printable string"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_argument_gives_one_clear_line(call, words):
    with pytest.raises(ConfigError) as error:
        call()
    assert_clear(error)
    assert words in str(error.value)


def test_devices_can_be_any_iterable():
    series = [CPU], (CPU,), np.asarray([CPU])
    same = [swept(devices=devices, record=("clock",)).clock.values for devices in series]
    np.testing.assert_array_equal(*same[:2])
    np.testing.assert_array_equal(*same[1:])


# ---------------------------------------------------------------- memory

HUGE = [
    (lambda: swept(BANDIT.replace(num_clients=10**9)), "num_clients = 1000000000: a round needs"),
    (
        lambda: simulate(BANDIT.replace(num_rounds=10**9), KEY),
        "num_rounds = 1000000000: the record",
    ),
    (
        lambda: swept(BANDIT.replace(num_rounds=10**7), jax.random.split(KEY, 1000)),
        "num_clients = 6, num_rounds = 10000000: the record of 1000 runs needs",
    ),
    (
        lambda: simulate(
            presets.digits_small().override({"learning.model.hidden": (10**6, 10**6)}), KEY
        ),
        "a round needs",
    ),
    (
        lambda: LinearRegression(num_samples=10**9, num_features=10**4).load(),
        "learning.data.num_samples = 1000000000, num_features = 10000: the data set needs",
    ),
]


@pytest.mark.parametrize(("call", "words"), HUGE)
def test_run_larger_than_memory_is_refused_early(call, words):
    with pytest.raises(ConfigError) as error:
        call()
    assert_clear(error)
    assert words in str(error.value)
    assert "GiB, but this machine has" in str(error.value)


def test_command_line_refuses_a_too_large_run_in_one_message(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "machine_bytes", lambda: 2**28)
    for change, words in (
        ("num_clients=1000000000", "a round needs"),
        ("num_rounds=1000000", "the record of 3 runs needs"),
    ):
        changes = ("--set", "learning=none", "--set", change)
        assert run("sweep", "digits_small", *changes, "--no-figures") == 2
        error = " ".join(capsys.readouterr().err.split())
        assert "Traceback" not in error
        assert words in error


def test_memory_limit_is_read_from_the_machine(monkeypatch):
    quantities = chosen(("clock", "counts"))
    config = BANDIT.replace(num_rounds=1000)
    needed = 4 * (1000 + 6)  # of one run: the clock of each round, the counts of each client
    state = 10_000
    for there, runs, fits in ((3 * needed, 3, True), (3 * needed - 1, 3, False), (state, 1, True)):
        monkeypatch.setattr(memory, "machine_bytes", lambda there=there: there)
        if fits:
            check_size(config, None, quantities, runs)
        else:
            with pytest.raises(ConfigError, match=f"the record of {runs} runs needs"):
                check_size(config, None, quantities, runs)


def test_memory_check_adds_no_second_trace(monkeypatch):
    traced = []

    def init(*given):
        traced.append(given)
        return loop.init(*given)

    monkeypatch.setattr(programs, "init", init)
    simulate(BANDIT.replace(num_clients=7), KEY, record=("clock",))
    assert len(traced) == 1


def test_container_limit_reduces_available_memory(monkeypatch, tmp_path):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, expected in (("4096\n", 4096), ("max\n", whole)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "memory.max"), "/no/such/file"))
        assert memory.machine_bytes() == expected


def test_length_beyond_every_topic_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"learning.data.length = 100000000: must be less than the length of the longest",
    ):
        Characters(length=10**8).load()
