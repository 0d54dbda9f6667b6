import contextlib
import functools
import itertools
import logging

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pause_jax import Learning, Result, SimConfig, policies, simulate, stack
from pause_jax.config import canonical
from pause_jax.learning import Cnn3, Dataset, Digits, Dirichlet, Linear, LinearRegression
from pause_jax.learning import data as data_module
from pause_jax.learning.models import Model
from pause_jax.policies import NAMED
from pause_jax.privacy import (
    Budget,
    Geometric,
    L1Laplace,
    NoPrivacy,
    PerCoordinateLaplace,
    Power,
    Table,
    Uniform,
)
from pause_jax.result import finish
from pause_jax.rounds import Streams, advance, init
from pause_jax.simulate import prepare

KEY = jax.random.key(0)
# Every registered policy, and each search once; all names go through the contract in test_policies.
POLICIES = [*(policy.name for policy in policies.POLICIES), "pause_exhaustive", "sa_pause"]
# Draws with repetition: a client that is drawn twice leaves a slot empty.
WITH_REPETITION = {"md_sampling", "clustered_size", "clustered_similarity"}
# Its candidates are few and it keeps a deadline.
MAY_LEAVE_EMPTY = {"fedcs"}
K, M, T = 6, 4, 20

# Without learning; one compilation a policy, shared by all availabilities and horizons.
BANDIT = SimConfig(
    num_clients=K,
    num_selected=M,
    num_rounds=T,
    privacy=PerCoordinateLaplace(budget=Uniform(total_epsilon=7.0, horizon=50.0)),
    learning=None,
)
# With learning: unequal clients, some with more data than they may use, 8 rounds of which 3, 6 and
# the last are evaluated.
LEARN = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=8,
    eval_every=3,
    privacy=PerCoordinateLaplace(sensitivity=0.01),
    learning=Learning(
        data=Digits(num_train=240), partition=Dirichlet(), model=Linear(), max_steps=3
    ),
)


@functools.cache
def bandit_run(policy: str, availability: float = 1.0, horizon: float = 50.0) -> Result:
    config = BANDIT.replace(policy=NAMED[policy], availability=availability)
    return simulate(config.override({"privacy.budget.horizon": horizon}), KEY)


@functools.cache
def learn_run(seed: int = 0, **changes: float) -> Result:
    """LEARN with some traced numbers changed: all runs share one compilation."""
    changes = {path.replace("__", "."): value for path, value in changes.items()}
    return simulate(LEARN.override(changes), jax.random.key(seed))


