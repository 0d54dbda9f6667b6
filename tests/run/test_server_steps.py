"""Server steps: the guide's example, the limit of rounds, another simulator, what is refused."""

import itertools
import json
import math
import pathlib
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Asynchronous, ConfigError, Learning, SimConfig, Synchronous, simulate
from pause_jax.bandit import Selection, no_info
from pause_jax.base.struct import static
from pause_jax.config import Polynomial, validate
from pause_jax.learning import Digits, Learner, Linear
from pause_jax.policies import POLICIES, Context, Fastest, Policy, PolicyConfig, Random, named
from pause_jax.run.driver import single_run
from pause_jax.run.preflight import prepare
from pause_jax.run.record.quantities import QUANTITIES, STEP_QUANTITIES
from pause_jax.run.record.result import chosen
from pause_jax.world.availability import Intervals
from pause_jax.world.latency import Traces
from tests.run.test_event_clock import LargestLoss
from tests.support.modes import Together
from tests.support.runs import ASK, BANDIT, KEY, LEARN, assert_same_bits

ROOT = pathlib.Path(__file__).parents[2]
EVERYTHING = (*QUANTITIES, *STEP_QUANTITIES)
ANSWERS = ("clients", "answered", "took", "staleness")


class InOrder(PolicyConfig):
    """One client a decision, as listed; nobody who is not available."""

    name: ClassVar[str] = "in_order"

    clients: tuple[int, ...] = static(default=(0,))

    def build(self, context: Context) -> Policy:
        listed = jnp.asarray(self.clients, jnp.int32)

        def select(key, state, round, available):
            client = listed[jnp.minimum(round, len(self.clients)) - 1][None]
            return Selection(client, available[client].astype(jnp.float32)), no_info()

        return Policy(lambda: (), select, lambda state, selection, observation: state)


def of_clients(seconds, clock, **changes) -> SimConfig:
    return SimConfig(
        num_clients=len(seconds),
        num_selected=1,
        latency=Traces.of([[each] for each in seconds]),
        learning=None,
        track_regret=False,
        clock=clock,
        **changes,
    )


def answers(result) -> list[tuple[int, float, float, int]]:
    """(client, start, finish, staleness) of all answers, in their order within a step by time."""
    rows, result = [], jax.device_get(result)
    finish = np.asarray(result.answered, float)
    for s in range(finish.shape[0]):
        row = [
            (
                float(finish[s, b]),
                int(result.clients[s, b]),
                float(finish[s, b] - result.took[s, b]),
                int(result.staleness[s, b]),
            )
            for b in range(finish.shape[1])
            if result.clients[s, b] >= 0
        ]
        rows += [(client, start, end, stale) for end, client, start, stale in sorted(row)]
    return rows


