"""The contract checks that users get: every part of the library passes, planted faults do not."""

import ast
import inspect
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

from pause_jax import ConfigError, SimConfig, simulate, testing
from pause_jax.bandit import Selection, no_info
from pause_jax.base.struct import number
from pause_jax.learning import Digits, Dirichlet, Learner, Learning, Linear, LinearRegression, Mlp
from pause_jax.policies import POLICIES, Policy, PolicyConfig, Random
from pause_jax.privacy import (
    MECHANISMS,
    Budgeted,
    L1Laplace,
    Mechanism,
    PerCoordinateLaplace,
    Table,
    Uniform,
)
from pause_jax.testing import check_learner, check_mechanism, check_policy
from tests.support.runs import QUICK

pytestmark = pytest.mark.slow

TINY = Digits(num_train=120)


# One policy of each kind of observation, state and search runs with every change, and the others
# every night. Each policy also has an oracle of its own.
FREQUENT = (
    *("pause", "bsfl", "rbcs_f", "power_of_choice", "oort", "fedcs", "divfl", "fedcor"),
    *("clustered_similarity", "mixture", "all", "genie"),
)
VARIANTS = (
    *("rpow_d", "pause_exhaustive", "sa_pause", "noise_sampling_unbiased", "random_by_data"),
    *("pause_kl_ucb", "pause_ucb_v", "pause_thompson", "pause_discounted", "pause_useful_rate"),
)
NIGHTLY = ({policy.name for policy in POLICIES} | set(VARIANTS)) - set(FREQUENT)


@pytest.mark.parametrize(
    "name",
    [*FREQUENT, *(pytest.param(name, marks=pytest.mark.nightly) for name in sorted(NIGHTLY))],
)
def test_every_policy_keeps_its_contract(name):
    check_policy(QUICK[name])


@pytest.mark.parametrize(
    "mechanism",
    [
        *(cls() for cls in MECHANISMS),
        L1Laplace(budget=Uniform(horizon=7.0)),
        PerCoordinateLaplace(budget=Table(shares=(0.5, 0.25))),
    ],
    ids=lambda mechanism: f"{mechanism.name}-{mechanism.budget.name}",
)
def test_every_mechanism_keeps_its_contract(mechanism):
    check_mechanism(mechanism)


@pytest.mark.parametrize(
    "learning",
    [
        Learning(
            data=TINY, partition=Dirichlet(min_quality=0.5), keep_optimizer_state=True,
            max_steps=2, model=Mlp(hidden=(3,)),
        ),
        Learning(data=LinearRegression(num_samples=90), optimizer="sgd", model=Linear()),
    ],
    ids=["unequal clients, moments", "regression"],
)  # fmt: skip
def test_every_learner_keeps_its_contract(learning):
    check_learner(learning)


# ---------------------------------------------------------------- planted faults


class Faulty(PolicyConfig):
    """Chooses what ``choose`` says: (key, context, available, round) -> Selection."""

    scale: float = number(default=1.0, above=0)

    def choose(self, key, context, available, round):
        raise NotImplementedError

    def build(self, context):
        def select(key, state, round, available):
            return self.choose(key, context, available, round), no_info()

        return Policy(lambda: (), select, lambda state, selection, observation: state)


class Twice(Faulty):
    def choose(self, key, context, available, round):
        clients = jnp.argsort(~available)[: context.num_selected]
        return Selection(clients.at[1].set(clients[0]), jnp.full(clients.shape, 1 / 3))


class Absent(Faulty):
    def choose(self, key, context, available, round):
        return Selection(jnp.arange(context.num_selected), jnp.full(context.num_selected, 1 / 3))


class Heavy(Faulty):
    def choose(self, key, context, available, round):
        clients = jnp.argsort(~available)[: context.num_selected]
        return Selection(clients, available[clients] * 1.0)


class Late(Faulty):
    """Goes wrong in one round only."""

    def choose(self, key, context, available, round):
        clients = jnp.argsort(~available)[: context.num_selected]
        here = available[clients]
        weights = here / jnp.maximum(jnp.sum(here), 1)
        return Selection(clients, jnp.where(round == 17, jnp.nan, weights))


class Norms(Faulty):
    """Chooses one client twice once it has seen an update, which only training has."""

    reads: ClassVar[tuple[str, ...]] = ("update",)

    def build(self, context):
        def select(key, state, round, available):
            clients = jnp.argsort(~available)[: context.num_selected]
            here = available[clients]
            clients = clients.at[1].set(jnp.where(state > 0, clients[0], clients[1]))
            return Selection(clients, here / jnp.maximum(jnp.sum(here), 1)), no_info()

        def update(state, selection, observation):
            return state + jnp.sum(jnp.abs(observation.update))

        return Policy(lambda: jnp.zeros(()), select, update)


class Frozen(Faulty):
    """Makes a Python number of a traced one, so that each value compiles again."""

    def choose(self, key, context, available, round):
        clients = jnp.argsort(~available)[: context.num_selected + int(float(self.scale)) - 1]
        here = available[clients]
        return Selection(clients, here / jnp.maximum(jnp.sum(here), 1))


