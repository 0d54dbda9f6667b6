"""The client's side: private releases and their persistent ledger."""

import contextlib
import json
import multiprocessing
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from pause_jax import ConfigError
from pause_jax.deploy.flower import Ledger, PrivateRelease, protocol
from pause_jax.privacy import (
    GaussianMechanism,
    L1Laplace,
    NoPrivacy,
    PerClient,
    PerCoordinateLaplace,
    PrivUnitG,
    Table,
    Tiers,
    Uniform,
)
from tests.flower import local  # noqa: F401, names this process to Flower
from tests.flower.world import model
from tests.support.disk import Disk
from tests.support.hostile import damaged, outcome, rewritten

THRICE = PerCoordinateLaplace(budget=Table(total_epsilon=10.0, shares=(0.5, 0.3, 0.2)))
CONTEXT = Context(7, 100, {"partition-id": 4}, RecordDict(), {})


def message(epsilon=None, kind=MessageType.TRAIN, arrays=None, server_round=9):
    config = {} if epsilon is None else {"pause-epsilon": epsilon, "server-round": server_round}
    content = {"arrays": arrays or model(), "config": ConfigRecord(config)}
    sent = Message(RecordDict(content), 100, kind)
    sent.metadata.__dict__["_message_id"] = "one"
    return sent


def trains(step=0.0005, calls=None, **more):
    def train(sent, context):
        if calls is not None:
            calls.append(context)
        arrays = {
            name: array.numpy() + (step if array.numpy().dtype.kind == "f" else 0)
            for name, array in sent.content["arrays"].items()
        } | more
        trained = ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()})
        metrics = MetricRecord({"num-examples": 12, "loss": 0.3})
        content = {"arrays": trained, "metrics": metrics, "notes": ConfigRecord({"label": 3})}
        return Message(RecordDict(content), reply_to=sent)

    return train


def flat(record):
    arrays = [array.numpy() for array in record.values()]
    return np.concatenate([np.ravel(a).astype(np.float64) for a in arrays if a.dtype.kind == "f"])


@pytest.mark.parametrize(
    "privacy",
    [THRICE, L1Laplace(), GaussianMechanism(), PrivUnitG(), NoPrivacy()],
    ids=lambda privacy: type(privacy).__name__,
)
def test_release_is_the_privatized_difference(tmp_path, privacy):
    mod = PrivateRelease(privacy, tmp_path / "ledger", seed=5)
    came = flat(model())
    for number in (1, 2):
        reply = mod(message(), CONTEXT, trains())
        epsilon = privacy.budget.epsilon(jnp.asarray(number))
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 4), number)
        expected = privacy.privatize(key, jnp.full(came.size, 0.0005), epsilon)
        np.testing.assert_allclose(
            flat(reply.content["arrays"]) - came, expected, rtol=2e-4, atol=1e-6
        )
        assert reply.content["arrays"]["steps"].numpy() == 7
        assert reply.content["arrays"]["b"].numpy().dtype == np.float64
        assert reply.content["metrics"]["pause-participation"] == number
        assert reply.content["metrics"]["pause-epsilon"] == pytest.approx(float(epsilon))


def test_default_noise_is_unpredictable(tmp_path):
    sent = [
        flat(
            PrivateRelease(THRICE, tmp_path / name)(message(), CONTEXT, trains()).content["arrays"]
        )
        for name in "abcd"
    ]
    first = np.asarray(sent)[:, 0]
    assert len(set(first.tolist())) == 4
    # Laplace of scale 0.003 / 5, not something degenerate.
    assert 1e-5 < np.abs(np.asarray(sent) - flat(model())).mean() < 5e-3


def test_only_listed_metrics_are_sent_without_noise(tmp_path):
    reply = PrivateRelease(THRICE, tmp_path / "a")(message(), CONTEXT, trains())
    own = {"pause-epsilon", "pause-participation", "pause-seconds"}
    assert set(reply.content) == {"arrays", "metrics"}
    assert set(reply.content["metrics"]) == own | {"num-examples"}
    mod = PrivateRelease(THRICE, tmp_path / "b", clear=("loss", "absent"))
    assert set(mod(message(), CONTEXT, trains()).content["metrics"]) == own | {"loss"}


