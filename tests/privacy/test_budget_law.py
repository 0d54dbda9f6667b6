"""Budgets that differ between clients, beside a plain account of each client."""

import csv

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optuna.distributions import FloatDistribution

from pause_jax import ConfigError, SimConfig, simulate, sweep, tuning
from pause_jax.analysis import ledger_table
from pause_jax.analysis.ledger import ledger
from pause_jax.config import config_file, validate
from pause_jax.deploy.selector import Selector
from pause_jax.policies import named
from pause_jax.privacy import (
    Constant,
    Geometric,
    LogNormalBudgets,
    PerClient,
    PerCoordinateLaplace,
    Table,
    Tiers,
    Uniform,
)
from pause_jax.rng import keys
from tests.reference import oracles

K, KEY = 10, jax.random.key(0)
RECORDED = ("clients", "queried", "budget", "spent", "counts")
UNEQUAL = Tiers(values=(2.0, 30.0), shares=(0.5, 0.5))
SMALL = Tiers(values=(0.1, 2.0), shares=(0.5, 0.5))
HALVED = PerClient(values=tuple(2.0**-k for k in range(K)))


def config(budget, policy="random", **changes):
    return SimConfig(
        num_clients=K,
        num_selected=3,
        num_rounds=40,
        learning=None,
        policy=named(policy),
        privacy=PerCoordinateLaplace(budget=budget),
        track_regret=False,
    ).replace(**changes)


@pytest.mark.slow
def test_equal_budgets_match_a_scalar_budget_bit_for_bit():
    one, same = (
        simulate(
            config(Uniform(total_epsilon=20.0, horizon=9.0, law=law), "pause"),
            KEY,
            record=(*RECORDED, "clock", "reward", "max_spent"),
        )
        for law in (None, Tiers(values=(1.0, 1.0), shares=(0.4, 0.6)))
    )
    for name, values in one.values.items():
        np.testing.assert_array_equal(same.values[name], values, err_msg=name)


# Each schedule by one free parameter, with the parameter of its oracle.
SHARES = (0.5, 0.3, 0.1)
SCHEDULES = {
    oracles.constant_epsilon: lambda x: (Constant(per_release=x), x),
    oracles.geometric_epsilon: lambda x: (Geometric(decay=x), x),
    oracles.uniform_epsilon: lambda x: (Uniform(horizon=1 + x), 1 + x),
    oracles.table_epsilon: lambda x: (Table(shares=SHARES), SHARES),
}


def account(chosen, budgets, epsilon_of, when_spent):
    """What each client spends, release by release: (spent [K], releases [K])."""
    spent, releases = np.zeros(K), np.zeros(K, int)
    for row in chosen:
        for client in row[row >= 0]:
            epsilon = epsilon_of(float(budgets[client]), int(releases[client]) + 1)
            if not epsilon:
                assert when_spent == "drop", "a client without budget was chosen"
                continue
            spent[client] += epsilon
            releases[client] += 1
    return spent, releases


