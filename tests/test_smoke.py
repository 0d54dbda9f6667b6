"""The quick tests of the whole: a run, a sweep, a policy's contract, regret, the command line."""

import jax
import numpy as np

from pause_jax import SimConfig, simulate, sweep
from pause_jax.learning import Digits, Learning, Linear
from pause_jax.policies import NAMED
from pause_jax.privacy import PerCoordinateLaplace
from pause_jax.testing import check_policy
from tests.support.command import run

CONFIG = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=5,
    eval_every=5,
    policy=NAMED["pause"],
    privacy=PerCoordinateLaplace(sensitivity=1e-3),
    learning=Learning(data=Digits(num_train=60), model=Linear(), max_steps=2),
)


def test_a_run_and_a_sweep_of_it_agree():
    keys = jax.random.split(jax.random.key(0), 2)
    rows = sweep({"pause": CONFIG}, keys, progress=False)
    run = simulate(CONFIG, keys[1])
    row = rows.isel(config=0, seed=1)
    np.testing.assert_array_equal(row.clients, run.clients)
    np.testing.assert_allclose(row.clock, run.clock, rtol=1e-6)
    np.testing.assert_allclose(row.test_loss, run.test_loss, rtol=1e-5)
    assert run.counts.sum() == CONFIG.num_rounds * CONFIG.num_selected
    assert not np.array_equal(rows.clock[0, 0], rows.clock[0, 1])


def test_a_policy_keeps_its_contract():
    check_policy(NAMED["cs_ucb"])


def test_the_genie_has_no_regret_and_others_have_less_than_random():
    base = SimConfig(num_clients=20, num_rounds=500, learning=None)
    configs = {name: base.replace(policy=NAMED[name]) for name in ("genie", "pause", "random")}
    keys = jax.random.split(jax.random.key(0), 2)
    regret = (
        sweep(configs, keys, record=("regret",), progress=False).regret.sum("round").mean("seed")
    )
    np.testing.assert_allclose(regret.sel(config="genie"), 0.0, atol=1e-3)
    assert 0 < regret.sel(config="pause") < 0.5 * regret.sel(config="random")


def test_help_lists_the_commands(capsys):
    assert run("--help") == 0
    printed = capsys.readouterr().out
    for command in ("compare", "sweep", "tune", "audit", "report", "show"):
        assert command in printed


def test_unknown_field_is_refused_with_a_suggestion(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run("compare", "--set", "num_client=3") == 2
    error = capsys.readouterr().err
    assert "num_clients" in error
    assert "Traceback" not in error