def world_of(config: SimConfig, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """(latencies, whether present) of every client in every round, [T, K]."""
    world = Streams(*jax.random.split(key, len(Streams._fields))).world
    latency, present = [], []
    for round in range(1, config.num_rounds + 1):
        latency.append(
            config.latency.sample(jax.random.fold_in(world, 2 * round), config.num_clients)
        )
        present.append(
            jax.random.bernoulli(
                jax.random.fold_in(world, 2 * round + 1),
                config.availability,
                (config.num_clients,),
            )
        )
    return np.asarray(latency), np.asarray(present)


def chosen_sets(result: Result) -> list[list[int]]:
    return [[int(k) for k in row if k >= 0] for row in np.asarray(result.clients)]


def assert_same_bits(one, other) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def assert_close(one, other, *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Whole numbers equal, floats close, NaN only where the other has it too."""

    def compare(path, a, b) -> None:
        name = jax.tree_util.keystr(path)
        if jnp.issubdtype(jnp.asarray(a).dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)

    jax.tree_util.tree_map_with_path(compare, one, other)


# --- reproducibility, batching, compilation


@pytest.mark.parametrize("config", [BANDIT, LEARN], ids=["bandit", "learning"])
def test_the_same_key_gives_the_same_bits(config):
    assert_same_bits(simulate(config, KEY), simulate(config, jax.random.key(0)))


def test_another_key_gives_another_run():
    one, other = learn_run(0), learn_run(1)
    for name in ("clients", "latency", "train_loss", "test_loss", "data_size"):
        assert not np.array_equal(getattr(one, name), getattr(other, name)), name


def test_vmap_over_keys_gives_the_single_runs():
    keys = jnp.stack([jax.random.key(seed) for seed in range(3)])
    batched = jax.vmap(lambda key: simulate(LEARN, key))(keys)
    for seed in range(3):
        row = jax.tree.map(lambda leaf, i=seed: leaf[i], batched)
        single = learn_run(seed)
        np.testing.assert_array_equal(row.clients, single.clients)
        np.testing.assert_allclose(row.latency, single.latency, rtol=1e-6)
        np.testing.assert_array_equal(row.data_size, single.data_size)
        for name in ("train_loss", "test_loss", "test_accuracy", "variables", "regret", "spent"):
            assert_close(getattr(row, name), getattr(single, name))


def test_vmap_over_stacked_configs_gives_the_single_runs():
    configs = [
        BANDIT.override({"reward.alpha": 0.0, "reward.gamma": gamma}) for gamma in (0.0, 0.5, 50.0)
    ]
    batched = jax.vmap(lambda config: simulate(config, KEY))(stack(configs))
    for i, config in enumerate(configs):
        row = jax.tree.map(lambda leaf, i=i: leaf[i], batched)
        single = simulate(config, KEY)
        np.testing.assert_array_equal(row.clients, single.clients)
        np.testing.assert_allclose(row.latency, single.latency, rtol=1e-6)
        assert_close(row, single)
    assert not np.array_equal(batched.clients[0], batched.clients[2]), "gamma has no effect"


def test_advancing_in_pieces_gives_the_whole_run():
    config, data = prepare(LEARN)
    jit_advance = jax.jit(advance)
    state = jax.jit(init)(config, data, KEY)
    records = []
    for first in (1, 5):
        state, record = jit_advance(config, data, state, jnp.arange(first, first + 4))
        records.append(record)
    record = jax.tree.map(lambda *parts: jnp.concatenate(parts), *records)
    pieces, whole = finish(config, state, record), learn_run()
    np.testing.assert_array_equal(pieces.clients, whole.clients)
    np.testing.assert_allclose(pieces.latency, whole.latency, rtol=1e-6)
    assert_close(pieces, whole)


def test_without_jit_the_result_is_the_same():
    config = BANDIT.replace(num_clients=3, num_selected=2, num_rounds=2, track_regret=False)
    with jax.disable_jit():
        slow = simulate(config, KEY)
    assert_close(slow, simulate(config, KEY))


@contextlib.contextmanager
def compilations(caplog):
    """Collects one entry for each compilation."""
    found: list[str] = []
    caplog.clear()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        yield found
    found += [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]


def test_a_second_call_with_other_numbers_compiles_nothing(caplog):
    config = BANDIT.replace(num_clients=5, policy=NAMED["random"])
    with compilations(caplog) as first:
        simulate(config, KEY)
    assert first, "the count of compilations sees nothing"
    other_key = jax.random.key(1)
    others = config.override(
        {
            "reward.alpha": 3,
            "reward.gamma": np.float64(2.0),
            "latency.std": jnp.float32(0.01),
            "availability": 0.9,
            "privacy.budget.horizon": 40,
        }
    )
    with compilations(caplog) as second:
        simulate(config, other_key)
        simulate(others, KEY)
    assert second == []


def test_a_run_with_learning_compiles_once_for_all_numbers(caplog):
    learn_run()
    key = jax.random.key(9)
    with compilations(caplog) as again:
        changes = {"learning.learning_rate": 0.02, "learning.partition.concentration": 1.0}
        simulate(LEARN.override(changes), key)
    assert again == []


def test_simulating_inside_a_trace_leaves_the_data_set_usable():
    data_module._digits.cache_clear()
    try:
        jax.eval_shape(lambda key: simulate(LEARN, key), KEY)
        assert not isinstance(Digits().load().x_train, jax.core.Tracer)
    finally:
        data_module._digits.cache_clear()


# --- the world is the same for all policies


@pytest.mark.parametrize("availability", [1.0, 0.8])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_round_lasts_as_long_as_its_slowest_client_in_the_common_world(policy, availability):
    result = bandit_run(policy, availability)
    latency, _ = world_of(BANDIT.replace(availability=availability), KEY)
    expected = [max(latency[t, ks], default=0.0) for t, ks in enumerate(chosen_sets(result))]
    np.testing.assert_allclose(result.latency - result.query_seconds, expected, rtol=2e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_only_available_clients_are_chosen_and_as_many_as_fit(policy):
    result = bandit_run(policy, 0.8)
    _, present = world_of(BANDIT.replace(availability=0.8), KEY)
    assert 0.6 < present.mean() < 0.95
    for chosen, here in zip(chosen_sets(result), present, strict=True):
        assert set(chosen) <= set(np.flatnonzero(here))
        slots = min(result.clients.shape[1], here.sum())
        if policy in MAY_LEAVE_EMPTY:
            assert len(chosen) <= slots
        elif policy in WITH_REPETITION:
            assert min(slots, 1) <= len(chosen) <= slots
        else:
            assert len(chosen) == slots


def test_all_policies_start_from_the_same_partition_and_model():
    data = Digits().load()
    configs = [canonical(LEARN.replace(policy=NAMED[name])) for name in ("pause", "random", "all")]
    states = jax.jit(lambda key: [init(config, data, key) for config in configs])(KEY)
    for state in states[1:]:
        assert_same_bits(state.partition, states[0].partition)
        assert_same_bits(state.variables, states[0].variables)
        assert_same_bits(
            jax.random.key_data(state.keys.world), jax.random.key_data(states[0].keys.world)
        )


# --- bookkeeping


@pytest.mark.parametrize("availability", [1.0, 0.8, 0.05])
@pytest.mark.parametrize("policy", POLICIES)
def test_cohorts_are_distinct_and_counts_and_clock_follow_from_them(policy, availability):
    result = bandit_run(policy, availability)
    size = K if policy == "all" else M
    assert result.clients.shape == (T, size)
    assert result.clients.dtype == jnp.int32
    chosen = chosen_sets(result)
    assert all(len(set(row)) == len(row) for row in chosen)
    assert np.all((result.clients >= -1) & (result.clients < K))
    histogram = np.bincount([k for row in chosen for k in row], minlength=K)
    np.testing.assert_array_equal(result.counts, histogram)
    np.testing.assert_allclose(result.clock, np.cumsum(result.latency), rtol=1e-5)
    assert np.all(np.asarray(result.latency)[[bool(row) for row in chosen]] >= 0.05)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_hardly_anyone_available_slots_stay_empty_and_nothing_breaks(policy):
    result = bandit_run(policy, 0.05)
    chosen = chosen_sets(result)
    empty = np.asarray([not row for row in chosen])
    assert empty.any()
    assert not empty.all()
    assert np.all(np.asarray(result.clients)[empty] == -1)
    assert np.all(np.asarray(result.latency)[empty] == 0)
    assert np.all(np.diff(result.clock)[empty[1:]] == 0)
    assert np.all(np.isfinite(result.spent))
    assert np.all(np.isfinite(result.max_spent))
    for name in ("reward", "genie_reward", "regret"):
        series = np.asarray(getattr(result, name))
        np.testing.assert_array_equal(np.isnan(series), empty, err_msg=name)
    # With fewer than m available there is no choice to regret.
    np.testing.assert_allclose(np.asarray(result.regret)[~empty], 0, atol=1e-5)


def test_a_model_that_nobody_trains_stays_as_it_was():
    result = learn_run(availability=1e-6)
    assert np.all(result.clients == -1)
    config, data = prepare(LEARN)
    start = jax.jit(init)(config, data, KEY)
    assert_same_bits(result.variables, start.variables)
    assert np.all(np.asarray(result.test_loss) == result.test_loss[0])


def test_train_loss_of_a_round_without_clients_is_not_a_number():
    result = learn_run(availability=0.2)
    empty = np.all(np.asarray(result.clients) == -1, axis=1)
    assert empty.any()
    assert not empty.all()
    assert result.first_nonfinite_round == 0
    np.testing.assert_array_equal(np.isnan(result.train_loss), empty)


def test_evaluated_rounds_include_the_last():
    result = learn_run()
    np.testing.assert_array_equal(result.eval_rounds, [3, 6, 8])
    assert result.test_loss.shape == result.test_accuracy.shape == (3,)


def test_a_healthy_run_has_no_nan():
    result = learn_run()
    assert result.first_nonfinite_round == 0
    leaves, _ = jax.tree_util.tree_flatten_with_path(result)
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        if name != ".acceptance_rate":
            assert not np.any(np.isnan(leaf)), name
    assert np.all((result.test_accuracy >= 0) & (result.test_accuracy <= 1))
    assert result.data_size.sum() == 240


def test_the_data_argument_replaces_the_configs_data_set():
    digits = Digits().load()
    mislabelled = digits.replace(y_test=(digits.y_test + 1) % 10)
    result = simulate(LEARN, KEY, mislabelled)
    usual = learn_run()
    np.testing.assert_array_equal(result.train_loss, usual.train_loss)
    assert not np.any(np.asarray(result.test_loss) == usual.test_loss)


@pytest.mark.parametrize(("num_clients", "num_selected", "num_rounds"), [(1, 1, 1), (3, 3, 2)])
def test_smallest_networks_run(num_clients, num_selected, num_rounds):
    result = simulate(
        BANDIT.replace(
            num_clients=num_clients, num_selected=num_selected, num_rounds=num_rounds, eval_every=50
        ),
        KEY,
    )
    np.testing.assert_array_equal(result.counts, num_rounds)
    np.testing.assert_array_equal(result.eval_rounds, [num_rounds])
    assert np.all(np.asarray(result.regret) == 0)


# --- budgets

# Schedule, and the share of the budget spent after n participations in plain NumPy.
SCHEDULES: dict[str, tuple[Budget, object]] = {
    "geometric": (Geometric(total_epsilon=7.0, decay=0.3), lambda n: 1 - np.exp(-0.3 * n)),
    "uniform": (Uniform(total_epsilon=7.0, horizon=3.0), lambda n: np.minimum(n / 3, 1)),
    "power": (
        Power(total_epsilon=7.0, exponent=1.5),
        lambda n: 1 - scipy.special.zeta(1.5, n + 1) / scipy.special.zeta(1.5),
    ),
    "table": (
        Table(total_epsilon=7.0, shares=(0.5, 0.25, 0.125)),
        lambda n: np.asarray([0, 0.5, 0.75, 0.875])[n],
    ),
}
EXHAUSTIBLE = ("uniform", "table")  # after three participations
# Every policy with a schedule that runs out, and every schedule with the policy that hammers the
# same clients.
BUDGET_RUNS = [(policy, "uniform") for policy in POLICIES]
BUDGET_RUNS += [("fastest", schedule) for schedule in SCHEDULES if schedule != "uniform"]


@functools.cache
def budget_run(policy: str, schedule: str) -> Result:
    if schedule == "uniform":
        return bandit_run(policy, horizon=3.0)
    config = BANDIT.override({"privacy.budget": SCHEDULES[schedule][0], "track_regret": False})
    return simulate(config.replace(policy=NAMED[policy]), KEY)


@pytest.mark.parametrize(("policy", "schedule"), BUDGET_RUNS)
def test_spent_budget_follows_the_schedule_and_never_exceeds_the_total(policy, schedule):
    result = budget_run(policy, schedule)
    budget, share = SCHEDULES[schedule]
    counts = np.asarray(result.counts)
    assert np.all(np.asarray(result.spent) <= 7.0)
    np.testing.assert_allclose(result.spent, 7.0 * share(counts), rtol=1e-4)
    each = np.asarray(budget.epsilon(jnp.arange(1, T + 1)), np.float64)
    assert np.all(each >= 0)
    np.testing.assert_allclose(
        result.spent, [each[:n].sum() for n in counts], rtol=1e-4, err_msg="sum of the epsilons"
    )
    max_spent = np.asarray(result.max_spent)
    assert np.all(np.diff(max_spent) >= 0)
    np.testing.assert_array_equal(max_spent[-1], np.max(result.spent))


@pytest.mark.parametrize(
    ("policy", "schedule"), [pair for pair in BUDGET_RUNS if pair[1] in EXHAUSTIBLE]
)
def test_the_run_goes_on_when_all_budgets_are_exhausted(policy, schedule):
    result = budget_run(policy, schedule)
    assert np.all(np.asarray(result.counts) <= 3)
    np.testing.assert_array_equal(result.counts, 3)
    # The rounds in which someone still had a budget come first; then nothing happens any more.
    played = np.any(np.asarray(result.clients) >= 0, axis=1)
    last = int(np.sum(played))
    assert played[:last].all()
    assert 3 <= last < T
    assert np.all(np.asarray(result.clock)[last:] == result.clock[last - 1])
    assert np.all(np.isnan(np.asarray(result.reward)[last:]))


@pytest.mark.parametrize(
    ("mechanism", "unit"),
    [(NoPrivacy(), "none"), (PerCoordinateLaplace(), "coordinate"), (L1Laplace(), "update")],
)
def test_the_result_says_what_an_epsilon_protects(mechanism, unit):
    shapes = jax.eval_shape(lambda key: simulate(BANDIT.replace(privacy=mechanism), key), KEY)
    assert shapes.epsilon_unit == unit


# --- choices and rewards


@pytest.mark.parametrize(
    ("policy", "num_clients", "num_selected"),
    [("pause_exhaustive", 12, 4), ("bsfl", 12, 4), ("genie", 12, 4)],
)
def test_the_first_rounds_choose_every_client_exactly_once(policy, num_clients, num_selected):
    # alpha = 100 outweighs any difference in speed in networks this small, so for the genie too.
    config = SimConfig(
        num_clients=num_clients,
        num_selected=num_selected,
        num_rounds=num_clients // num_selected,
        track_regret=False,
        policy=NAMED[policy],
        learning=None,
    )
    result = jax.vmap(lambda key: simulate(config, key))(jax.random.split(KEY, 40))
    assert np.all(np.asarray(result.counts) == 1)
    if policy != "genie":
        first = {tuple(row) for row in np.asarray(result.clients[:, 0])}
        assert len(first) > 10, "ties are not broken at random"


def test_the_first_rounds_choose_every_client_exactly_once_in_a_larger_network():
    config = SimConfig(
        num_clients=60, num_selected=5, num_rounds=12, track_regret=False, learning=None
    )
    result = jax.vmap(lambda key: simulate(config, key))(jax.random.split(KEY, 30))
    assert np.all(np.asarray(result.counts) == 1)


@pytest.mark.parametrize("availability", [1.0, 0.8])
@pytest.mark.parametrize("policy", ["random", "pause", "fastest", "genie"])
def test_reward_and_regret_are_those_of_a_brute_force_replay(policy, availability):
    result = bandit_run(policy, availability)
    config = BANDIT.replace(availability=availability)
    latency, present = world_of(config, KEY)
    mu = np.asarray(config.latency.expected_speed(K), np.float64)
    alpha, beta, gamma = config.reward.alpha, config.reward.beta, config.reward.gamma
    counts = np.zeros(K)
    for t, chosen in enumerate(chosen_sets(result)):
        x = M / K - counts / (t + 1)
        g = np.sign(x) * np.abs(x) ** beta
        p = 1 - counts / config.privacy.budget.horizon

        def value(speed, members, g=g, p=p):
            ks = list(members)
            return speed[ks].min() + alpha / M * g[ks].sum() + gamma / M * p[ks].sum()

        here = np.flatnonzero(present[t])
        cohorts = list(itertools.combinations(here, min(M, len(here))))
        genie = max(cohorts, key=lambda members: value(mu, members))
        speed = config.latency.min_latency / latency[t].astype(np.float64)
        np.testing.assert_allclose(result.reward[t], value(speed, chosen), rtol=1e-4)
        np.testing.assert_allclose(result.genie_reward[t], value(speed, genie), rtol=1e-4)
        regret = value(mu, genie) - value(mu, chosen)
        np.testing.assert_allclose(result.regret[t], regret, rtol=1e-3, atol=2e-5)
        counts[chosen] += 1


@pytest.mark.parametrize("policy", POLICIES)
def test_regret_is_never_negative_and_the_genie_has_none(policy):
    for availability in (1.0, 0.8):
        regret = np.asarray(bandit_run(policy, availability).regret)
        assert np.all(regret >= 0)
        if policy == "genie":
            np.testing.assert_allclose(regret, 0, atol=1e-5)


def test_pause_regrets_less_than_random_choice():
    config = SimConfig(num_clients=20, num_selected=5, num_rounds=150, learning=None)
    keys = jax.random.split(KEY, 6)

    def total_regret(policy: str) -> np.ndarray:
        run = jax.vmap(lambda key: simulate(config.replace(policy=NAMED[policy]), key).regret)
        return np.asarray(run(keys)).sum(axis=1)

    assert np.all(total_regret("pause") < 0.5 * total_regret("random"))


def test_without_tracking_the_regret_is_not_computed():
    result = budget_run("fastest", "geometric")
    assert np.all(np.isnan(result.regret))
    assert np.all(np.isfinite(result.reward))


# --- learning


def test_a_learning_rate_that_blows_up_the_model_is_reported():
    result = learn_run(learning__learning_rate=1e38)
    assert result.first_nonfinite_round == 1
    assert np.all(np.isnan(result.test_accuracy))


def test_the_first_round_that_breaks_the_model_is_found():
    # Clients release twice from round 4 on (three rounds visit everyone), and the second time the
    # budget is e^-40 of the first: noise beyond float32.
    result = learn_run(privacy__budget__decay=40.0, privacy__sensitivity=1e23)
    np.testing.assert_array_equal(np.sort(np.ravel(result.clients[:3])), np.arange(6))
    assert result.first_nonfinite_round == 4
    np.testing.assert_array_equal(np.isnan(result.test_accuracy), [False, True, True])


def test_regression_without_privacy_learns_and_has_no_accuracy_and_infinite_epsilon():
    config = SimConfig(
        num_clients=4,
        num_selected=2,
        num_rounds=12,
        eval_every=4,
        track_regret=False,
        privacy=NoPrivacy(),
        learning=Learning(
            data=LinearRegression(num_samples=200),
            model=Linear(),
            optimizer="sgd",
            learning_rate=0.05,
        ),
    )
    result = simulate(config, KEY)
    assert result.epsilon_unit == "none"
    assert np.all(np.isposinf(result.max_spent))
    np.testing.assert_array_equal(np.isposinf(result.spent), result.counts > 0)
    assert np.all(np.isnan(result.test_accuracy))
    losses = np.asarray(result.test_loss)
    assert np.all(np.diff(losses) < 0)
    assert losses[-1] < 0.5 * losses[0]
    assert result.first_nonfinite_round == 0
    assert result.unnoised == ()


def test_optimizer_state_that_is_kept_matters_from_a_clients_second_round_on():
    # Hardly any clipping or noise, so that the local steps show.
    quiet = {"privacy.sensitivity": 2.0, "privacy.budget.total_epsilon": 1e9}
    config = LEARN.override(quiet)
    fresh = simulate(config, KEY)
    kept = simulate(config.override({"learning.keep_optimizer_state": True}), KEY)
    np.testing.assert_array_equal(fresh.clients, kept.clients)
    # Three rounds visit everyone for the first time, with the same start in both.
    np.testing.assert_array_equal(np.sort(np.ravel(fresh.clients[:3])), np.arange(6))
    np.testing.assert_allclose(kept.train_loss[:3], fresh.train_loss[:3], rtol=1e-4)
    assert np.all(np.abs(kept.train_loss[3:] - fresh.train_loss[3:]) > 1e-3)


class _Normed(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False, mask=None):
        x = x.reshape(x.shape[0], -1)
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")
        x = norm(x, mask=None if mask is None else mask[:, None])
        return nn.Dense(self.num_outputs)(x)


class BatchNormed(Model):
    """A small model with running statistics."""

    def module(self, num_outputs: int) -> nn.Module:
        return _Normed(num_outputs)


def one_client(model: Model) -> SimConfig:
    return SimConfig(
        num_clients=1,
        num_selected=1,
        num_rounds=1,
        track_regret=False,
        policy=NAMED["all"],
        privacy=PerCoordinateLaplace(sensitivity=1e6),
        learning=Learning(model=model, max_steps=1),
    )


def test_batch_statistics_leave_without_noise_and_the_result_says_so():
    digits = Digits().load()
    result = simulate(one_client(BatchNormed()), KEY)
    assert result.unnoised == ("batch_stats/norm/mean", "batch_stats/norm/var")
    # The noise on the parameters is enormous; none of it is on the statistics: they moved by a
    # tenth towards those of the one batch of 20 inputs.
    assert np.std(result.variables["params"]["Dense_0"]["kernel"]) > 1e3
    statistics = result.variables["batch_stats"]["norm"]
    inputs = np.asarray(digits.to_input(digits.x_train)).reshape(len(digits.x_train), -1)
    spread = inputs.std(axis=0) / np.sqrt(20)
    assert np.all(np.abs(statistics["mean"] - 0.1 * inputs.mean(axis=0)) <= 0.1 * 5 * spread + 1e-6)
    assert np.any(np.asarray(statistics["mean"]) != 0)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_cnn3_leaves_batch_statistics_unnoised_and_nothing_without_them(norm):
    data = Dataset(
        x_train=jnp.zeros((40, 32, 32, 3), jnp.uint8),
        y_train=jnp.arange(40, dtype=jnp.int32) % 10,
        x_test=jnp.zeros((4, 32, 32, 3), jnp.uint8),
        y_test=jnp.arange(4, dtype=jnp.int32),
    )
    config = one_client(Cnn3(norm=norm))
    shapes = jax.eval_shape(lambda key: simulate(config, key, data), KEY)
    statistics = [f"batch_stats/norm_{i}/{name}" for i in range(3) for name in ("mean", "var")]
    assert sorted(shapes.unnoised) == (statistics if norm == "batch" else [])