def test_guide_example_has_these_ten_updates():
    page = (ROOT / "docs" / "guides" / "event_clock.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| \d+ \| (\d) s \| (\d) \| (\d) s \| (\d) \| (\d) \| ([\d.]+) \|", page, re.MULTILINE
    )
    assert len(table) == 10
    clock = Asynchronous(concurrency=3, buffer=2)
    config = of_clients((1, 2, 3, 4), clock, policy=Fastest(), num_rounds=5)
    result = simulate(config, KEY, record=("clock", "in_flight", "waiting", "useful", *ANSWERS))
    assert result.clock.tolist() == [2, 3, 5, 6, 7]
    by_hand = [(int(k), float(at), float(t), int(s)) for t, k, at, _, s, _ in table]
    pairs = [sorted(by_hand[i : i + 2], key=lambda row: row[2]) for i in range(0, 10, 2)]
    assert {(i, *row) for i, pair in enumerate(pairs) for row in pair} == {
        (i // 2, *row) for i, row in enumerate(answers(result))
    }
    for number, (_, _, _, version, staleness, weight) in enumerate(table):
        assert number // 2 - int(version) == int(staleness)
        factor = Polynomial().factor(jnp.float32(staleness))
        assert f"{float(factor) / 2:.3f}" == weight
    assert result.in_flight.tolist() == [2] * 5
    # Answers 1 and 2 waited 1 s and none.
    assert result.waiting.tolist() == [0.5, 0, 0.5, 0.5, 0]
    weights = np.asarray([float(row[5]) for row in table])
    np.testing.assert_allclose(result.useful, 2 * weights.reshape(5, 2).sum(axis=1), atol=2e-3)


def test_availability_is_read_at_starts_within_a_step():
    """Client 2 comes after 0.5 s, and client 0 makes room for it after 1 s of a step of 3 s."""
    always = [(0.0, 10.0)]
    config = of_clients(
        (1, 3, 1),
        Asynchronous(concurrency=2, buffer=2),
        policy=InOrder(clients=(0, 1, 2)),
        num_rounds=1,
        availability_trace=Intervals.of([always, always, [(0.5, 10.0)]], period=10.0),
    )
    assert simulate(config, KEY, record=("counts",)).counts.tolist() == [1, 1, 1]


def test_every_start_downloads_the_model_once():
    clock = Asynchronous(concurrency=4, buffer=2)
    config = LEARN.replace(policy=Random(), clock=clock, num_rounds=4, eval_every=4)
    result = simulate(config, KEY, record=("counts", "downloaded"))
    models = np.asarray(result.downloaded) / (4 * result.num_parameters)
    assert models.sum() == result.counts.sum()
    assert models[0] >= 4


@pytest.mark.parametrize("example", ["ten_clients", "six_with_ties"])
def test_independent_simulator_gives_the_same_updates(example):
    path = ROOT / "tests" / "reference" / "appfl_events.json"
    recorded = json.loads(path.read_text("utf-8"))[example]
    config = of_clients(
        recorded["seconds"],
        Asynchronous(concurrency=recorded["in_flight"], buffer=1),
        policy=InOrder(clients=tuple(recorded["starts"])),
        num_rounds=len(recorded["events"]),
    )
    ours, theirs = answers(simulate(config, KEY, record=ANSWERS)), recorded["events"]
    assert [row[0] for row in ours] == [event[0] for event in theirs]
    # Of two answers in one instant, there a client that starts after the first downloads the model
    # after the second; here before it.
    ties = {row[2] for row, other in itertools.pairwise(ours) if row[2] == other[2]}
    between = [row[1] in ties and row[0] == 5 for row in ours]
    assert sum(between) == (2 if example == "six_with_ties" else 0)
    assert [row[3] - b for row, b in zip(ours, between, strict=True)] == [e[3] for e in theirs]
    for place in (1, 2):
        wanted = [event[place] for event in theirs]
        np.testing.assert_allclose([row[place] for row in ours], wanted, atol=2e-5)


# --- the limit of rounds

AWAY = {"availability": 0.6, "dropout": 0.3}
ABSENT = BANDIT.replace(track_regret=False, **AWAY)


def test_synchronous_clock_is_the_default_and_equals_a_full_buffer():
    assert SimConfig().clock == Synchronous()
    clock = Asynchronous(concurrency=4, buffer=4)
    assert not BANDIT.replace(clock=clock).overlaps
    base = BANDIT.replace(policy=Random(), track_regret=False)
    one, other = (simulate(base.replace(clock=c), KEY) for c in (Synchronous(), clock))
    assert_same_bits(one.values, other.values)


LEARNT = LEARN.replace(num_selected=4, **AWAY)


class Events(Asynchronous):
    """An asynchronous clock that goes through its events, also where they are those of rounds."""

    def overlaps(self, cohort_size: int) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "policy"),
    [
        (ABSENT, named("pause")),
        (ABSENT, named("md_sampling")),
        # To training it matters whether slots stay empty and losses are read, not who is chosen.
        (LEARNT, LargestLoss()),
    ],
    ids=["pause", "md_sampling", "learning"],
)
def test_event_clock_reproduces_rounds_bit_for_bit(base, policy):
    base, clock = base.replace(policy=policy), Events(concurrency=4, buffer=4)
    rounds = simulate(base, KEY, record=EVERYTHING)
    steps = simulate(base.replace(clock=clock), KEY, record=EVERYTHING)
    # Slots are filled by those that take part; sums over them are of the same numbers.
    for name in ("clients", "in_time", "took", "answered", "staleness"):
        one, other = (np.asarray(x.values[name]) for x in (rounds, steps))
        np.testing.assert_array_equal(np.sort(one, axis=1), np.sort(other, axis=1), err_msg=name)
    for name in EVERYTHING:
        if "slot" not in {**QUANTITIES, **STEP_QUANTITIES}[name].dims:
            assert_same_bits(rounds.values[name], steps.values[name])
    assert_same_bits(rounds.variables, steps.variables)


# --- invariants


def test_server_steps_are_faster_than_rounds_and_the_clock_ends_a_run():
    clock = Asynchronous(concurrency=4, buffer=4, open_slots=1)
    base = BANDIT.replace(policy=Random(), track_regret=False, max_seconds=1e6)
    configs = base, base.replace(clock=clock), base.replace(clock=clock, max_seconds=2.0)
    runs = [simulate(config, KEY, record=("clock", "num_played")) for config in configs]
    rounds, steps, result = jax.device_get(runs)
    assert steps.num_played == rounds.num_played == BANDIT.num_rounds
    assert steps.clock[-1] < rounds.clock[-1]
    played = int(result.num_played)
    assert 2 <= played < BANDIT.num_rounds
    assert result.clock[played - 2] < 2.0 <= result.clock[played - 1]
    assert np.all(np.isnan(result.clock[played:]))


