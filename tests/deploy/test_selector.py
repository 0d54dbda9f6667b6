"""Selector: same choices as a simulation, errors, and recovery after a crash."""

import contextlib
import itertools
import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, Learning, SimConfig, simulate, sweep
from pause_jax.analysis.ledger import ledger
from pause_jax.config import canonical
from pause_jax.deploy.selector import Selector
from pause_jax.learning import Dataset, Dirichlet, FlaxModel, Linear, Natural
from pause_jax.policies import NAMED, All, named
from pause_jax.privacy import NoPrivacy, PerCoordinateLaplace, Table, Uniform
from pause_jax.rng import keys
from pause_jax.run.setup import learner_of, setup_of
from pause_jax.world.latency import LinearContext, LogNormal, Network, Switching, network
from tests.reference import round_keys
from tests.support.hostile import damaged, repacked
from tests.support.runs import ASK, chosen_sets, endings, world_of

pytestmark = pytest.mark.slow

KEY, K = jax.random.key(3), 8
BASE = SimConfig(
    num_clients=K, num_selected=3, num_rounds=25, learning=None, latency=LogNormal(),
    track_regret=False,
)  # fmt: skip
# Those that ask for losses, for features, and observe the time. FedCS asks for features too, and
# keeps a deadline: it leaves slots empty, as one of those below does.
ASKING = ("power_of_choice", "rbcs_f", "refl")
PLAIN = [name for name in NAMED if name not in ASK and not NAMED[name].releases]
# Those of them that differ for a server: each reads something else (who is fast, the round, who was
# there, who is late, who answered, the staleness, the budgets, the true speeds, or nothing); some
# draw, or leave slots empty.
DIFFERENT = (
    *("pause", "pause_useful_rate", "round_robin", "cs_ucb_q", "e3cs", "polaris", "greedyfed"),
    *("clustered_similarity", "noise_sampling", "genie", "all", "random"),
)


@jax.jit
def world_table(latency, availability):
    def of_round(t):
        key, present = round_keys.latency(stream, t), round_keys.availability(stream, t)
        features = latency.features(key, K) if latency.num_features else None
        return latency.at(key, t, K), jax.random.bernoulli(present, availability, (K,)), features

    stream = keys.streams(KEY).world
    return jax.lax.map(of_round, jnp.arange(1, BASE.num_rounds + 1))


def world(config):
    """Of each round of a simulation, from its named keys: seconds [T, K], who is available [T, K],
    and features [T, K, F] or None.
    """
    return jax.device_get(world_table(config.latency, np.float32(config.availability)))


def play(selector, seconds, present, first=0):
    chosen = []
    for row, here in zip(seconds[first:], present[first:], strict=True):
        choice = selector.ask(np.flatnonzero(here))
        chosen.append(set(choice.clients.tolist()))
        assert choice.weights.sum() == pytest.approx(1 if len(choice.clients) else 0, abs=1e-5)
        selector.tell({int(k): float(row[k]) for k in choice.clients})
    return chosen


RULED = BASE.replace(
    num_clients=9, num_selected=4, availability=0.6, deadline=0.4, wait_for=2, dropout=0.3,
    shuffle_clients=True, privacy=PerCoordinateLaplace(budget=Uniform(horizon=9.0)),
)  # fmt: skip


@pytest.fixture(scope="module")
def simulated():
    """The runs of all, in one sweep."""
    configs = {name: RULED.replace(policy=named(name)) for name in DIFFERENT}
    record = ("clients", "counts", "spent")
    return sweep(configs, KEY, record=record, progress=False).isel(seed=0)


@pytest.mark.parametrize("name", DIFFERENT)
def test_selector_makes_the_choices_of_simulate(name, simulated):
    config, result = RULED.replace(policy=named(name)), simulated.sel(config=name)
    selector, (latency, present) = Selector(config, KEY), world_of(config, KEY)
    expected, failures = chosen_sets(result), 0
    for t, (end, in_time) in enumerate(endings(config, result, KEY)):
        choice = selector.ask(np.flatnonzero(present[t]))
        assert set(choice.clients.tolist()) == set(expected[t])
        assert choice.weights.sum() == pytest.approx(1 if expected[t] else 0, abs=1e-5)
        failed = {int(k): min(latency[t, k], end) for k in choice.clients if k not in in_time}
        selector.tell({k: latency[t, k] for k in in_time}, failed=failed)
        failures += len(failed)
    assert 0 < failures < sum(map(len, expected))
    np.testing.assert_array_equal(selector.counts, result.counts)
    np.testing.assert_allclose(selector.spent, result.spent, rtol=1e-6)
    assert (selector.counts <= 9).all()
    assert selector.epsilon_unit == "coordinate"


