"""What a custom policy must declare, keep and not remember, and the warning if it breaks rules."""

import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, regret, simulate, sweep
from pause_jax.bandit import Selection
from pause_jax.base.struct import node
from pause_jax.deploy.selector import Selector
from pause_jax.policies import (
    Oort,
    Policy,
    PolicyConfig,
    Query,
    Random,
    no_info,
    policy_of,
    stateless,
)
from pause_jax.run.contract import RECORDED, BrokenContract
from pause_jax.testing import check_policy, check_pure
from tests.support import network
from tests.support.pages import block

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
BASE = SimConfig(
    num_clients=5, num_selected=3, num_rounds=7, policy=Random(), learning=None, track_regret=False
)


class Reader(PolicyConfig):
    """The clients of largest latency first, or of what a subclass reads."""

    def read(self, observation):
        return observation.latency

    def start(self, context):
        return jnp.zeros(context.num_clients)

    def build(self, context):
        def select(key, state, round, available):
            rank = jnp.where(available, jnp.ravel(state)[: context.num_clients], -jnp.inf)
            clients = jnp.argsort(-rank)[: context.num_selected]
            here = available[clients]
            return Selection(clients, here / jnp.maximum(jnp.sum(here), 1)), no_info()

        def update(state, selection, observation):
            return state.at[selection.clients].set(self.read(observation))

        return Policy(lambda: self.start(context), select, update)


def reading(read, **members):
    """A policy of the class ``Mine`` that reads what ``read`` takes from an observation."""
    return type("Mine", (Reader,), {"read": staticmethod(read), **members})()


class Asks(PolicyConfig):
    """Random among all, after a question that it does not declare."""

    def build(self, context):
        base = Random().build(context)
        everyone = jnp.arange(context.num_clients), jnp.ones(context.num_clients, bool)
        query = Query(
            lambda key, state, round, available: everyone,
            lambda state, clients, asked, answer: state,
            wants="loss", batch_size=None, seconds=lambda latency: 0 * latency,
        )  # fmt: skip
        return base._replace(query=query)


class Holds(PolicyConfig):
    """Holds another policy."""

    inner: PolicyConfig = node(factory=Oort, of=PolicyConfig)

    def build(self, context):
        return self.inner.build(context)


LOSS = reading(lambda seen: seen.loss)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (LOSS, r"Mine: reads observation\.loss without .*reads = \('loss',\)"),
        (
            reading(lambda seen: seen.square_loss),
            r"Mine: reads observation\.square_loss without .*reads = \('square_loss',\)",
        ),
        (
            reading(lambda seen: jnp.sum(seen.update**2, axis=1)),
            r"Mine: reads observation\.update without .*reads = \('update',\)",
        ),
        (reading(lambda seen: seen[1] + 0.0), r"Mine: reads observation\.loss without "),
        (
            reading(lambda seen: seen.loss + seen.square_loss, reads=("loss",)),
            r"Mine: reads observation\.square_loss without .*reads = \('loss', 'square_loss'\)",
        ),
        (
            reading(lambda seen: seen.loss, reads=("loss",), releases=()),
            r"Mine\.releases: must not be set",
        ),
        (Asks(), r"Asks: requests losses without declaring .*reads = \('answer\.loss',\)"),
    ],
)
def test_policy_that_reads_undeclared_field_is_refused_before_any_run(policy, words):
    with pytest.raises(ConfigError, match=words):
        simulate(BASE.replace(policy=policy), KEY)


def test_sweeps_checks_and_selectors_refuse_an_undeclared_reading():
    config = BASE.replace(policy=LOSS)
    selector = Selector(config, KEY)
    seconds = dict.fromkeys(map(int, selector.ask().clients), 1.0)
    for call in (
        lambda: check_policy(LOSS),
        lambda: sweep(config, KEY, progress=False),
        lambda: selector.tell(seconds),
    ):
        with pytest.raises(ConfigError, match=r"Mine: reads observation\.loss"):
            call()


NETWORK = network.context([1.0] * 5, 3)
SELECTION = Selection(np.array([4, 0, 2]), np.full(3, 1 / 3))


def test_undeclared_field_is_none_even_if_nothing_fails():
    shown = []

    def look(seen):
        shown.append(seen)
        return seen.latency

    policy_of(reading(look), NETWORK).update(
        jnp.zeros(5), SELECTION, network.observation([1, 2, 3])
    )
    (observation,) = shown
    assert [observation.loss, observation.square_loss, observation.update] == [None] * 3
    assert observation.server_loss is None