@pytest.mark.slow
@pytest.mark.parametrize("pace", [1.0, 2.0, 4.5])
def test_paced_updates_respect_the_staleness_bound(pace):
    # Nobody waits in the buffer for long, so it is never full.
    seconds = (0.3, 0.4, 0.55, 0.7, 1.1, 1.9, 3.2, 5.0)
    clock = Asynchronous(concurrency=5, buffer=8, open_slots=1, pace=pace)
    config = of_clients(seconds, clock, policy=Random(), num_rounds=120)
    record = ("clients", "staleness")
    result = jax.device_get(simulate(config, KEY, record=record))
    known = next(s for s in range(120) if set(np.ravel(result.clients[:s])) >= set(range(8)))
    late = np.asarray(result.staleness)[known + 8 :]
    assert 0 < late.max() <= math.ceil(pace)
    # Negative control: a server of single answers, as many steps, is far above the bound.
    single = simulate(config.replace(clock=clock.replace(pace=None, buffer=1)), KEY, record=record)
    assert np.max(single.staleness) > 2 * pace


def test_paced_step_waits_for_the_first_update_of_a_client():
    clock = Asynchronous(concurrency=2, buffer=2, open_slots=1, pace=2.0)
    config = of_clients((1, 6), clock, policy=Fastest(), num_rounds=3)
    result = simulate(config, KEY, record=("clock", *ANSWERS))
    # Client 0 answers at 1 s, and the step waits for client 1's first answer. Then a step comes at
    # the latest half of 6 s after the last one.
    assert answers(result)[:2] == [(0, 0.0, 1.0, 0), (1, 0.0, 6.0, 0)]
    assert result.clock.tolist() == [6.0, 9.0, 12.0]
    assert answers(result)[2:] == [(0, 6.0, 7.0, 0), (0, 9.0, 10.0, 0), (1, 6.0, 12.0, 1)]


# --- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clock": Asynchronous(concurrency=7)}, "clock.concurrency = 7: must be <= num_clients"),
        ({"clock": Asynchronous(concurrency=4, buffer=7)}, "clock.buffer = 7: must be <= num_cl"),
        ({"clock": Asynchronous(concurrency=3, buffer=1)}, "concurrency = 3: must be >= 4, the"),
        ({"deadline": 3.0}, "deadline = 3.0: must not be set with clock = 'asynchronous'"),
        ({"wait_for": 2}, "wait_for = 2: must not be set with clock = 'asynchronous'"),
        ({"clock": Asynchronous(concurrency=0)}, "clock.concurrency = 0: must be a whole number"),
        ({"clock": Asynchronous(open_slots=0)}, "clock.open_slots = 0: must be a whole number"),
    ],
)
def test_invalid_clocks_are_refused_in_one_line(changes, message):
    base = BANDIT.replace(clock=Asynchronous(concurrency=5, buffer=2))
    with pytest.raises(ConfigError, match=re.escape(message)):
        validate(base.replace(**changes))


ASK_NOBODY = [named(cls.name) for cls in POLICIES if cls.name not in ASK]
# Of one cohort size, and reading no losses: they share a trace.
ALIKE = [each for each in ASK_NOBODY if each.name != "all" and not each.releases]


@pytest.mark.parametrize(
    "policies",
    [[each] for each in ASK_NOBODY if each not in ALIKE] + [ALIKE],
    ids=lambda policies: policies[0].name if len(policies) == 1 else "others",
)
def test_every_policy_without_queries_runs_with_server_steps(policies):
    """Traced, not compiled: most of a trace is the rest of a step."""
    clock = Asynchronous(concurrency=6, buffer=2, open_slots=1)
    if policies[0].name == "all":
        clock = clock.replace(open_slots=None)
    config, data = prepare(BANDIT.replace(policy=policies[0], clock=clock, track_regret=False))
    if len(policies) > 1:
        config = config.replace(policy=Together(policies=tuple(policies)))
    quantities = chosen(("clients", "staleness"))
    result = jax.eval_shape(lambda key: single_run(config, data, key, quantities), KEY)
    assert result.clients.shape == result.staleness.shape == (config.num_rounds, 2)


def test_queries_and_learners_without_deferred_are_refused():
    clock = Asynchronous(concurrency=5, buffer=2, open_slots=1)
    for name in sorted(ASK):
        with pytest.raises(ConfigError, match="queries clients before each choice"):
            simulate(BANDIT.replace(policy=named(name), clock=clock), KEY)

    class Old(Learning):
        def build(self, data, num_clients, execution=None) -> Learner:
            return super().build(data, num_clients, execution)._replace(deferred=None)

    old = Old(data=Digits(num_train=240), model=Linear())
    with pytest.raises(ConfigError, match="the learner of Old cannot average stale updates"):
        simulate(LEARN.replace(learning=old, clock=clock), KEY)