def test_genie_uses_the_latencies_of_the_current_round():
    config = BASE.replace(policy=named("genie"), availability=0.7, latency=Switching(period=4))
    result = simulate(config, KEY, record=("clients",))
    seconds, present, _ = world(config)
    chosen = play(Selector(config, KEY), seconds, present)
    assert chosen == [set(clients) for clients in chosen_sets(result)]
    # A negative control: with the mean over rounds it chooses others.
    blind = Selector(config, KEY)
    policy = config.policy.build(blind._context()._replace(varying=None))
    blind._policy = blind._policy._replace(select=jax.jit(policy.select))
    assert play(blind, seconds[:12], present[:12]) != chosen[:12]


SIZES = 5 * np.arange(1, 9)
LEARNING = Learning(partition=Natural(), model=Linear(), batch_size=4, max_steps=5)


@pytest.fixture(scope="module")
def learned():
    """A learner of clients with these sizes, and its first state."""
    owner = np.repeat(np.arange(8), SIZES)
    x, y = np.eye(8)[owner], owner % 2
    config = canonical(BASE.replace(learning=LEARNING))
    learner = learner_of(config, Dataset.of(x, y, x, y, clients=owner))
    return learner, jax.jit(learner.init)(keys.streams(KEY))


@pytest.mark.parametrize("latency", [Switching(), Network(), LinearContext()], ids=lambda x: x.name)
def test_selector_and_simulate_have_the_same_context(latency, learned, monkeypatch):
    # Client by client, in a loop: all at once, each operation would be a program.
    monkeypatch.setattr(network, "_TOGETHER", 1)
    config = canonical(BASE.replace(latency=latency, learning=LEARNING))
    learner, learning = learned
    expected = setup_of(config, learner, learning, keys.streams(KEY).world).context
    assert SIZES.min() < 20 < SIZES.max()
    selector = Selector(config, KEY, data_size=SIZES, update_size=expected.update_size)
    found = selector._context()
    assert (found.varying is None) == (expected.varying is None)
    if found.varying is not None and expected.varying is not None:
        for t in (1, 501):
            np.testing.assert_array_equal(found.varying(t), expected.varying(t))
    # A server does not know the model.
    apart = {"varying": None, "forecast": None, "output_layer": None}
    one, other = (x._replace(**apart) for x in (found, expected))
    for name, value in other._asdict().items():
        for a, b in zip(jax.tree.leaves(getattr(one, name)), jax.tree.leaves(value), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_loaded_selector_continues_identically(tmp_path):
    config = BASE.replace(policy=named("e3cs"))
    seconds, present, _ = world(config)
    first = Selector(config, jax.random.key(5, impl="rbg"), data_size=np.arange(1, 9))
    play(first, seconds[:12], present[:12])
    first.save(tmp_path / "selector.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["selector.npz"]
    again = Selector.load(tmp_path / "selector.npz")
    assert again.round == 12
    np.testing.assert_array_equal(again.counts, first.counts)
    assert play(again, seconds, present, 12) == play(first, seconds, present, 12)


def test_load_uses_the_model_of_the_passed_config(tmp_path):
    def make():
        return nn.Dense(3)

    path = tmp_path / "selector.npz"
    config = BASE.replace(policy=named("random"), learning=Learning(model=FlaxModel.of(make)))
    Selector(config, KEY, data_size=np.ones(8)).save(path)
    with pytest.raises(ConfigError, match=r"has no .*make"):
        Selector.load(path)
    assert Selector.load(path, config).config.learning.model.source is make
    with pytest.raises(ConfigError, match=r"has no .*make"):
        Selector.load(path, config.replace(num_clients=9))


def test_epsilon_follows_the_participations_that_only_idle_clients_get_back():
    budget = Table(total_epsilon=10.0, shares=(0.5, 0.3, 0.2))
    privacy = PerCoordinateLaplace(budget=budget)
    selector = Selector(BASE.replace(policy=All(), num_selected=8, privacy=privacy), KEY)
    for idle, expected in (([7], [5] * 8), ([], [3] * 7 + [5]), ([], [2] * 7 + [3])):
        choice = selector.ask()
        np.testing.assert_allclose(choice.epsilon, expected, rtol=1e-6)
        selector.tell({0: 1.0}, idle=idle)
    np.testing.assert_array_equal(selector.counts, [3] * 7 + [2])
    assert selector.ask().clients.tolist() == [7]
    free = Selector(BASE.replace(privacy=NoPrivacy()), KEY)
    assert np.isinf(free.ask().epsilon).all()


def test_only_latency_of_a_failed_client_is_observed():
    selector = Selector(BASE.replace(policy=All(), num_selected=8), KEY)
    observed = []

    def update(state, selection, observation):
        observed.append((selection, observation))
        return state

    selector._policy = selector._policy._replace(update=update)
    assert selector.ask().clients.tolist() == list(range(8))
    selector.tell({0: 1.0, 2: 2.0}, failed={1: 3.0}, loss={0: 0.5, 1: 0.7})
    ((selection, observation),) = observed
    np.testing.assert_array_equal(selection.weights > 0, np.arange(8) < 3)
    np.testing.assert_array_equal(observation.received[:3], [True, False, True])
    np.testing.assert_array_equal(observation.latency[:3], [1.0, 3.0, 2.0])
    np.testing.assert_array_equal(observation.loss[:3], [0.5, np.nan, np.nan])


@pytest.mark.parametrize("name", ASKING)
def test_policy_with_questions_makes_the_choices_of_simulate(name, tmp_path):
    config = BASE.replace(policy=named(name), availability=0.7, latency=LinearContext())
    result = jax.device_get(simulate(config, KEY, record=("clients", "queried")))
    chosen = chosen_sets(result)
    (seconds, present, features), path = world(config), tmp_path / "selector.npz"
    selector = Selector(config, KEY)
    queried = np.zeros(8, int)
    for t in range(1, 26):
        here = np.flatnonzero(present[t - 1])
        question = selector.question(here)
        if t == 7:  # killed before the answers came
            selector.save(path)
            selector = Selector.load(path)
        assert set(question.clients.tolist()) <= set(here.tolist())
        assert question.round == t
        known = {"loss": np.ones(8), "features": features[t - 1]}[question.wants]
        choice = selector.ask(here, {int(k): known[k] for k in question.clients})
        assert set(choice.clients.tolist()) == set(chosen[t - 1])
        selector.tell({int(k): float(seconds[t - 1, k]) for k in choice.clients})
        queried[question.clients] += 1
    np.testing.assert_array_equal(queried, result.queried)


def test_answers_must_match_the_question():
    selector = Selector(BASE.replace(policy=named("power_of_choice")), KEY)
    with pytest.raises(ConfigError, match=r"power_of_choice: queries clients before it chooses"):
        selector.ask()
    question = selector.question(range(6))
    first, *others = question.clients.tolist()
    losses = dict.fromkeys(others, 0.5)
    for wrong, message in (
        ({7: 1.0}, "answers: client 7 was not asked"),
        ({9: 1.0}, "answers: 9 is not a client"),
        ({first: np.nan}, rf"answers\[{first}\] = nan: must be a finite"),
        ({first: [1.0, 2.0]}, r"must be a finite float32 array of shape \(\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            selector.ask(range(6), losses | wrong)
    asking = Selector(BASE.replace(policy=named("power_of_choice")), KEY)
    question_of_others = asking.question([0, 1, 2, 3])
    with pytest.raises(ConfigError, match=r"answers: client . was not asked. Allowed: [567]"):
        asking.ask([5, 6, 7], dict.fromkeys(question_of_others.clients.tolist(), 1.0))
    # Of one that has never told its loss the policy knows nothing: it comes first.
    choice = selector.ask(range(6), losses)
    assert first in choice.clients
    selector.tell(dict.fromkeys(map(int, choice.clients), 1.0))
    # Once it has told, the policy keeps what it knows.
    ranked = {
        k: 1.0 + place for place, k in enumerate(selector.question(range(6)).clients.tolist())
    }
    low, *_, high = ranked
    choice = selector.ask(range(6), ranked)
    assert set(choice.clients) == set(list(ranked)[-3:])
    selector.tell(dict.fromkeys(map(int, choice.clients), 1.0))
    selector.question(range(6))
    choice = selector.ask(range(6), {low: 0.5})
    assert high in choice.clients
    assert low not in choice.clients
    selector.tell(dict.fromkeys(map(int, choice.clients), 1.0))
    with pytest.raises(ConfigError, match="pause queries no clients"):
        Selector(BASE, KEY).ask(answers={0: 1.0})
    assert Selector(BASE, KEY).question() is None
    features = Selector(BASE.replace(policy=named("rbcs_f"), latency=LinearContext()), KEY)
    features.question()
    with pytest.raises(ConfigError, match=r"client . is missing, and the policy needs its feat"):
        features.ask(answers={})


def test_tell_requires_losses_or_updates_that_the_policy_reads():
    config = BASE.replace(policy=named("oort"))
    selector = Selector(config, KEY, data_size=np.arange(1, 9))  # one program with that above
    choice = selector.ask()
    seconds = dict.fromkeys(map(int, choice.clients), 1.0)
    with pytest.raises(ConfigError, match=r"oort: reads .*Pass the loss of each client"):
        selector.tell(seconds)
    losses = dict.fromkeys(seconds, 0.5)
    selector.tell(seconds, loss=losses, square_loss=losses)
    similar = Selector(BASE.replace(policy=named("clustered_similarity")), KEY, update_size=4)
    choice = similar.ask()
    seconds = dict.fromkeys(map(int, choice.clients), 1.0)
    for wrong in (5.0, [1.0], [1.0] * 3, "text", [np.nan] * 4, np.eye(4)):
        with pytest.raises(ConfigError, match=r"update\[.\] = .*: must be a finite"):
            similar.tell(seconds, update=dict.fromkeys(seconds, wrong))
    similar.tell(seconds, update={k: np.eye(4)[k % 4] for k in seconds})
    similar.ask()


def told(seconds, **others):
    """A call of ``tell`` in a round of three clients."""
    return lambda selector: (selector.ask([0, 1, 2]), selector.tell(seconds, **others))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda s: s.tell({}), "no round is open: call ask"),
        (lambda s: (s.ask(), s.ask()), "round 1 is open"),
        (lambda s: s.save("nowhere/x.npz"), r"nowhere/x.npz: cannot be written \(No such file"),
        (lambda s: s.ask([8]), "available: 8 is not a client. Client ids are 0 to 7"),
        (lambda s: s.ask(np.array([True] * 8)), "available: .* is not a client"),
        (lambda s: s.ask([1.7, 2.2]), r"available: 1\.7 is not a client"),
        (lambda s: s.ask(["a"]), "available: 'a' is not a client"),
        (told({5: 1.0}), "client 5 was not chosen in round 1"),
        (told({0: -1.0}), r"seconds\[0\] = -1.0: must be finite"),
        (told({0: np.nan}), "must be finite and > 0"),
        (told({0: 1e39}), "must be finite and > 0"),
        (told({0: "a"}), r"seconds\[0\] = .*: must be finite and > 0"),
        (told({0: None}), r"seconds\[0\] = .*: must be finite and > 0"),
        (told({"0": 1.0}), "seconds: '0' is not a client"),
        (told({3.7: 1.0}), "seconds: 3.7 is not a client"),
        (told({}, idle=[4]), "idle: client 4 was not chosen"),
        (told({0: 1.0}, idle=[0]), "client 0 is also in seconds"),
        (told({0: 1.0}, failed={0: 3.0}), "client 0 is also in seconds"),
    ],
)
def test_invalid_call_raises_a_clear_error(act, words):
    with pytest.raises(ConfigError, match=words):
        act(Selector(BASE.replace(policy=named("random")), KEY))


def test_round_stays_open_after_invalid_tell():
    selector = Selector(BASE.replace(policy=named("random")), KEY)
    choice = selector.ask()
    with pytest.raises(ConfigError):
        selector.tell(dict.fromkeys(map(int, choice.clients), -1.0))
    assert selector.is_open
    selector.tell(dict.fromkeys(map(int, choice.clients), 1.0))
    assert selector.ask().round == 2


def test_invalid_data_sizes_and_files_are_rejected(tmp_path):
    for sizes in ([1, 2], [0] * 8, [-1] * 8, [np.nan] * 8):
        with pytest.raises(ConfigError, match=r"data_size = .*: must be 8 numbers"):
            Selector(BASE, KEY, data_size=sizes)
    (tmp_path / "none.npz").write_text("text")
    (tmp_path / "empty.npz").write_text("")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("none.npz", "empty.npz", "cut.npz"):
        with pytest.raises(ConfigError, match="is not a saved selector"):
            Selector.load(tmp_path / name)
    with pytest.raises(ConfigError, match=r"nowhere.npz'\): cannot be read \(No such file"):
        Selector.load(tmp_path / "nowhere.npz")


def test_latency_below_min_latency_is_raised_to_it():
    told = []
    for seconds in (0.001, 0.05):
        selector = Selector(BASE.replace(policy=named("pause"), num_selected=8), KEY)
        choice = selector.ask()
        selector.tell(dict.fromkeys(map(int, choice.clients), seconds))
        told.append(jax.tree.leaves(selector._state))
    for one, other in zip(*told, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (0, "must be a typed JAX key"),
        (jax.random.PRNGKey(0), "must be a typed JAX key"),
        (jax.random.split(KEY, 3), r"key has shape \(3,\): Selector takes one key"),
    ],
)
def test_invalid_key_is_rejected(key, words):
    with pytest.raises(ConfigError, match=words):
        Selector(BASE, key)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("first", range(0, 9, 2))
