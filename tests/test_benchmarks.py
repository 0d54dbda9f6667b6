"""The benchmarks' harness on a tiny workload, with our own driver as the only contender."""

import pathlib
import sys

import jax
import numpy as np
import pytest
import typer
import typer.testing

from benchmarks import contenders, device_choices, harness, peers, report, store_cost, study
from benchmarks.contenders import CONTENDERS, OURS, Contender
from benchmarks.drivers.pause import model_of
from benchmarks.harness import Measured, Work, compare, largest_difference
from benchmarks.timing import Timing, in_turns
from benchmarks.workloads import (
    WORKLOADS,
    first_weights,
    flops,
    read_data,
    read_weights,
    weighted_layers,
    write_data,
    write_weights,
)
from pause_jax.config import validate
from pause_jax.sweeps import store

pytestmark = pytest.mark.slow

PYTHON = pathlib.Path(sys.executable)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        (name, variant)
        for name, workload in WORKLOADS.items()
        for variant in ("", "xla", *(() if workload.normed else ("float32", "bfloat16")))
    ],
)
def test_our_model_is_the_workloads_network(name, variant):
    workload = WORKLOADS[name]
    network = model_of(workload, variant).network(10)
    sample = jax.ShapeDtypeStruct((1, *workload.shape), np.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), sample)
    params = variables["params"]
    kernels = [params[layer]["kernel"] for layer in sorted(params)]
    layers = weighted_layers(workload)
    assert [k.shape for k in kernels] == [x.kernel for x in layers if x.kind != "norm"]
    norms = sorted(variables.get("clear", {}).items())
    assert [n["scale"].shape for _, n in norms] == [x.kernel for x in layers if x.kind == "norm"]
    assert {kernel.dtype for kernel in kernels} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("variant", "convolves", "halves"),
    [
        ("products", False, False),
        ("xla", True, False),
        ("float32", True, False),
        ("bfloat16", True, True),
    ],
)
def test_a_variant_computes_as_it_says(variant, convolves, halves):
    workload = WORKLOADS["W1"]
    network = model_of(workload, variant).network(10)
    sample = jax.ShapeDtypeStruct((2, *workload.shape), np.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), sample)
    program = jax.make_jaxpr(network.predict)(variables, sample)
    assert ("conv_general_dilated" in str(program)) == convolves
    assert ("bf16" in str(program)) == halves
    assert program.out_avals[0].dtype == np.float32


def test_the_work_of_a_round_is_counted_by_hand():
    # mlp 784-32-16-10 has 25,760 weights without biases; two operations each, times three.
    assert flops(WORKLOADS["W2"]) == 6 * (784 * 32 + 32 * 16 + 16 * 10) * 200 * 15
    first, *_ = weighted_layers(WORKLOADS["W3"])
    assert first.positions == 30 * 30
    # PyTorch's tutorial network: 5 x 5 kernels, 400 inputs of the first dense layer, five epochs.
    forward = 28**2 * 75 * 6 + 10**2 * 150 * 16 + 400 * 120 + 120 * 84 + 84 * 10
    assert flops(WORKLOADS["W5_full"]) == 6 * forward * 5 * 500 * 100
    assert WORKLOADS["W5_full"].steps == 50


def test_cohorts_are_cyclic_and_a_clients_samples_can_be_equal(tmp_path):
    workload = WORKLOADS["tiny"]
    assert [workload.cohort_of(t) for t in range(3)] == [[0, 1], [2, 3], [0, 1]]
    write_data(workload, tmp_path / "data.npz", one_sample_each=True)
    x, y = read_data(str(tmp_path / "data.npz"))
    assert x.dtype == np.uint8
    for client in range(workload.clients):
        rows = workload.rows(client)
        assert (x[rows] == x[rows][0]).all()
        assert (y[rows] == y[rows][0]).all()
    assert (x[workload.rows(0)] != x[workload.rows(1)]).any()


def test_weights_survive_the_file_and_a_difference_is_seen(tmp_path):
    weights = first_weights(WORKLOADS["tiny"])
    write_weights(weights, tmp_path / "w.npz")
    again = read_weights(tmp_path / "w.npz")
    assert largest_difference(weights, again) == 0
    again[1][1][3] += 0.5
    assert largest_difference(weights, again) == 0.5


@pytest.mark.nightly
def test_the_harness_measures_us_and_reports_who_fails():
    said = list[str]()
    broken = (PYTHON, Contender("no_such_driver", None))
    contenders = {OURS: (PYTHON, CONTENDERS[OURS]), "broken": broken}
    measured = harness.measure("tiny", contenders, 2, said.append)
    assert len(measured[OURS].values) == 2
    assert measured[OURS].warmup > min(measured[OURS].values)
    assert measured[OURS].versions["jax"] == jax.__version__
    work = measured[OURS].work
    assert len(work.later) == 2
    # Imports come before the first run, and only the first run traces and compiles.
    assert work.start > work.first > work.once > 2 * max(work.later)
    assert "no_such_driver" in measured["broken"].failure
    assert any("2/2" in line for line in said)


@pytest.mark.nightly
def test_a_slow_contender_runs_once_and_its_value_includes_compilation(monkeypatch):
    monkeypatch.setattr(harness, "SLOW", 0.0)
    found = harness.measure("tiny", {OURS: (PYTHON, CONTENDERS[OURS])}, 3, lambda _: None)[OURS]
    assert found.slow
    assert len(found.values) == 1
    assert found.work is None
    assert "pause_jax was measured only once" in report.training("tiny", {OURS: found}, {})