def test_spent_client_neither_trains_nor_releases(tmp_path):
    calls: list[Context] = []
    for run in range(5):
        mod = PrivateRelease(THRICE, tmp_path / "{partition-id}")  # made anew: a new process
        reply = mod(message(), CONTEXT, trains(calls=calls))
        assert reply.has_error() == (run >= 3)
    assert len(calls) == 3
    assert reply.error.code == protocol.SPENT
    assert "spent after 3 releases" in reply.error.reason
    ledger = Ledger(tmp_path / "4", THRICE)
    assert ledger.spent == pytest.approx(10.0)


def test_each_client_has_its_own_budget_unless_the_law_is_random(tmp_path):
    budget = Uniform(total_epsilon=2.0, horizon=2.0, law=PerClient(values=(1.0, 3.0)))
    mod = PrivateRelease(PerCoordinateLaplace(budget=budget), tmp_path / "{partition-id}", seed=5)
    for client, total in ((0, 2.0), (1, 6.0)):
        node = Context(7, 100, {"partition-id": client}, RecordDict(), {})
        reply = mod(message(), node, trains())
        assert reply.content["metrics"]["pause-epsilon"] == pytest.approx(total / 2)
        own = PerCoordinateLaplace(budget=Uniform(total_epsilon=total, horizon=2.0))
        ledger = Ledger(tmp_path / str(client), own)  # its file holds its own budget
        assert ledger.spent == pytest.approx(total / 2)
        assert not mod(message(), node, trains()).has_error()
        assert mod(message(), node, trains()).has_error()
    for node in ({"partition-id": 2}, {}):
        with pytest.raises(ConfigError, match="has no budget for client"):
            PrivateRelease(PerCoordinateLaplace(budget=budget), tmp_path / "x")(
                message(), Context(7, 100, node, RecordDict(), {}), trains()
            )
    drawn = PerCoordinateLaplace(budget=Uniform(law=Tiers()))
    with pytest.raises(ConfigError, match="with the server's key"):
        PrivateRelease(drawn, tmp_path / "y")


def test_release_is_recorded_before_it_is_sent(tmp_path, monkeypatch):
    seen = []

    def privatize(privacy, key, update, epsilon):
        seen.append((tmp_path / "ledger").read_text().count("release"))
        raise RuntimeError("the power fails")

    monkeypatch.setattr("pause_jax.deploy.flower.client._privatize", privatize)
    with pytest.raises(RuntimeError, match="the power fails"):
        PrivateRelease(THRICE, tmp_path / "ledger")(message(), CONTEXT, trains())
    assert seen == [1]
    assert Ledger(tmp_path / "ledger", THRICE).participations == 1


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (trains(step=np.nan), "not finite: nothing was released"),
        (trains(w=np.zeros((3, 2))), r"'w' has shape \(3, 2\) in .* and \(2, 3\) in .*: must be"),
        (trains(extra=np.zeros(2)), r"'extra' has shape \(2,\) in .* and none in .*: must be"),
        (lambda sent, context: Message(RecordDict({}), reply_to=sent), "has 0 ArrayRecords"),
    ],
)
def test_invalid_update_is_not_charged(tmp_path, train, words):
    with pytest.raises(ConfigError, match=words):
        PrivateRelease(THRICE, tmp_path / "ledger")(message(), CONTEXT, train)
    assert Ledger(tmp_path / "ledger", THRICE).participations == 0


def test_other_messages_pass_without_charge(tmp_path):
    mod = PrivateRelease(THRICE, tmp_path / "ledger")
    for kind in ("evaluate", "query.client_number"):
        reply = mod(message(kind=kind), CONTEXT, trains())
        assert "notes" in reply.content
    assert not (tmp_path / "ledger").exists()
    mod(message(kind="train.special"), CONTEXT, trains())
    assert Ledger(tmp_path / "ledger", THRICE).participations == 1


def test_update_is_released_once_per_round(tmp_path):
    mod, calls = PrivateRelease(THRICE, tmp_path / "ledger"), list[Context]()
    assert not mod(message(epsilon=5.0), CONTEXT, trains()).has_error()
    again = mod(message(epsilon=5.0), CONTEXT, trains(calls=calls))
    assert again.error.code == protocol.REPEATED
    assert protocol.REPEATED not in protocol.RELEASED_NOTHING
    assert not calls
    assert Ledger(tmp_path / "ledger", THRICE).participations == 1
    other_run = Context(8, 100, {"partition-id": 4}, RecordDict(), {})
    assert not mod(message(epsilon=5.0), other_run, trains()).has_error()