class Dice(Faulty):
    """Draws with Python's own dice, which a compiled program does not throw again."""

    def choose(self, key, context, available, round):
        shift = next(DICE)
        clients = jnp.argsort(~jnp.roll(available, shift))[: context.num_selected]
        clients = (clients - shift) % context.num_clients
        here = available[clients]
        return Selection(clients, here / jnp.maximum(jnp.sum(here), 1))


DICE = itertools.count()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Twice(), "distinct"),
        (Absent(), "clients with weight > 0 must be available"),
        (Heavy(), "weights must sum to 1"),
        (Late(), "round 17.*finite"),
        (Dice(), r"Dice: calling it again.*must be pure"),
        (Norms(), r"in training, round \d+: .*distinct"),
    ],
)
def test_faulty_policy_is_detected(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_policy(policy)


def test_policy_that_freezes_traced_number_is_detected():
    with pytest.raises(jax.errors.ConcretizationTypeError):
        check_policy(Frozen())


class Silent(L1Laplace):
    """Adds no noise."""

    def privatize(self, key, update, epsilon):
        return update


class Wide(L1Laplace):
    """Releases more than it was given."""

    def privatize(self, key, update, epsilon):
        return jnp.concatenate([super().privatize(key, update, epsilon), update[:1]])


class Growing(Uniform):
    """Says that less is spent than its epsilons add up to."""

    def spent(self, participations):
        return 0.5 * super().spent(participations)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (Silent(), "the noise is missing"),
        (Wide(), "a release has shape"),
        (L1Laplace(budget=Growing()), "must be the sum of the first n epsilons"),
    ],
)
def test_faulty_mechanism_is_detected(mechanism, words):
    with pytest.raises(AssertionError, match=words):
        check_mechanism(mechanism)


class Unitless(Budgeted):
    """Does not say what its epsilon protects."""

    def privatize(self, key, update, epsilon):
        return update


class Vector(Unitless):
    unit = "vector"


class Unbudgeted(Mechanism):
    """Claims to protect, and spends nothing."""

    unit = "update"

    def privatize(self, key, update, epsilon):
        return update


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (Unitless(), "unit = 'none': must be one of coordinate, update"),
        (Vector(), "unit = 'vector': must be one of coordinate, update"),
        (Unbudgeted(), "Subclass Budgeted"),
    ],
)
def test_a_mechanism_without_a_unit_or_a_budget_is_refused_before_any_run(mechanism, words):
    with pytest.raises(ConfigError, match=words):
        check_mechanism(mechanism)
    with pytest.raises(ConfigError, match=words):
        simulate(SimConfig(privacy=mechanism, learning=None), jax.random.key(0))


class NoPolicy(PolicyConfig):
    def build(self, context):
        return lambda key: key


def test_checks_raise_with_assertions_disabled():
    """Python drops ``assert`` under ``-O``."""
    tree = ast.parse(inspect.getsource(testing))
    assert any(isinstance(node, ast.Raise) for node in ast.walk(tree))
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))


class NoLearner(Learning):
    def build(self, data, num_clients, execution=None):
        return None


def test_build_must_return_declared_type():
    with pytest.raises(
        TypeError, match=r"NoPolicy.build returned function, but must return Policy"
    ):
        check_policy(NoPolicy())
    with pytest.raises(
        TypeError, match=r"NoLearner.build returned NoneType, but must return Learner"
    ):
        check_learner(NoLearner(data=TINY))


def learning_with(change):
    """``Learning`` on digits with its learner changed."""

    class Changed(Learning):
        def build(self, data, num_clients, execution=None):
            return change(super().build(data, num_clients, execution))

    return Changed(data=TINY, model=Linear(), batch_size=5)


def past_the_release(learner: Learner) -> Learner:
    def train(key, state, selection, release):
        after, trained = learner.train(key, state, selection, lambda updates: updates)
        return after, trained._replace(released=release(trained.released))

    return learner._replace(train=train)


def counts_everyone(learner: Learner) -> Learner:
    def train(key, state, selection, release):
        weights = jnp.maximum(selection.weights, 0.1)
        return learner.train(key, state, selection._replace(weights=weights), release)

    return learner._replace(train=train)


def by_slot(learner: Learner) -> Learner:
    def train(key, state, selection, release):
        slots = jnp.arange(selection.clients.size)
        return learner.train(key, state, selection._replace(clients=slots), release)

    def turned(key, state, selection, release):
        first = selection.clients[0]
        return train(jax.random.fold_in(key, first), state, selection, release)

    return learner._replace(train=turned)


def more_metrics(learner: Learner) -> Learner:
    return learner._replace(metrics=(*learner.metrics, "f1"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (past_the_release, "params must not change if the release is zero"),
        (counts_everyone, "training with all weights 0 must not change variables"),
        (by_slot, "the order of the slots must not change the result"),
        (more_metrics, "Learner.metrics is"),
    ],
)
def test_faulty_learner_is_detected(change, words):
    with pytest.raises(AssertionError, match=words):
        check_learner(learning_with(change))


def test_custom_policy_without_name_passes():
    class Mine(Random):
        """Random, by another class."""

    check_policy(Mine())