@pytest.mark.nightly
def test_a_round_moves_the_weights_and_a_peer_that_does_not_train_is_told_apart():
    ours = (PYTHON, CONTENDERS[OURS])
    # With `idle=False` a driver plays its round when it saves; ours then saves its first weights.
    idler = (PYTHON, CONTENDERS[OURS]._replace(idle=False))
    plain = (PYTHON, CONTENDERS["plain JAX"])
    moved, found = compare("tiny", ours, {"idler": idler, "plain JAX": plain})
    # Two epochs of three steps of Adam at 0.001.
    assert 0.003 < moved < 0.0062
    assert found["idler"] == moved
    assert found["plain JAX"] < 1e-6


def test_targets_are_ok_below_or_not_measured():
    measured = {"W3": {OURS: Measured([1.0, 2.0]), "pfl": Measured([1.2, 3.0])}}
    lines = {
        line.split("|")[1].strip(): line
        for line in report.targets(measured, None).split("\n")
        if "|" in line
    }
    assert lines["W3: pfl, time / ours"].split("|")[3:5] == [" 1.35 ", " ok "]
    assert "not measured" in lines["W3: PyTorch loop, time / ours"]
    slower = {"W3": {OURS: Measured([1.0]), "pfl": Measured([1.2])}}
    assert "| 1.20 | below |" in report.targets(slower, None)
    seeds = {"1": Timing(9.0, [1.0]), "32": Timing(9.0, [20.0])}
    line = next(
        x for x in report.targets({}, ("mnist_small", seeds)).split("\n") if "32 seeds" in x
    )
    assert line.startswith("| mnist_small, ")
    assert "| 1.60 | below |" in line


def test_study_extrapolates_the_runs_of_peers_that_finished():
    found = {
        OURS: Measured([0.001]),
        "pfl": Measured([0.1, 0.2, 0.3], warmup=14.0),
        "Flower": Measured([], failure="no answer"),
        report.MATMUL_NAME: Measured([1e9], warmup=1.0),
    }
    text = report.study([100.0, 50.0, 10.0], found)
    # 14 s, and 63 further runs of 60 rounds at 0.2 s.
    assert "| pfl | 770 | 15.40 | 14 | 12 | 896 |" in text
    assert "Flower" not in text
    assert "time / ours | 20 | 15.40 | below" in report.targets({"W6": found}, None, [50.0])


@pytest.mark.nightly
def test_study_draws_a_figure_of_all_policies(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "POLICIES", ("random", "fastest"))
    study.main(tmp_path / "study.png", rounds=2)
    assert (tmp_path / "study.png").stat().st_size > 10_000


def test_a_peer_without_its_python_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(contenders.PYTHONS, "blazefl", "python0.0")
    with pytest.raises(RuntimeError, match=r"python0\.0 is missing"):
        contenders.install("blazefl", tmp_path)


def test_a_peer_that_is_not_installed_is_in_the_report():
    text = report.training("tiny", {OURS: Measured([1.0])}, {"pfl": "not installed: no network"})
    assert "- pfl is not installed: no network." in text


def test_a_start_is_compiling_and_the_rest_where_these_can_be_told():
    measured = {
        OURS: Measured([1.0], 9.0, work=Work(start=7.0, first=5.0, later=[1.0, 1.5, 2.0])),
        "PyTorch loop": Measured([1.0], 9.0, work=Work(start=7.0, first=5.0, later=[1.0])),
        "Flower": Measured([1.0], 9.0),
    }
    lines = report.training("tiny", measured, {}).splitlines()
    columns = [line.split("|")[-4:-1] for line in lines if line.startswith("|")]
    head, _, ours, loop, flower = ([cell.strip() for cell in row] for row in columns)
    assert head == ["start, s", "compiling, cpu s", "rest of start, cpu s"]
    assert ours == ["9.0", "3.5", "3.5"]
    assert loop == ["9.0", "-", "7.0"]
    assert flower == ["9.0", "-", "-"]


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="W9"):
        peers.main(workloads="W9", out=tmp_path / "report.md")


def test_calls_are_timed_in_turns_and_one_that_fails_says_why():
    order = []

    def fail():
        order.append("b")
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore lines")

    calls = {"a": lambda: order.append("a"), "b": fail, "c": lambda: order.append("c")}
    found = in_turns(calls, repeat=2, keep_going=True)
    assert order == [*"abc", *"ac", *"ac"]
    assert len(found["a"].later) == 2
    assert device_choices.cells(found)["b"] == "failed: RESOURCE_EXHAUSTED: out of memory"
    with pytest.raises(RuntimeError, match="EXHAUSTED"):
        in_turns(calls, repeat=2)

    def stop():
        raise RuntimeError("stopped") from KeyboardInterrupt()

    with pytest.raises(RuntimeError, match="stopped"):
        in_turns({"c": stop}, repeat=1, keep_going=True)


def test_what_a_store_costs_is_measured(capsys, monkeypatch):
    settings = list(store_cost.settings(1))
    for config in [config for setting in settings for config in setting.configs.values()]:
        validate(config)
    bandit = {"tiny": settings[-1].configs["random"].replace(num_rounds=4, track_regret=False)}
    small = [setting._replace(configs=bandit, seeds=1) for setting in settings]
    monkeypatch.setattr(store_cost, "settings", lambda turns: small)
    monkeypatch.setattr(store, "SAVE_EVERY", store.SAVE_EVERY)  # main changes it
    store_cost.main(turns=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.endswith(" %") and "without a store" in line for line in lines)