def test_killed_server_never_counts_too_few_releases(first, tmp_path):
    """The server saves before it sends and after it was told; clients keep ledgers of their own."""
    config = BASE.replace(
        policy=named("round_robin"), num_clients=4, num_selected=2,
        privacy=PerCoordinateLaplace(budget=Uniform(horizon=3.0)),
    )  # fmt: skip
    path, released = tmp_path / "selector.npz", np.zeros(4, int)
    Selector(config, KEY).save(path)

    def serve(fatal, rounds):
        """Play rounds; die at the point ``fatal``, each round has eight."""
        points = itertools.count()

        def survive():
            if next(points) == fatal:
                raise KilledError

        selector = Selector.load(path)
        assert (selector.counts >= released).all()
        if selector.is_open:
            selector.tell({})
        for _ in range(rounds):
            survive()
            choice = selector.ask()
            survive()
            selector.save(path)
            survive()
            for client in choice.clients.tolist():
                released[client] += 1
                survive()
            selector.tell(dict.fromkeys(choice.clients.tolist(), 1.0))
            survive()
            selector.save(path)
            survive()

    for fatal in (first, (3 * first + 1) % 8):
        with contextlib.suppress(KilledError):
            serve(fatal, 2)
    serve(None, 8)
    selector = Selector.load(path)
    assert (selector.counts == 3).all()
    assert (released <= 3).all()
    assert released.sum() >= 12 - 2 * 2, "of each kill at most one round is lost"


