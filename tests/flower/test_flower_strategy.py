"""The server's side, on threads in place of Flower's processes: choices, nodes, faults."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pause_jax import ConfigError, simulate
from pause_jax.deploy.flower import Ledger, PauseStrategy, Roster, TimedGrid, answer, introduce
from pause_jax.deploy.flower.strategy import Answer, average
from pause_jax.deploy.flower.strategy import _read as read_reply
from pause_jax.privacy import NoPrivacy
from pause_jax.rng import keys
from pause_jax.world.latency import LinearContext, Traces
from tests.flower import killed
from tests.flower.local import LocalGrid, nodes
from tests.flower.world import KEY, client_app, config_of, model, without_mod
from tests.reference import round_keys
from tests.support.hostile import damaged, outcome

ROOT = Path(__file__).parents[2]
ALL = range(10)
# Bytes of three numbers, which a reply declares to be one.
DECLARED = Array("int64", (), "numpy.ndarray", Array(np.arange(3)).data)
NONSENSE = Array("int64", (), "numpy.ndarray", b"nonsense")
NO_DELAY = [0.0] * 10


def played_traces(config):
    return Traces.of(np.asarray(killed.seconds()).T[:, 1:]).replace(
        order="played", min_latency=config.latency.min_latency
    )


@pytest.mark.parametrize("policy", ["sa_pause", "pause_thompson"])
def test_flower_and_simulation_make_the_same_choices(tmp_path, policy, warned):
    config = config_of(horizon=6.0, policy=policy)
    config = config.replace(latency=played_traces(config))
    result = simulate(config, KEY)
    ledger = f"{tmp_path}/{{partition-id}}"
    app = client_app(NO_DELAY, ledger, privacy=config.privacy, reported=killed.seconds())
    strategy = PauseStrategy(config, KEY, seconds="reported", poll_seconds=0.002, min_available=10)
    strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=25)
    chosen = [set(each.choice.clients.tolist()) for each in strategy.history]
    assert warned == []
    rows = np.asarray(result.clients)[:25]
    assert chosen == [set(row[row >= 0].tolist()) for row in rows]
    assert chosen[-1] == set()  # after twenty rounds of three all budgets of six are spent
    counts = [Ledger(tmp_path / str(k), config.privacy).participations for k in ALL]
    np.testing.assert_array_equal(counts, result.counts)
    np.testing.assert_array_equal(counts, strategy.selector.counts)
    spent = [Ledger(tmp_path / str(k), config.privacy).spent for k in ALL]
    np.testing.assert_allclose(spent, result.spent, rtol=1e-6)


def test_power_of_choice_asks_for_losses_and_takes_the_largest(tmp_path, warned):
    config = config_of(policy="power_of_choice").replace(privacy=NoPrivacy())
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", privacy=config.privacy)
    heard = []

    def loss(arrays, batch_size, context):
        assert batch_size is None
        heard.append(float(arrays["scale"].numpy()))
        client = context.node_config["partition-id"]
        if client == 4:
            raise RuntimeError("planted")
        return np.nan if client == 7 else 1.0 + client

    grid = LocalGrid(answer(app, loss=loss), nodes(*ALL))
    strategy = PauseStrategy(config, KEY, poll_seconds=0.002, min_available=10)
    strategy.start(grid, model(), num_rounds=8)
    asked = [int(node) - 100 for node, kind in grid.asked if kind == "query.pause_loss"]
    assert len(asked) == 8 * 6  # d = 2 m candidates a round
    for place, each in enumerate(strategy.history):
        candidates = asked[6 * place : 6 * place + 6]
        told = sorted(set(candidates) - {4, 7}, reverse=True)
        # Those of whom nothing was ever heard come first.
        unheard = sorted(set(candidates) & {4, 7})
        assert set(each.choice.clients.tolist()) == set((unheard + told)[:3])
    assert any("client 4 did not answer" in each for each in warned)
    assert any("client 7 answered pause_loss = nan" in each for each in warned)
    assert len(set(heard)) > 1, "the model of the round is taken along"


@pytest.mark.parametrize("policy", ["rbcs_f", "fedcs"])
def test_policy_with_features_makes_the_choices_of_simulate(tmp_path, policy, warned):
    config = config_of(policy=policy).replace(latency=LinearContext(), privacy=NoPrivacy())
    result, stream = simulate(config, KEY), keys.streams(KEY).world
    seconds: list[list[float]] = [[]]
    known: list[list[list[float]]] = [[]]
    now: list[int] = []
    for t in range(1, 26):
        key = round_keys.latency(stream, t)
        seconds.append(np.asarray(config.latency.sample(key, 10)).tolist())
        known.append(np.asarray(config.latency.features(key, 10)).tolist())
    ledger = f"{tmp_path}/{{partition-id}}"
    app = client_app(NO_DELAY, ledger, privacy=config.privacy, reported=seconds)

    def features(context):
        return known[len(now)][context.node_config["partition-id"]]

    class Counting(PauseStrategy):
        def configure_train(self, server_round, *rest):
            now.append(server_round)
            return super().configure_train(server_round, *rest)

    strategy = Counting(config, KEY, seconds="reported", poll_seconds=0.002, min_available=10)
    strategy.start(LocalGrid(answer(app, features=features), nodes(*ALL)), model(), 25)
    chosen = [set(each.choice.clients.tolist()) for each in strategy.history]
    rows = np.asarray(result.clients)[:25]
    assert chosen == [set(row[row >= 0].tolist()) for row in rows]
    assert warned == []


def test_client_without_features_is_unavailable(tmp_path, warned):
    config = config_of(policy="rbcs_f").replace(latency=LinearContext(), privacy=NoPrivacy())
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", privacy=config.privacy)

    def features(context):
        if context.node_config["partition-id"] in (0, 1):
            raise RuntimeError("planted")
        return 1.0, 0.5

    strategy = PauseStrategy(config, KEY, poll_seconds=0.002, min_available=10)
    strategy.start(LocalGrid(answer(app, features=features), nodes(*ALL)), model(), 6)
    chosen = {int(k) for each in strategy.history for k in each.choice.clients}
    assert len(chosen) >= 3
    assert not chosen & {0, 1}
    assert any("client 0 did not answer" in each for each in warned)


def test_server_killed_between_rounds_makes_the_same_choices(tmp_path):
    whole = killed.play(tmp_path / "whole", 12)
    assert killed.play(tmp_path / "halves", 6) + killed.play(tmp_path / "halves", 6) == whole


def test_server_killed_within_a_round_has_charged_its_clients(tmp_path, warned):
    command = [sys.executable, "-m", "tests.flower.killed", str(tmp_path), "12", "7"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    released = np.asarray([_participations(tmp_path, client) for client in ALL])
    assert 18 < released.sum() <= 21, "round 7 was cut off after the first release"
    kept = PauseStrategy(config_of(), KEY, state=tmp_path / "state").selector
    assert kept.round == 7
    assert not kept.is_open
    assert kept.counts.sum() == 21
    assert (kept.counts >= released).all()
    assert any("round 7 was open when the server stopped" in text for text in warned)
    killed.play(tmp_path, 10)
    state = PauseStrategy(config_of(), KEY, state=tmp_path / "state").selector
    assert state.round == 17
    for client in ALL:
        assert _participations(tmp_path, client) <= state.counts[client]
    # Charges of round 7 stay, although at most two of its clients released nothing.
    assert state.counts.sum() == 21 + 30


def _participations(folder, client):
    return Ledger(folder / "ledgers" / str(client), config_of().privacy).participations


def test_spent_client_reports_again_after_restart(tmp_path):
    config = config_of(horizon=1.0, policy="round_robin")
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", privacy=config.privacy)
    for client in ALL:
        Ledger(tmp_path / str(client), config.privacy).enter()
    for _ in range(2):
        strategy = PauseStrategy(config, KEY, poll_seconds=0.002)
        strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=4)
        assert strategy.roster.spent == set(ALL)
        assert strategy.history[-1].choice.clients.size == 0 or not strategy.history[-1].seconds


def test_new_model_is_the_weighted_average_of_the_answers(tmp_path):
    size = np.arange(1, 11)
    config = config_of(policy="all", privacy=NoPrivacy())

    def reply(arrays, client):
        if client in (3, 8):
            raise RuntimeError("planted")
        added = {name: each + (client if name != "steps" else 0) for name, each in arrays.items()}
        return added, {"num-examples": client, "list": [1.0]}

    strategy = PauseStrategy(config, KEY, data_size=size, poll_seconds=0.002)
    result = strategy.start(LocalGrid(without_mod(reply), nodes(*ALL)), model(), num_rounds=1)
    weights = np.where(np.isin(ALL, (3, 8)), 0.0, size)
    mean = (weights * np.arange(10)).sum() / weights.sum()
    for name, array in model().items():
        added = 0 if name == "steps" else mean
        np.testing.assert_allclose(result.arrays[name].numpy(), array.numpy() + added, rtol=1e-6)
        assert result.arrays[name].dtype == array.dtype
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["num-answered"], metrics["num-failed"]) == (8, 2)
    assert strategy.history[0].idle == (3, 8)


def test_average_keeps_equal_integers():
    answers = {k: Answer({"steps": np.asarray(7)}, {}, 1.0) for k in range(3)}
    for drawn in np.random.default_rng(0).random((100, 3)):
        record = average(answers, dict(enumerate((drawn / drawn.sum()).tolist())))
        assert record is not None
        assert record["steps"].numpy() == 7


def test_round_without_answers_keeps_the_model(tmp_path):
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", faults=dict.fromkeys(ALL, "raise"))
    strategy = PauseStrategy(config_of(), KEY, poll_seconds=0.002)
    result = strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=2)
    assert not result.arrays
    assert (strategy.selector.counts == 0).all()
    assert all(set(each.failed.values()) == {3600.0} for each in strategy.history)


def test_grid_times_each_reply_and_stops_at_the_timeout(tmp_path):
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}")
    timed = TimedGrid(LocalGrid(app, nodes(0, 1, 2), {0: 0.05, 1: 1.5, 2: 5.0}), 0.005)
    content = RecordDict({"arrays": model()})
    start = time.monotonic()
    messages = [Message(content, node, "train") for node in (100, 101, 102, 999)]
    replies = list(timed.send_and_receive(messages, timeout=3.0))
    assert 3.0 <= time.monotonic() - start < 5.0
    by_node = {timed.nodes[message]: seconds for message, seconds in timed.seconds.items()}
    assert set(by_node) == {100, 101}
    assert 0.05 < by_node[100] < by_node[101] - 0.5
    assert 1.5 < by_node[101] < 3.0
    assert {reply.metadata.src_node_id for reply in replies} == {100, 101}
    assert list(timed.send_and_receive([], timeout=9.0)) == []
    with pytest.raises(ConfigError, match="poll_seconds = 0: must be > 0"):
        TimedGrid(LocalGrid(app, {}), 0)


def test_late_client_fails_and_remains_charged(tmp_path):
    config = config_of(policy="all", num_selected=10)
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", privacy=config.privacy)
    grid = LocalGrid(app, nodes(*ALL), {9: 4.0})
    strategy = PauseStrategy(config, KEY, poll_seconds=0.005, timeout_seconds=2.0)
    result = strategy.start(grid, model(), num_rounds=1)
    (first,) = strategy.history
    assert first.failed == {9: 2.0}
    assert first.idle == ()
    assert set(first.seconds) == set(range(9))
    assert result.train_metrics_clientapp[1]["num-failed"] == 1
    time.sleep(3.0)
    assert Ledger(tmp_path / "9", config.privacy).participations == 1
    assert strategy.selector.counts[9] == 1


def test_returning_nodes_keep_their_client_numbers(tmp_path):
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}")
    grid = LocalGrid(app, nodes(4, 0, 7))
    roster, timed = Roster(10), TimedGrid(grid, 0.002)
    assert roster.present(timed, 5.0) == {4: 100, 0: 101, 7: 102}
    asked = len(grid.asked)
    del grid.nodes[101]
    assert roster.present(timed, 5.0) == {4: 100, 7: 102}
    assert len(grid.asked) == asked  # who was asked is not asked again
    grid.nodes[555] = {"partition-id": 0}  # client 0 starts again, as another node
    assert roster.present(timed, 5.0) == {4: 100, 7: 102, 0: 555}


def test_nodes_without_valid_numbers_are_ignored_with_a_warning(tmp_path, warned):
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}")
    silent = ClientApp()
    everyone = {**nodes(3, 3, 10), 500: {}, 501: {"partition-id": "two"}, 502: {"mute": True}}

    def mixed(message, context):
        return (silent if "mute" in context.node_config else app)(message, context)

    timed = TimedGrid(LocalGrid(mixed, everyone), 0.002)
    assert Roster(10).present(timed, 5.0) == {3: 100}
    text = "\n".join(warned)
    assert "node 101 has the same client number (3) as node 100" in text
    assert "node 102 reported partition-id = 10: must be between 0 and 9" in text
    assert "node 500 reported partition-id = -1" in text
    assert "node 501 reported partition-id = -1" in text
    assert "node 502 did not report its client number" in text


def test_round_waits_for_enough_clients_and_skips_absent_ones(tmp_path):
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}")
    grid = LocalGrid(app, nodes(2, 5))
    strategy = PauseStrategy(config_of(), KEY, poll_seconds=0.002, wait_seconds=0.2)
    strategy.start(grid, model(), num_rounds=4)
    assert {tuple(sorted(each.choice.clients.tolist())) for each in strategy.history} == {(2, 5)}
    grid.nodes = {}
    with pytest.raises(ConfigError, match=r"no node with a valid client number .* after 0.2 s"):
        PauseStrategy(config_of(), KEY, wait_seconds=0.2).start(grid, model(), num_rounds=1)


def test_client_ledger_takes_precedence_over_the_server(tmp_path, warned):
    config = config_of(horizon=4.0, policy="all")
    for _ in range(3):
        Ledger(tmp_path / "6", config.privacy).enter()
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", privacy=config.privacy)
    strategy = PauseStrategy(config, KEY, state=tmp_path / "state", poll_seconds=0.002)
    strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=2)
    assert "its ledger has 4 releases (last epsilon 50), but the server counted 1 " in warned[0]
    assert 6 in strategy.history[0].choice.clients
    assert 6 not in strategy.history[1].choice.clients
    np.testing.assert_array_equal(strategy.selector.counts, [2] * 6 + [4] + [2] * 3)
    assert PauseStrategy(config, KEY, state=tmp_path / "state").selector.counts[6] == 4


def test_client_that_reports_fewer_releases_stays_charged(tmp_path, warned):
    config = config_of(horizon=4.0, policy="all")
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}", privacy=config.privacy)
    strategy = PauseStrategy(config, KEY, poll_seconds=0.002)
    for _ in range(5):
        (tmp_path / "6").unlink(missing_ok=True)  # a new ledger has a full budget
        strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=1)
    assert "its ledger has 1 releases (last epsilon 50), but the server counted 2" in warned[0]
    assert [6 in each.choice.clients for each in strategy.history] == [True] * 4 + [False]
    assert strategy.selector.counts[6] == 4


def test_client_without_the_mod_is_named(warned):
    app = without_mod(lambda arrays, client: (arrays, {"x": 1.0}))
    strategy = PauseStrategy(config_of(), KEY, poll_seconds=0.002)
    strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=1)
    assert len(strategy.history[0].seconds) == 3
    assert all("Without the PrivateRelease mod" in text for text in warned)
    assert len(warned) == 3


SECOND, SECONDS = {"pause-seconds": 1.0}, "pause-seconds"


@pytest.mark.parametrize(
    ("arrays", "metrics", "words"),
    [
        ({"w": np.zeros(3)}, {}, r"'w' has shape \(3,\): must be"),
        ({"w": np.full((2, 3), np.inf)}, {}, "'w' is not finite"),
        ({"steps": NONSENSE}, {}, "'steps' cannot be read"),
        ({"steps": DECLARED}, SECOND, r"'steps' has shape \(3,\): must be \(\)"),
        ({}, {SECONDS: 1e39, "loss": 1.0}, r"`float` <= .* `\$.pause-seconds`"),
        ({}, {SECONDS: [1.0]}, r"`float`, got `array` - at `\$.pause-seconds`"),
        ({}, {"loss": 1.0}, "missing required field `pause-seconds`"),
        ({}, SECOND, r"missing required field `loss`.* such as a loss, .*\(clear=NAMES"),
        ({}, SECOND | {"loss": np.nan}, r"`float` >= -1e\+19 - at `\$.loss`"),
        (
            {},
            SECOND | {"pause-participation": 2**40},
            r"`int` <= 1073741824 - at `\$.pause-participation`",
        ),
        (None, {}, "has 0 ArrayRecords: must have exactly one"),
    ],
)
def test_invalid_reply_fails_with_its_reason(arrays, metrics, words, warned):
    app = without_mod(lambda came, client: (came | arrays, metrics))
    if arrays is None:
        app = introduce(ClientApp())
        app.train()(lambda message, context: Message(RecordDict({}), reply_to=message))
    config = config_of(policy="oort", privacy=NoPrivacy())
    strategy = PauseStrategy(config, KEY, seconds="reported", poll_seconds=0.002)
    strategy.start(LocalGrid(app, nodes(*ALL)), model(), num_rounds=1)
    (only,) = strategy.history
    assert len(only.failed) == 3
    assert only.seconds == {}
    assert only.idle == ()
    assert (strategy.selector.counts.sum()) == 3
    assert len(warned) == 3
    assert all(re.search(words, text) for text in warned)


REPLY = {"pause-seconds": 1.5, "loss": 0.5, "pause-participation": 3, "pause-epsilon": 2.0}
METRICS: tuple[Any, ...] = (
    *(0, -1, 2**31, 2**63 - 1, -0.5, 1e39, 1e300, -1e300, 1e-50, np.nan, np.inf, -np.inf),
    *([], [1.0], [np.nan] * 3),
)


@pytest.mark.parametrize("needs_loss", [False, True])
def test_damaged_reply_is_rejected_or_usable(needs_loss):
    sent = model()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        metrics: dict[str, Any] = dict(REPLY)
        arrays = {name: array.numpy() for name, array in sent.items()}
        name = list(arrays)[int(rng.integers(len(arrays)))]
        match seed % 5:
            case 0:
                del metrics[str(rng.choice(list(metrics)))]
            case 1 | 2:
                metrics[str(rng.choice(list(metrics)))] = METRICS[int(rng.integers(len(METRICS)))]
            case 3:
                arrays[name] = rng.choice([np.nan, np.inf, 1e300]) * np.ones(arrays[name].shape)
        packed = {key: Array(np.asarray(each)) for key, each in arrays.items()}
        if seed % 5 == 4:
            whole = packed[name]
            packed[name] = Array(whole.dtype, whole.shape, whole.stype, damaged(whole.data, seed))
        content = RecordDict({"arrays": ArrayRecord(packed), "metrics": MetricRecord(metrics)})
        read = functools.partial(read_reply, content, sent, None, needs_loss=needs_loss)
        answer = outcome(read, "", seed)
        if answer is None:
            continue
        assert 0 < np.float32(answer.seconds) < np.inf
        assert 1 <= answer.metrics.get("pause-participation", 1) <= 2**30
        assert answer.metrics.get("pause-epsilon", 1) > 0
        assert not needs_loss or abs(answer.metrics["loss"]) <= 1e19
        for name, array in sent.items():
            assert answer.arrays[name].shape == array.numpy().shape
            assert np.isfinite(answer.arrays[name]).all()


def test_policies_receive_losses_and_updates(monkeypatch):
    def reply(arrays, client):
        return arrays | {"w": arrays["w"] + client % 2}, {"loss": 0.1 * client}

    app = without_mod(reply)
    grid = LocalGrid(app, nodes(*ALL))
    strategy = PauseStrategy(config_of(policy="oort", privacy=NoPrivacy()), KEY, poll_seconds=0.002)
    strategy.start(grid, model(), num_rounds=3)
    assert all(len(each.seconds) == 3 for each in strategy.history)
    config = config_of(policy="clustered_similarity", privacy=NoPrivacy())
    told: list[dict[int, np.ndarray]] = []
    strategy = PauseStrategy(config, KEY, update_size=11, poll_seconds=0.002)
    tell = strategy.selector.tell

    def listened(*args, **readings):
        told.append(readings["update"])
        tell(*args, **readings)

    monkeypatch.setattr(strategy.selector, "tell", listened)
    strategy.start(grid, model(), num_rounds=2)
    for client, update in told[0].items():
        np.testing.assert_array_equal(update, [client % 2] * 6 + [0] * 5)
    with pytest.raises(ConfigError, match=r"update_size = 12: .* Set update_size = 11"):
        PauseStrategy(config, KEY, update_size=12).start(grid, model(), num_rounds=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": "guessed"}, "seconds = 'guessed': must be 'stamped' or 'reported'"),
        ({"timeout_seconds": 1e39}, r"timeout_seconds = 1e\+39: must be > 0 and finite"),
        ({"poll_seconds": np.inf}, "poll_seconds = inf: must be > 0 and finite"),
        ({"wait_seconds": -1}, "wait_seconds = -1: must be >= 0"),
        ({"min_available": 11}, "min_available = 11: must be between 0 and num_clients = 10"),
        ({"data_size": [1, 2]}, r"data_size = .*: must be 10 numbers"),
    ],
)
def test_invalid_arguments_raise_a_clear_error(changes, words):
    with pytest.raises(ConfigError, match=words):
        PauseStrategy(config_of(), KEY, **changes)


@pytest.mark.parametrize("timeout", [0, -1.0, np.nan, np.inf])
def test_invalid_timeout_is_rejected_before_any_client_is_asked(timeout):
    grid = LocalGrid(ClientApp(), nodes(*ALL))
    with pytest.raises(ConfigError, match=f"timeout = {timeout}: must be > 0 and finite"):
        PauseStrategy(config_of(), KEY).start(grid, model(), num_rounds=1, timeout=timeout)
    assert grid.asked == []


def test_strategy_rejects_another_config_and_invalid_folder(tmp_path):
    app = client_app(NO_DELAY, f"{tmp_path}/{{partition-id}}")
    grid = LocalGrid(app, nodes(*ALL))
    state = tmp_path / "state"
    PauseStrategy(config_of(), KEY, state=state, poll_seconds=0.002).start(grid, model(), 1)
    assert PauseStrategy(config_of(), KEY, state=state).selector.round == 1
    with pytest.raises(ConfigError, match=r"a different config \(changed: horizon = 9.0\)"):
        PauseStrategy(config_of(horizon=9.0), KEY, state=state)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create the folder"):
        PauseStrategy(config_of(), KEY, state=tmp_path / "file")