def test_unrelated_error_in_update_is_raised_unchanged():
    with pytest.raises(ZeroDivisionError):
        simulate(BASE.replace(policy=reading(lambda seen: 1 // 0)), KEY)


def test_guide_policy_declares_what_it_reads():
    names: dict[str, Any] = {}
    for begin in ("class EpsilonGreedy", "class LargestLoss"):
        exec(block("docs/guides/own_policy.md", begin), names)
    assert names["LargestLoss"]().releases == ("the training loss of each chosen client",)


def test_policy_inherits_reads_of_nested_policies():
    assert Holds().releases == Oort().releases != ()
    assert Holds(inner=Random()).releases == ()
    policy_of(Holds(), NETWORK)


def test_declared_loss_arrives_unchanged():
    policy = policy_of(reading(lambda seen: seen.loss, reads=("loss",)), NETWORK)
    seen = network.observation([1, 2, 3], loss=7.0)
    state = jax.jit(policy.update)(np.zeros(5, np.float32), SELECTION, seen)
    np.testing.assert_array_equal(state, [7, 0, 7, 0, 7])


# ---------------------------------------------------------------- the form of the state


class Grows(Reader):
    def build(self, context):
        built = super().build(context)
        return built._replace(update=lambda state, *rest: jnp.append(state, 0.0))


class Turns(Reader):
    """From whole numbers to floats."""

    def start(self, context):
        return {"rank": jnp.zeros(context.num_clients, jnp.int32)}

    def build(self, context):
        def update(state, selection, observation):
            return {"rank": state["rank"] + 0.5}

        init, random = lambda: self.start(context), Random().build(context)
        return Policy(init, lambda key, state, *rest: random.select(key, (), *rest), update)


class Forgets(Turns):
    def build(self, context):
        return super().build(context)._replace(update=lambda state, *rest: ())


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Grows(), r"Grows\.update returned state as float32 of shape \(6,\), .*float32 .*\(5,\)"),
        (
            Turns(),
            r"Turns\.update returned state\['rank'\] as float32 .* returns int32 of shape \(5,\)",
        ),
        (Forgets(), r"Forgets\.update returned .* structure PyTreeDef\(\(\)\), but init returns"),
    ],
)
def test_state_that_changes_structure_or_dtype_is_refused(policy, words):
    with pytest.raises(ConfigError, match=words) as refused:
        simulate(BASE.replace(policy=policy), KEY)
    assert "\n" not in str(refused.value)


# ---------------------------------------------------------------- purity

COUNT = itertools.count()


class CountsInBuild(PolicyConfig):
    """As many more as it was built before."""

    def build(self, context):
        shift = next(COUNT)

        def choose(key, available):
            clients = (jnp.argsort(~available)[: context.num_selected] + shift) - shift
            here = available[clients]
            return Selection(clients, here / jnp.maximum(jnp.sum(here), 1))

        return stateless(choose)


class CountsInUpdate(Reader):
    def build(self, context):
        calls, built = itertools.count(), super().build(context)

        def update(state, selection, observation):
            return built.update(state, selection, observation) * 0.5 ** next(calls)

        return built._replace(update=update)


class DrawsInSelect(Reader):
    """Arrays that NumPy draws while the policy is traced."""

    def build(self, context):
        built, dice = super().build(context), np.random.default_rng(0)

        def select(key, state, round, available):
            noise = jnp.asarray(dice.random(context.num_clients), jnp.float32)
            return jax.jit(lambda state: built.select(key, state + noise, round, available))(state)

        return built._replace(select=select)


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        (CountsInBuild(), "building it again"),
        (CountsInUpdate(), "calling it again"),
        (DrawsInSelect(), "calling it again"),
    ],
)
def test_impure_policy_is_refused(policy, where):
    with pytest.raises(AssertionError, match=rf"{type(policy).__name__}: {where}.* must be pure"):
        check_pure(policy, NETWORK)


# ---------------------------------------------------------------- broken rules, said once


class Broken(PolicyConfig):
    """From round 4 on one client twice."""

    name = "broken_for_a_warning"

    def build(self, context):
        def select(key, state, round, available):
            clients = jnp.arange(3, dtype=jnp.int32).at[0].set(jnp.where(round < 4, 0, 1))
            return Selection(clients, jnp.full(3, 1 / 3)), no_info()

        return Policy(lambda: (), select, lambda state, *rest: state)


def test_run_that_breaks_the_contract_warns_once():
    config = BASE.replace(policy=Broken())
    with pytest.warns(BrokenContract) as seen:
        simulate(config, KEY)
    words = "the policy chose a client twice (first in round 4, in 1 of 1 seeds"
    assert [words in str(each.message) for each in seen] == [True]
    assert seen[0].filename == __file__, "the caller's line"
    configs = {"good": BASE, "bad": config, "worse": config.replace(availability=0.5)}
    with pytest.warns(BrokenContract) as seen:
        sweep(configs, jax.random.split(KEY, 2), record=RECORDED, progress=False)
    assert len(seen) == 1
    first, second = str(seen[0].message).splitlines()
    assert first.startswith(
        "bad: the policy chose a client twice (first in round 4, in 2 of 2 seeds"
    )
    assert second.startswith("worse: ")
    assert "good" not in str(seen[0].message)


def test_sound_runs_and_traces_do_not_warn():
    config = BASE.replace(policy=Broken())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(BASE, KEY, record=RECORDED)
        broken = jax.vmap(lambda key: simulate(config, key, record=RECORDED).first_broken_round)
        found = broken(jax.random.split(KEY, 2))
    assert found.tolist() == [4, 4]


def test_equal_keys_are_refused():
    keys = jax.random.split(KEY, 3)
    keys = keys[np.array([0, 1, 2, 1])]
    for several in (sweep, lambda c, k: regret.measure({"one": c}, k)):
        with pytest.raises(ConfigError, match=r"keys\[3\] equals keys\[1\]: keys must differ"):
            several(BASE.replace(track_regret=True), keys)