def test_open_round_can_be_told_after_restart(tmp_path):
    config = BASE.replace(policy=named("cs_ucb"))
    whole = Selector(config, KEY)
    choice = whole.ask([0, 2, 3, 5])
    whole.save(tmp_path / "open.npz")
    again = Selector.load(tmp_path / "open.npz")
    assert again.is_open
    for selector in (whole, again):
        selector.tell(dict.fromkeys(choice.clients.tolist()[:2], 0.5))
    for one, other in zip(*(jax.tree.leaves(s._state) for s in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.ask().clients.tolist() == whole.ask().clients.tolist()


def test_clients_are_named_by_the_ids_of_the_data():
    owner = np.repeat([f"phone{k}" for k in range(8)], SIZES)
    x, y = np.ones((len(owner), 4)), np.arange(len(owner)) % 2
    data = Dataset.of(x, y, x, y, clients=owner)
    config = BASE.replace(policy=named("random"), learning=LEARNING)
    by_name, by_number = Selector(config, KEY, data), Selector(config, KEY, data, ids=range(8))
    assert by_name.client_ids == tuple(f"phone{k}" for k in range(8))
    choice, numbers = by_name.ask(["phone1", "phone2", "phone7"]), by_number.ask([1, 2, 7])
    assert choice.clients.tolist() == [f"phone{k}" for k in numbers.clients]
    by_name.tell(json.loads(json.dumps(dict.fromkeys(choice.clients.tolist(), 1.0))))
    with pytest.raises(ConfigError, match=r"available: 1 is not a client\. .* are 'phone0', "):
        by_name.ask([1])
    with pytest.raises(ConfigError, match=r"ids = 'a', 'a': must be 8 distinct printable"):
        Selector(BASE, KEY, ids=["a", "a"])
    with pytest.raises(ConfigError, match="must be 8 distinct printable strings"):
        Selector(BASE, KEY, ids=["a\0", *"bcdefgh"])


@pytest.mark.nightly
def test_default_data_sizes_come_from_the_config():
    learning = Learning(
        model=Linear(), partition=Dirichlet(concentration=0.5), max_steps=1, optimizer="sgd",
        holdout=0.5,
    )  # fmt: skip
    config = BASE.replace(policy=named("pause"), learning=learning)
    result = simulate(config, KEY, record=("clients",))
    seconds, present, _ = world(config)
    expected = [set(clients) for clients in chosen_sets(result)]
    assert play(Selector(config, KEY), seconds, present) == expected
    assert play(Selector(config, KEY, data_size=[1] * 8), seconds, present) != expected


def test_damaged_file_is_rejected(tmp_path):
    path = tmp_path / "selector.npz"
    selector = Selector(BASE.replace(policy=named("cs_ucb")), KEY)
    selector.ask()
    selector.save(path)
    with np.load(path) as archive:
        whole = dict(archive)
    assert Selector.load(path).round == 1
    changes: dict[str, list[Any]] = {
        "counts": [np.full(8, -100, np.int32), np.zeros(7, np.int32), np.zeros(8)],
        "queried": [np.full(8, 5, np.int32)],
        "round": [np.asarray(-1), np.asarray(1.5)],
        "pending_clients": [np.asarray([0, 1, 99], np.int32)],
        "pending_weights": [np.asarray([np.nan, 2.0, 0.0], np.float32)],
        "key": [np.zeros(3, np.uint32)],
        "key_impl": [np.asarray("no such generator")],
        "ids": [np.arange(7), np.zeros(8, int)],
        "data_size": [np.zeros(8)],
        "state_0": [np.zeros(3)],
        "config": [np.asarray("num_clients = 'many'")],
    }
    for name, values in changes.items():
        for value in [*values, None]:
            if value is None and name.startswith("pending"):
                continue
            changed = {key: array for key, array in whole.items() if key != name}
            if value is not None:
                changed[name] = value
            np.savez(path, **changed)
            with pytest.raises(ConfigError, match=r"selector.npz: (is |.* must be )"):
                Selector.load(path)


@pytest.mark.parametrize("harm", [damaged, repacked])
def test_damaged_selector_is_rejected_or_loaded_unchanged(harm, tmp_path):
    path = tmp_path / "selector.npz"
    saved = Selector(BASE.replace(policy=named("random")), KEY)
    saved.ask()
    saved.save(path)
    whole = path.read_bytes()
    loaded = []
    for seed in range(60):
        path.write_bytes(harm(whole, seed))
        try:
            loaded.append(Selector.load(path))
        except ConfigError as error:
            refused = str(error)
            assert refused.startswith(f"{path}: "), seed
            assert refused.isprintable(), seed
    assert len(loaded) < 20
    for selector in loaded:
        for name in ("round", "counts", "queried", "num_parameters", "client_ids", "_pending"):
            one, other = (jax.tree.leaves(getattr(each, name)) for each in (selector, saved))
            assert all(map(np.array_equal, one, other))


def test_extreme_reading_does_not_affect_other_clients_in_oort():
    for poison in (1e30, np.inf, -np.inf, np.nan, "text", 10**400):
        selector = Selector(BASE.replace(policy=named("oort")), KEY, data_size=np.arange(1, 9))
        clients = selector.ask().clients.tolist()
        losses = dict.fromkeys(clients, 0.5) | {clients[0]: poison}
        squares = dict.fromkeys(clients, 0.25) | {clients[0]: poison}
        selector.tell(dict.fromkeys(clients, 1.0), loss=losses, square_loss=squares)
        utility = np.asarray(selector._state.utility)
        others = np.asarray(clients[1:])
        np.testing.assert_allclose(utility[others], 0.5 * (1 + others), rtol=1e-5)
        assert np.isfinite(utility).all()


def test_ledger_accepts_a_selector():
    privacy = PerCoordinateLaplace(budget=Uniform(horizon=4.0))
    selector = Selector(BASE.replace(policy=All(), num_selected=8, privacy=privacy), KEY)
    for _ in range(2):
        selector.ask()
        selector.tell({}, idle=[3])
    found = ledger(selector)
    np.testing.assert_array_equal(found.participations, selector.counts)
    np.testing.assert_allclose(found.spent, selector.spent)
    assert found.basic == selector.spent.max()


def test_selector_cannot_be_created_under_jit():
    with pytest.raises(ConfigError, match="key is traced"):
        jax.jit(lambda key: Selector(BASE, key).round)(KEY)
