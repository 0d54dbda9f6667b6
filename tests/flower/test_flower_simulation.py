"""Real Flower simulations of ten clients with planted delays: ``make flower``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import binomtest

from pause_jax import simulate
from pause_jax.deploy.flower import Ledger
from pause_jax.world.latency import Traces
from pause_jax.world.latency.measured import parse
from tests.flower.world import KEY, config_of

ROOT = Path(__file__).parents[2]
FAST, SLOW = (0, 1, 2, 3), (4, 5, 6, 7, 8, 9)
FIRST, LATER = 24, 4


def play(folder: Path, rounds: int, plan: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Play in a process of its own, as Ray stays in the one that it was started in."""
    (folder / "plan.json").write_text(json.dumps(plan))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "tests.flower.play", str(folder), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "played.json").read_text()), done.stderr


def releases(folder: Path, client: int, horizon: float = 25.0) -> Ledger:
    return Ledger(folder / "ledgers" / f"{client}.jsonl", config_of(horizon).privacy)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """24 rounds, the end of everything, and 4 more in a new run, whose nodes have other ids."""
    folder = tmp_path_factory.mktemp("fleet")
    plan = {"delays": [0.05] * len(FAST) + [1.2, 1.25, 1.3, 1.35, 1.4, 1.45]}
    first, first_log = play(folder, FIRST, plan)
    later, later_log = play(folder, LATER, plan)
    assert [each["round"] for each in later["rounds"]] == [*range(FIRST + 1, FIRST + LATER + 1)]
    return folder, first["rounds"] + later["rounds"], later, first_log + later_log


def test_policy_learns_which_clients_are_fast(fleet):
    _, rounds, _, _ = fleet
    early = np.isin([each["clients"] for each in rounds[:4]], FAST)
    late = np.isin([each["clients"] for each in rounds[12:]], FAST)
    # The first 12 choices include all ten clients, so at most 4 + 2 of them are fast.
    assert early.mean() <= 0.5
    # How many are fast later depends on the load of the machine. Chance alone gives 40 %.
    assert binomtest(int(late.sum()), late.size, 0.4, alternative="greater").pvalue < 0.01
    assert late.mean() > early.mean()
    for each in rounds:
        assert not each["failed"]
        for client, seconds in each["seconds"].items():
            assert seconds > (0.05 if int(client) in FAST else 1.2)


# Rounds that were not played count as 9 s each.
@pytest.mark.filterwarnings("ignore:latency.min_latency")
def test_simulate_with_measured_latencies_makes_the_same_choices(fleet):
    _, rounds, later, _ = fleet
    config = config_of()
    seconds = np.full((config.num_clients, config.num_rounds), 9.0)
    for each in rounds:
        for client, taken in each["seconds"].items():
            seconds[int(client), each["round"] - 1] = taken
    world = Traces.of(list(seconds)).replace(order="played", min_latency=config.latency.min_latency)
    result = simulate(config.replace(latency=world), KEY)
    chosen = [set(row[row >= 0].tolist()) for row in np.asarray(result.clients)]
    assert [set(each["clients"]) for each in rounds] == chosen[: len(rounds)]
    other = simulate(config.replace(latency=world), jax.random.key(4))
    assert [set(row.tolist()) for row in np.asarray(other.clients)] != chosen
    # The policy's own numbers, of all rounds in both runs.
    up_to = result.played & (np.arange(config.num_rounds) < len(rounds))
    counts = [sum(k in chosen[t] for t in np.flatnonzero(up_to)) for k in range(10)]
    assert later["counts"] == counts


def test_ledgers_agree_and_persist(fleet):
    folder, rounds, later, log = fleet
    told: dict[int, list[float]] = {client: [] for client in range(10)}
    releasing: dict[int, list[int]] = {client: [] for client in range(10)}
    for number, each in enumerate(rounds):
        for client, epsilon in zip(each["clients"], each["epsilon"], strict=True):
            told[client].append(epsilon)
            releasing[client].append(number)
    for client in range(10):
        ledger = releases(folder, client)
        assert ledger.participations == later["counts"][client] == len(told[client])
        np.testing.assert_allclose(ledger.spent, sum(told[client]), rtol=1e-6)
        runs = {json.loads(line)["run"] for line in ledger.path.read_text().split("\n")[1:]}
        assert len(runs) == len({number >= FIRST for number in releasing[client]})
    assert any(min(numbers) < FIRST <= max(numbers) for numbers in releasing.values())
    assert "its ledger has" not in log


def test_fleet_file_contains_the_observed_latencies(fleet):
    folder, rounds, _, _ = fleet
    measured = parse((folder / "state" / "fleet.csv").read_bytes(), "fleet.csv")
    assert len(measured.client) == sum(len(each["seconds"]) for each in rounds)
    slow = np.isin(measured.client, SLOW)
    assert measured.seconds[slow].min() > 0.6
    assert np.median(measured.seconds[~slow]) < 0.6


def test_strategy_handles_failing_stalled_invalid_and_spent_clients(tmp_path):
    spent = releases(tmp_path, 6)
    for _ in range(25):
        assert spent.enter() is not None
    plan = {"delays": [0.02] * 9 + [5.0], "faults": {"8": "raise", "7": "nan"}, "timeout": 2.5}
    played, log = play(tmp_path, 7, plan)
    rounds = played["rounds"]
    chosen = [client for each in rounds for client in each["clients"]]
    assert {6, 7, 8, 9} <= set(chosen)
    failed = {k: v for each in rounds for k, v in each["failed"].items()}
    idle = {client for each in rounds for client in each["idle"]}
    # As slow as the server's patience; 9 may have released something, the others have not.
    assert failed == {"7": 2.5, "8": 2.5, "9": 2.5}
    assert idle == {6, 7, 8}
    assert played["spent"] == [6]
    assert chosen.count(6) == 1
    for words in ("out of memory, as planted", "not finite: nothing was", "within 2.5", "spent"):
        assert words in log
    for client in (0, 1, 2, 3, 4, 5, 7, 8):
        assert releases(tmp_path, client).participations == played["counts"][client]
    assert played["counts"][9] == chosen.count(9)
    model = json.loads((tmp_path / "model.json").read_text())
    assert np.isfinite(model["w"]).all()
    assert model["steps"] == 7
