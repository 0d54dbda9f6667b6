"""Policies and latency models of one's own that break their contract are named in the result."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, simulate, sweep
from pause_jax.bandit import Selection
from pause_jax.bandit.search import exact, exhaustive
from pause_jax.base.struct import number
from pause_jax.policies import Policy, PolicyConfig, Random, no_info
from pause_jax.run import contract
from pause_jax.run.rounds.state import examined, healthy
from pause_jax.world.latency import Latency, TwoGroups
from tests.support.command import run

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
FROM = 4  # the round from which on the contract is broken


THIRD = [1 / 3, 1 / 3, 1 / 3]
# Of a round, and the rule that it breaks; the first breaks none.
COHORTS = [
    ([0, 1, 2], THIRD, None),
    ([1, 1, 2], THIRD, 0),
    ([0, 1, 5], THIRD, 1),
    ([0, -2, 1], THIRD, 1),
    ([0, 1, 2], [0.5, np.nan, 0.5], 3),
    ([0, 1, 2], [1.5, -0.5, 0.0], 3),
    ([0, 1, 2], [10.0, 10.0, 10.0], 4),
]
SECONDS = [(1.0, None), (np.nan, 5), (np.inf, 5), (-1.0, 6), (0.0, 6)]


def bad(values, case, round):
    """The first of some values until round FROM, and from then on that of a case."""
    return jnp.asarray(values)[jnp.where(round < FROM, 0, jnp.int32(case))]


class BrokenPolicy(PolicyConfig):
    name = "broken"
    case: float = number(default=0.0)

    def build(self, context):
        clients, weights, _ = zip(*COHORTS, strict=True)

        def select(key, state, round, available):
            chosen = (bad(values, self.case, round) for values in (clients, weights))
            return Selection(*chosen), no_info()

        return Policy(lambda: (), select, lambda state, selection, observation: state)


class BrokenLatency(TwoGroups):
    name = "strange"
    case: float = number(default=0.0)

    def at(self, key, round, num_clients):
        seconds = bad([each for each, _ in SECONDS], self.case, round)
        return self.sample(key, num_clients).at[0].set(seconds)


# One program runs all cases.
BROKEN = SimConfig(
    num_clients=5,
    num_selected=3,
    num_rounds=7,
    learning=None,
    track_regret=False,
    policy=BrokenPolicy(),
    latency=BrokenLatency(),
)
RECORD = ("clients", "first_broken_round", "broken_rules")
CASES = [
    *(({"policy.case": i}, rule) for i, (*_, rule) in enumerate(COHORTS)),
    *(({"latency.case": i}, rule) for i, (_, rule) in enumerate(SECONDS)),
]


@pytest.mark.parametrize(("change", "rule"), CASES)
def test_broken_rule_is_reported_with_its_round(change, rule):
    config = BROKEN.override(change)
    if rule is None:
        assert int(simulate(config, KEY, record=RECORD).first_broken_round) == 0
        return
    with pytest.warns(
        contract.BrokenContract, match=f"{contract.RULES[rule]}.*first in round {FROM},"
    ):
        result = simulate(config, KEY, record=RECORD)
    assert int(result.first_broken_round) == FROM
    assert contract.RULES[rule] in contract.words(int(result.broken_rules))


def test_report_covers_the_first_broken_round():
    for rounds, expected in (([0, 0, 4, 0, 9, 0], [3, 4]), ([2, 0], [1, 2]), ([0, 0], [0, 0])):
        health = healthy()
        for round, rules in enumerate(rounds, 1):
            health = examined(health, jnp.asarray(round), None, jnp.asarray(rules))
        assert [int(health.first_broken), int(health.broken_rules)] == expected


def test_choosing_an_absent_client_is_reported():
    class Blind(PolicyConfig):
        def build(self, context):
            def select(key, state, round, available):
                return Selection(jnp.arange(3, dtype=jnp.int32), jnp.full(3, 1 / 3)), no_info()

            return Policy(lambda: (), select, lambda state, selection, observation: state)

    config = BROKEN.replace(num_rounds=20, policy=Blind(), latency=TwoGroups())
    assert int(simulate(config, KEY, record=RECORD).first_broken_round) == 0
    with pytest.warns(contract.BrokenContract, match="unavailable client"):
        result = simulate(config.replace(availability=0.8), KEY, record=RECORD)
    assert contract.words(int(result.broken_rules)) == contract.RULES[2]


def test_valid_parts_and_empty_slots_break_no_rule():
    class Mine(Random):
        pass

    class Own(TwoGroups):
        pass

    base = BROKEN.replace(num_rounds=40, policy=Random(), latency=TwoGroups(), availability=0.3)
    for config in (base, base.replace(policy=Mine(), latency=Own())):
        result = simulate(config, KEY, record=RECORD)
        assert int(result.first_broken_round) == int(result.broken_rules) == 0
        assert (result.clients == -1).any()


def test_latency_with_wrong_shape_is_refused_before_any_run():
    class Short(Latency):
        name = "short"

        def sample(self, key, num_clients):
            return jnp.ones(num_clients - 1)

        def expected_speed(self, num_clients):
            return jnp.ones(num_clients)

        expected_latency = expected_speed

    config = SimConfig(num_clients=5, num_selected=3, num_rounds=7, learning=None, latency=Short())
    with pytest.raises(
        ConfigError, match=r"Short: returned latencies of shape \(4,\), but must return \[5\]"
    ):
        simulate(config, KEY)
    with pytest.raises(ConfigError, match="Short: returned latencies"):
        sweep([config], KEY[None], progress=False)


def test_command_line_warns_of_a_broken_part(monkeypatch, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp\n"
        "from pause_jax.world.latency import TwoGroups\n"
        "class Backwards(TwoGroups):\n"
        "    name = 'backwards'\n"
        "    def sample(self, key, num_clients):\n"
        "        return -super().sample(key, num_clients)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ("compare", "--load", "mine.py", "--policies", "random", "--seeds", "1")
    changes = (
        *("latency=backwards", "learning=none", "num_rounds=3"),
        *("num_clients=5", "num_selected=2", "privacy=none", "track_regret=false"),
    )
    words = [word for change in changes for word in ("--set", change)]
    assert run(*arguments, *words, "--no-figures", "--no-report") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "random: WARNING: a latency is below min_latency (first in round 1," in printed


def test_changed_class_attribute_applies_to_the_next_run(monkeypatch):
    class Bench(Latency):
        name: ClassVar[str] = "bench_of_a_test"
        measured = np.array([1.0, 2.0, 3.0])
        factor = 1.0

        def sample(self, key, num_clients):
            return self.factor * jnp.asarray(self.measured, jnp.float32)

        def expected_speed(self, num_clients):
            return self.min_latency / self.sample(None, num_clients)

        def expected_latency(self, num_clients):
            return self.sample(None, num_clients)

    config = SimConfig(
        num_clients=3, num_selected=3, num_rounds=2, learning=None, track_regret=False
    )
    config = config.replace(policy=Random(), latency=Bench(min_latency=0.5))

    def seconds():
        return float(simulate(config, KEY, record=("clock",)).clock[-1])

    assert seconds() == 6
    monkeypatch.setattr(Bench, "factor", 2.0)
    assert seconds() == 12
    Bench.measured[2] = 10.0  # in place
    assert seconds() == 40
    monkeypatch.setattr(Bench, "sample", lambda self, key, num_clients: jnp.full(3, 7.0))
    assert seconds() == 14


@pytest.mark.parametrize("find", [exact, exhaustive])
def test_nan_index_is_refused_if_concrete(find):
    index, weight = jnp.array([0.3, jnp.nan, 0.1]), jnp.zeros(3)
    with pytest.raises(ValueError, match=r"index\[1\] is NaN: must be a number"):
        find(index, weight, 2)
    with pytest.raises(ValueError, match=r"weight\[1\] is NaN"):
        find(weight, index, 2)
    with pytest.raises(ValueError, match=r"index\[0, 1\] is NaN"):
        jax.vmap(lambda index: find(index, weight, 2))(index[None])
    assert find(jnp.array([jnp.inf, 0.2, -jnp.inf]), weight, 2)[0].tolist() == [0, 1]


@pytest.mark.parametrize("gamma", [jnp.nan, -5.0])
def test_config_values_are_checked_under_vmap(gamma):
    config = SimConfig(
        num_clients=4, num_selected=2, num_rounds=2, policy=Random(), learning=None,
        track_regret=False,
    )  # fmt: skip

    def clock(gamma):
        return simulate(config.override({"reward.gamma": gamma}), KEY).clock[-1]

    assert jax.vmap(clock)(jnp.array([1.0, 2.0])).shape == (2,)
    with pytest.raises(
        ConfigError, match=r"reward.gamma = .*finite and .* in every run under vmap"
    ):
        jax.vmap(clock)(jnp.array([1.0, gamma]))