@pytest.mark.slow
@pytest.mark.parametrize(
    ("oracle", "law", "when_spent", "policy"),
    [
        (oracles.constant_epsilon, UNEQUAL, "exclude", "random"),
        (oracles.geometric_epsilon, SMALL, "exclude", "noise_sampling"),
        (oracles.table_epsilon, LogNormalBudgets(sigma=2.0), "drop", "tolerant_first"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                (oracles.geometric_epsilon, HALVED, "exclude", "budget_groups"),
                (oracles.uniform_epsilon, SMALL, "exclude", "pause"),
            )
        ),
    ],
    ids=lambda x: getattr(x, "__name__", getattr(x, "name", x)),
)
@hypothesis.settings(max_examples=4, deadline=None)
@hypothesis.given(total=st.floats(0.5, 9), parameter=st.floats(0.2, 2), seed=st.integers(0, 2**31))
def test_no_client_overspends_and_the_ledger_adds_up(
    oracle, law, when_spent, policy, total, parameter, seed
):
    schedule, own = SCHEDULES[oracle](parameter)
    budget = schedule.replace(total_epsilon=total, law=law)
    whole = config(budget, policy, when_spent=when_spent)
    result = simulate(whole, jax.random.key(seed), record=RECORDED)
    book = ledger(result)
    spent, releases = account(
        np.asarray(result.clients), book.budget, lambda b, i: oracle(b, own, i), when_spent
    )
    np.testing.assert_allclose(book.spent, spent, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(book.releases, releases)
    assert (book.spent <= book.budget * (1 + 1e-6)).all()


@pytest.mark.slow
def test_small_budgets_are_spent_first_and_equal_for_all_policies():
    budget = Constant(total_epsilon=1.0, per_release=1.0, law=UNEQUAL)
    names = ("random", "pause")
    found = sweep({n: config(budget, n) for n in names}, jax.random.split(KEY, 3), record=RECORDED)
    assert len(np.unique(found.budget, axis=0)) == 1
    assert len(np.unique(found.budget[0], axis=0)) == 3, "each seed draws its own"
    small = (found.budget == 2.0).values
    assert (small.sum(-1) == 5).all()
    assert (found.counts.values[small] <= 2).all()
    assert found.counts.values[~small].max() > 2
    book = ledger(found.sel(config="pause"))
    np.testing.assert_array_equal(book.budget, found.budget.sel(config="pause"))
    assert book.tight_at_most != book.tight_at_most or book.tight_at_most <= 30


def test_tier_sizes_sum_to_k_and_only_their_order_is_random():
    law = Tiers(values=(1.0, 2.0, 3.0), shares=(1 / 3, 1 / 3, 1 / 3))
    assert law.sizes(10).tolist() == [4, 3, 3]
    assert Tiers(values=(1.0, 2.0), shares=(0.25, 0.75)).sizes(4).tolist() == [1, 3]
    largest_remainder = Tiers(values=(1.0, 2.0, 3.0), shares=(0.44, 0.33, 0.23))
    assert largest_remainder.sizes(10).tolist() == [5, 3, 2]
    one, other = (np.asarray(law.factors(keys.budgets(jax.random.key(i)), 10)) for i in (0, 1))
    assert sorted(one) == sorted(other)
    assert one.tolist() != other.tolist()


def test_log_normal_budgets_have_the_stated_median_and_spread():
    factors = np.log(LogNormalBudgets(sigma=0.7).factors(KEY, 20_000))
    assert abs(np.median(factors)) < 0.02
    assert abs(np.std(factors) - 0.7) < 0.01
    assert abs(np.std(factors) - 0.75) > 0.03


def test_constant_schedule_releases_the_rest_last():
    budget = Constant(total_epsilon=jnp.asarray([2.5, 3.0]), per_release=1.0)
    epsilon = np.asarray([budget.epsilon(jnp.full(2, i)) for i in range(1, 6)])
    np.testing.assert_allclose(epsilon, [[1, 1], [1, 1], [0.5, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(budget.exhausted(jnp.asarray([4, 4])), [True, True])
    np.testing.assert_array_equal(budget.exhausted(jnp.asarray([3, 3])), [False, False])
    np.testing.assert_allclose(budget.spent(jnp.asarray([9, 2])), [2.5, 2.0])


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (Tiers(values=(1.0,), shares=(0.5, 0.5)), "1 values and 2 shares"),
        (Tiers(values=(1.0, 2.0), shares=(0.5, 0.4)), "must sum to 1"),
        (Tiers(values=(1.0, 0.0), shares=(0.5, 0.5)), "values"),
        (PerClient(values=(1.0, 2.0)), "2 factors for 10 clients"),
    ],
)
def test_invalid_budget_law_is_refused(law, message):
    with pytest.raises(ConfigError, match=message):
        validate(config(Geometric(law=law)))


@pytest.mark.nightly
@pytest.mark.slow
def test_selector_has_and_saves_the_budgets_of_the_simulation(tmp_path):
    budget = Constant(total_epsilon=2.0, per_release=1.0, law=LogNormalBudgets(sigma=1.0))
    whole = config(budget, "random", num_rounds=12)
    simulated = simulate(whole, KEY, record=RECORDED)
    selector = Selector(whole, KEY)
    for round, row in enumerate(np.asarray(simulated.clients)):
        chosen = selector.ask().clients
        assert set(chosen.tolist()) == set(row[row >= 0].tolist())
        selector.tell({int(k): 1.0 for k in chosen})
        if round == 5:
            selector.save(tmp_path / "selector.npz")
            selector = Selector.load(tmp_path / "selector.npz")
    np.testing.assert_allclose(selector.spent, simulated.spent, rtol=1e-6)


def test_client_reads_its_budget_unless_it_is_random():
    budget = Uniform(total_epsilon=3.0, horizon=2.0, law=PerClient(values=(0.5, 4.0)))
    own = [budget.of_client(k) for k in (0, 1)]
    assert own == [Uniform(total_epsilon=e, horizon=2.0) for e in (1.5, 12.0)]
    for missing in (2, -1):
        with pytest.raises(ConfigError, match=f"has no budget for client {missing}"):
            budget.of_client(missing)
    assert Uniform().of_client(7) == Uniform()
    for drawn in (LogNormalBudgets(), Tiers()):
        with pytest.raises(ConfigError, match="with the server's key"):
            Uniform(law=drawn).of_client(0)


@pytest.mark.slow
def test_command_line_sets_and_a_sweep_varies_a_budget_law(tmp_path):
    settings = [
        *("privacy.budget=uniform", "privacy.budget.total_epsilon=2", "privacy.budget.horizon=4"),
        *("privacy.budget.law=lognormal_budgets", "num_rounds=8"),
    ]
    base = config_file.changed(config(Geometric()), settings)
    numbers = {"one": {}, "double": {"privacy.budget.total_epsilon": 4.0}}
    numbers["even"] = {"privacy.budget.law.sigma": 0.0}
    found = sweep({name: base.override(each) for name, each in numbers.items()}, KEY)
    one, double, even = (found.budget.sel(config=name).values for name in numbers)
    np.testing.assert_allclose(double, 2 * one, rtol=1e-6)
    np.testing.assert_allclose(even, 2.0)
    assert one.std() > 0.5
    (row,) = np.unique(found.spent.sel(config="even") / found.counts.sel(config="even"))[:1]
    assert row == pytest.approx(0.5)
    ledger_table.save(ledger_table.ledgers(found), tmp_path / "ledger.csv")
    with (tmp_path / "ledger.csv").open() as file:
        budgets = {row["budget"] for row in csv.DictReader(file)}
    assert len(budgets) == 2 * K + 1


def test_search_varies_numbers_of_a_budget_law():
    base = config(Uniform(total_epsilon=2.0, horizon=4.0, law=LogNormalBudgets(sigma=1.0)))
    path, axis = tuning.axis_of("privacy.budget.law.sigma=0..2", base)
    assert path == "privacy.budget.law.sigma"
    assert axis == FloatDistribution(0.0, 2.0)
    with pytest.raises(ConfigError, match="values does not support ranges"):
        tuning.axis_of("privacy.budget.law.values=1..2", config(Uniform(law=Tiers())))