def test_client_epsilon_takes_precedence_with_a_warning(tmp_path, warned):
    mod = PrivateRelease(THRICE, tmp_path / "ledger")
    mod(message(epsilon=5.0), CONTEXT, trains())
    assert warned == []
    reply = mod(message(epsilon=500.0, server_round=10), CONTEXT, trains())
    assert reply.content["metrics"]["pause-epsilon"] == pytest.approx(3.0)
    (words,) = warned
    expected = "round 10: the server expects epsilon 500, but this client's release 2 has epsilon 3"
    assert expected in words


@pytest.mark.parametrize("number", range(12))
def test_crash_never_loses_a_release(tmp_path, number):
    path, left = tmp_path / "kept" / "ledger", 0
    refused = contextlib.suppress(OSError, ConfigError)
    with Disk(tmp_path / "kept", number).watched() as disk, refused:
        ledger = Ledger(path, THRICE)
        while ledger.enter() is not None:
            left += 1
    assert disk.dead
    counted = Ledger(path, THRICE).participations
    assert left <= counted <= left + 1
    while Ledger(path, THRICE).enter() is not None:
        left += 1
    assert left <= 3


def test_ledger_rejects_other_mechanisms_and_other_files(tmp_path):
    path = tmp_path / "folder" / "ledger"
    Ledger(path, THRICE).enter()
    assert Ledger(path, THRICE.replace(sensitivity=0.003)).participations == 1
    for other in (
        THRICE.replace(sensitivity=0.1),
        THRICE.replace(budget=Uniform()),
        L1Laplace(budget=THRICE.budget),
    ):
        with pytest.raises(ConfigError, match=r"starts with .*: must start with .* for this"):
            Ledger(path, other)
    for text in ("", "client,seconds\n", '{"release": 1}\n', "[]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="or a new file"):
            Ledger(path, THRICE)
    with pytest.raises(ConfigError, match="cannot be used as a ledger"):
        Ledger(tmp_path, THRICE)
    with pytest.raises(ConfigError, match=re.escape("which has partition-id (KeyError('site'))")):
        PrivateRelease(THRICE, "{site}")(message(), CONTEXT, trains())
    with pytest.raises(ConfigError, match="privacy = 3: must be a Mechanism"):
        PrivateRelease(3, path)
    with pytest.raises(ConfigError, match=r"sensitivity = -1.0: must be"):
        PrivateRelease(THRICE.replace(sensitivity=-1.0), path)


def test_truncated_line_counts_as_a_release(tmp_path):
    path = tmp_path / "ledger"
    Ledger(path, THRICE).enter()
    path.write_text(path.read_text() + '\n{"rele')
    entered = Ledger(path, THRICE).enter()
    assert entered is not None
    np.testing.assert_allclose(entered, (3, 2.0))
    assert Ledger(path, THRICE).enter() is None


def head_rewritten(content, seed):
    head, rest = content.split(b"\n", 1)
    return rewritten(head, seed) + b"\n" + rest


@pytest.mark.parametrize("harm", [damaged, head_rewritten])
def test_damaged_ledger_is_rejected_or_loses_no_release(harm, tmp_path):
    path = tmp_path / "ledger"
    for server_round in range(2):
        Ledger(path, THRICE).enter(run=1, round=server_round)
    whole = path.read_bytes()
    for seed in range(100):
        content = harm(whole, seed)
        path.write_bytes(content)
        counted = outcome(lambda: Ledger(path, THRICE).participations, f"{path}: ", content)
        assert counted is None or counted >= content.count(b'"release"'), (seed, content)


def _enter(path, privacy, times, queue):
    ledger = Ledger(path, privacy)
    queue.put([ledger.enter() for _ in range(times)])


def test_concurrent_programs_share_one_budget(tmp_path):
    privacy = PerCoordinateLaplace(budget=Uniform(total_epsilon=30.0, horizon=30.0))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    programs = [
        context.Process(target=_enter, args=(tmp_path / "ledger", privacy, 20, queue))
        for _ in range(2)
    ]
    for program in programs:
        program.start()
    entered = [each for _ in programs for each in queue.get(timeout=120)]
    for program in programs:
        program.join()
    numbers = sorted(each[0] for each in entered if each is not None)
    assert numbers == list(range(1, 31))
    ledger = Ledger(tmp_path / "ledger", privacy)
    assert ledger.exhausted
    assert ledger.spent == pytest.approx(30.0)
    assert json.loads(ledger.path.read_text().split("\n")[0])["unit"] == "coordinate"
