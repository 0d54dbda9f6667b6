"""The privacy ledger: totals against dp-accounting, units, warnings, exhausted budgets, report."""

import csv
import functools
import io
import math
import sys

import jax
import numpy as np
import pytest
from rich.console import Console

from pause_jax import ConfigError, Learning, SimConfig, policies, presets, simulate, sweep
from pause_jax.analysis import ledger_table
from pause_jax.analysis.ledger import SIZES, _composed, ledger, total_epsilon
from pause_jax.learning import Dataset, FlaxModel, Linear
from pause_jax.learning.modules import ConvolutionalNetwork
from pause_jax.policies import FedCs, PowerOfChoice
from pause_jax.privacy import (
    Budgeted,
    Geometric,
    L1Laplace,
    NoPrivacy,
    PerClient,
    PerCoordinateLaplace,
    Table,
    Uniform,
)
from pause_jax.privacy.mechanisms import GaussianLoss

pytestmark = pytest.mark.slow

dp = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld")
DELTA = 1e-5
KEY = jax.random.key(0)


class Pure(Budgeted):
    """A pure mechanism that does not say how its releases compose."""


class Approximate(Pure):
    """The same with a delta."""

    delta = 1e-3


class Gaussian(Budgeted):
    """A Gaussian mechanism as far as the ledger looks at it."""

    @property
    def delta(self):
        return 1e-6

    def privacy_loss(self, epsilon):
        return GaussianLoss(5.0 / epsilon)


def geometric(total, kind=PerCoordinateLaplace):
    return kind(budget=Geometric(total_epsilon=float(total)))


def composed(events, interval=1e-3):
    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    return accountant.compose(dp.ComposedDpEvent(events)).get_epsilon(DELTA)


# ---------------------------------------------------------------- totals


@pytest.mark.parametrize(("total", "basic", "tight"), [(10, 9.09, 5.75), (200, 181.9, 165.9)])
@pytest.mark.parametrize("kind", [PerCoordinateLaplace, L1Laplace])
def test_total_of_the_papers_schedule_over_60_participations(kind, total, basic, tight):
    assert total_epsilon(geometric(total, kind), 60, DELTA) == pytest.approx(tight, rel=5e-3)
    assert total_epsilon(geometric(total, kind), 60, 0.0) == pytest.approx(basic, rel=5e-3)


def test_laplace_total_equals_dp_accounting_events():
    mechanism = PerCoordinateLaplace(budget=Table(total_epsilon=3.0, shares=(0.3, 0.3, 0.2, 0.1)))
    events = [dp.LaplaceDpEvent(1 / epsilon) for epsilon in (0.9, 0.9, 0.6, 0.3)]
    for n in (2, 4):
        theirs = composed(events[:n])
        assert total_epsilon(mechanism, n, DELTA) == pytest.approx(theirs, rel=1e-4)


def test_gaussian_total_equals_dp_accounting_events():
    mechanism = geometric(10, Gaussian)
    epsilon = np.asarray(mechanism.budget.epsilon(np.arange(1, 9)))
    theirs = composed([dp.GaussianDpEvent(5.0 / e) for e in epsilon.tolist()])
    ours = total_epsilon(mechanism, 8, DELTA)
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours <= theirs  # theirs is an upper estimate, ours exact
    assert math.isinf(total_epsilon(mechanism, 8, 0.0)), "no pure guarantee"


def test_randomised_response_bounds_every_pure_mechanism():
    mechanism = Pure(budget=Uniform(total_epsilon=2.0, horizon=4.0))
    # (epsilon, delta) of n binary randomised responses, by hand (Kairouz et al. 2015, Theorem 3.3).
    n, e = 4, 0.5
    truth = total_epsilon(mechanism, n, DELTA)

    def delta(epsilon):
        return sum(
            math.comb(n, k) * max(math.exp((n - k) * e) - math.exp(epsilon + k * e), 0)
            for k in range(n + 1)
        ) / (1 + math.exp(e)) ** n  # fmt: skip

    assert delta(truth) == pytest.approx(DELTA, rel=1e-6)
    # It is the worst of all pure mechanisms.
    laplace = total_epsilon(PerCoordinateLaplace(budget=mechanism.budget), n, DELTA)
    assert laplace < truth
    # With a delta of its own, the same at 1 - (1 - DELTA) (1 - its delta)^n.
    approximate = Approximate(budget=mechanism.budget)
    whole = 1 - (1 - DELTA) * (1 - approximate.delta) ** n
    assert total_epsilon(approximate, n, whole) == pytest.approx(truth, rel=1e-4)
    assert math.isinf(total_epsilon(approximate, n, 0.0)), "no pure guarantee"
    assert math.isinf(total_epsilon(approximate, n, 3 * approximate.delta)), "less than four have"


def test_distance_over_many_coordinates_composes_no_worse_than_over_one():
    """So l1_vector counts as a Laplace mechanism of one number."""
    laplace = pld.privacy_loss_distribution.from_laplace_mechanism
    spread = [laplace(1 / epsilon) for epsilon in (1.2, 0.5, 0.2, 0.1)]
    many = functools.reduce(lambda a, b: a.compose(b), spread)
    for epsilon in np.linspace(0, 1.99, 20):
        one = laplace(1 / 2.0).get_delta_for_epsilon(epsilon)
        assert many.get_delta_for_epsilon(epsilon) <= one + 1e-9


@pytest.mark.parametrize("kind", [PerCoordinateLaplace, Pure, Gaussian])
def test_totals_increase_with_n_and_decrease_with_delta(kind):
    mechanism = kind(budget=Geometric(total_epsilon=8.0))
    totals = [total_epsilon(mechanism, n, DELTA) for n in (0, 1, 2, 20, 60)]
    assert totals[0] == 0
    assert (np.diff(totals) > 0).all()
    if kind is not Gaussian:
        for n, total in zip((1, 2, 20, 60), totals[1:], strict=True):
            assert total <= total_epsilon(mechanism, n, 0.0)
        assert totals[-1] < total_epsilon(mechanism, 60, 0.0)
    by_delta = [total_epsilon(mechanism, 20, delta) for delta in (1e-9, 1e-7, 1e-5, 1e-3, 0.1)]
    assert (np.diff(by_delta) < 0).all()


@pytest.mark.parametrize(("total", "exact"), [(800.0, False), (1500.0, True), (1e6, True)])
@pytest.mark.parametrize("kind", [PerCoordinateLaplace, L1Laplace, Pure])
def test_total_of_huge_epsilons_is_close_to_the_sum(kind, total, exact):
    mechanism = kind(budget=Table(total_epsilon=total, shares=(0.5, 0.25)))
    found = total_epsilon(mechanism, 5, DELTA)
    assert 0.75 * total - 1 < found <= 0.75 * total
    assert found == 0.75 * total or not exact


def test_total_is_infinite_without_privacy_and_rejects_invalid_delta():
    assert total_epsilon(NoPrivacy(), 0, DELTA) == 0
    assert math.isinf(total_epsilon(NoPrivacy(), 1, DELTA))
    for delta in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match="delta"):
            total_epsilon(geometric(1), 3, delta)


# ---------------------------------------------------------------- ledger


def images(side, count=40):
    shape = side, side
    return Dataset.of(
        x=np.zeros((count, *shape), np.uint8),
        y=np.arange(count, dtype=np.int32) % 10,
        x_test=np.zeros((4, *shape), np.uint8),
        y_test=np.arange(4, dtype=np.int32),
        num_classes=10,
    )


def played(config, counts, data=None):
    """A result with these participation counts, without the run: shapes are real, all else 0."""
    shapes = jax.eval_shape(lambda key: simulate(config, key, data), KEY)
    result = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    spent = np.asarray(config.privacy.budget.spent(np.asarray(counts)))
    return recorded(result.replace(config=config), counts=np.asarray(counts), spent=spent)


def recorded(result, **values):
    return result.replace(values={**result.values, **values})


def text_of(books):
    file = io.StringIO()
    console = Console(file=file, width=200)
    console.print(ledger_table.table(books))
    for note in ledger_table.notes(books):
        console.print(note, markup=False)
    return file.getvalue()


def digits(policy="random", **changes):
    """Of a small model and without the genie: of no interest to a ledger, and dear to trace."""
    config = presets.digits_small(policy).replace(track_regret=False, num_rounds=2)
    return config.override({"learning.model": Linear()}).replace(**changes)


def test_whole_updates_spend_25818_times_the_budget_in_the_papers_setup():
    config = presets.mnist_small("random").replace(num_rounds=2, track_regret=False)
    book = ledger(played(config, [0] * 28 + [60, 300], images(28, 2000)))
    assert book.num_parameters == 25_818
    assert (book.unit, book.mechanism) == ("coordinate", "per_coordinate")
    assert book.spent.max() <= 200
    np.testing.assert_allclose(book.whole_update, 25_818 * book.spent, rtol=1e-6)
    np.testing.assert_allclose(book.spent[-2:], [181.9, 200.0], rtol=1e-3)
    assert book.tight == pytest.approx(170.4, rel=1e-3)
    assert book.basic == book.spent.max()
    assert book.unnoised == (SIZES,)
    assert book.warning == ""
    text = text_of({"random": book})
    assert "5,163,5" in text
    assert "(!)" not in text
    assert "Nothing is sent without noise in any config" in text


def test_update_epsilon_is_not_multiplied_by_the_dimension():
    config = digits(privacy=geometric(10, L1Laplace))
    book = ledger(played(config, [60] * 30))
    assert book.unit == "update"
    np.testing.assert_array_equal(book.whole_update, book.spent)
    assert book.tight == pytest.approx(5.75, rel=5e-3)
    assert not book.exhausted.any()


def test_tight_at_most_assumes_participation_in_every_round():
    config = digits(num_rounds=60, eval_every=60)
    book = ledger(played(config, [3] * 30))
    assert book.tight == total_epsilon(config.privacy, 3, DELTA) < 30
    assert book.tight_at_most == total_epsilon(config.privacy, 60, DELTA)
    assert book.tight_at_most == pytest.approx(165.9, rel=5e-3)
    (row,) = ledger_table.rows({"random": book})
    figures = dict(zip(ledger_table.HEADINGS, row, strict=True))
    assert figures["eps/unit\nPLD"] == f"{book.tight:.4g}"
    assert figures["PLD,\nat most"] == "165.9"
    assert math.isnan(ledger(played(BANDIT, [1] * 6)).tight_at_most), "nothing is trained"


def test_tight_is_the_largest_total_not_that_of_the_largest_spender():
    """Client 1 spent most, in 60 small releases; client 2 a little less, in four large ones."""
    budget = Geometric(total_epsilon=10.0, decay=0.1, law=PerClient(values=(0.1, 1.0, 3.0)))
    config = digits(num_clients=3, num_selected=2, num_rounds=60, eval_every=60)
    config = config.replace(privacy=PerCoordinateLaplace(budget=budget))
    counts = np.asarray([40, 60, 4])
    result = played(config, counts)
    totals = np.asarray([1.0, 10.0, 30.0], np.float32)
    spent = totals * -np.expm1(-0.1 * counts)
    assert spent[1] > spent[2]
    book = ledger(recorded(result, spent=spent, budget=totals))
    alike = [config.privacy.replace(budget=Geometric(total_epsilon=t, decay=0.1)) for t in totals]
    assert book.tight == pytest.approx(total_epsilon(alike[2], 4, DELTA), rel=1e-4)
    assert book.tight > total_epsilon(alike[1], 60, DELTA)
    assert book.tight_at_most == pytest.approx(total_epsilon(alike[2], 60, DELTA), rel=1e-4)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_batch_statistics_void_the_guarantee(norm):
    # One hidden layer: what Cnn3 sends un-noised is tested where it is simulated.
    network = FlaxModel.of(
        ConvolutionalNetwork, widths=(), pooled=(), hidden=(8,), norm=norm, convolution="auto",
        num_outputs=10,
    )  # fmt: skip
    config = SimConfig(
        num_clients=2, num_selected=1, num_rounds=1, track_regret=False,
        policy=policies.named("random"), learning=Learning(model=network, max_steps=1),
    )  # fmt: skip
    book = ledger(played(config, [1, 0], images(4)))
    text = text_of({"mine": book})
    assert ("clear/norm_0/scale" in book.unnoised) == (norm == "batch")
    assert book.unnoised[-1] == SIZES
    assert bool(book.warning) == (norm == "batch")
    assert ("NO GUARANTEE" in text) == ("(!)" in text) == (norm == "batch")
    assert ("batch_stats/norm_0/statistics/var" in text) == (norm == "batch")


def test_losses_void_the_guarantee_and_count_as_releases():
    config = digits(PowerOfChoice())
    result = recorded(played(config, [1] * 30), queried=np.full(30, 4))
    book = ledger(result)
    assert book.unnoised == ("the loss of each queried client", SIZES)
    assert "the loss of each queried client" in book.warning
    assert (book.participations == 1).all()
    assert (book.releases == 5).all()


def test_resource_report_is_not_a_release():
    config = digits(FedCs())
    book = ledger(recorded(played(config, [1] * 30), queried=np.full(30, 4)))
    assert (book.releases == 1).all()


def test_sum_of_gaussian_releases_is_reported_with_its_delta():
    config = digits(privacy=geometric(10, L1Laplace))
    result = played(config, [0, 1, *[2] * 27, 3])
    book = ledger(result.replace(config=config.replace(privacy=geometric(10, Gaussian))))
    assert book.basic_delta == pytest.approx(3e-6)
    assert book.tight == total_epsilon(geometric(10, Gaussian), 3, DELTA)
    assert "at delta 3e-06" in text_of({"mine": book})


def test_participation_after_the_budget_is_spent_releases_nothing():
    budget = Uniform(total_epsilon=6.0, horizon=2.0)
    config = BANDIT.replace(when_spent="drop", privacy=L1Laplace(budget=budget))
    result, gaussian = played(config, [0, 1, 2, 3, 4, 5]), Gaussian(budget=budget)
    book = ledger(result.replace(config=config.replace(privacy=gaussian)))
    assert book.releases.tolist() == [0, 1, 2, 2, 2, 2]
    assert book.basic_delta == pytest.approx(2e-6)
    assert book.tight == total_epsilon(gaussian, 2, DELTA)


def test_updates_without_noise_are_named():
    config = digits(privacy=NoPrivacy())
    book = ledger(played(config, [0] * 29 + [2]))
    assert book.unnoised == ("updates", SIZES)
    assert "updates" in book.warning
    assert book.whole_update.tolist() == [0] * 29 + [math.inf]
    assert math.isinf(book.tight)
    assert "no limit" in text_of({"random": book})


BANDIT = SimConfig(
    num_clients=6, num_selected=2, num_rounds=7, track_regret=False,
    policy=policies.named("random"), learning=None,
    privacy=PerCoordinateLaplace(budget=Uniform(total_epsilon=6.0, horizon=3.0)),
)  # fmt: skip
SHORT = BANDIT.replace(
    num_clients=5,
    num_rounds=4,
    privacy=L1Laplace(budget=Table(total_epsilon=4.0, shares=(0.5, 0.25))),
)


@functools.cache
def swept():
    configs = {"uniform": BANDIT, "table": SHORT}
    return sweep(configs, jax.random.split(KEY, 3), progress=False)


@pytest.mark.parametrize(("name", "horizon", "most"), [("uniform", 3, 6.0), ("table", 2, 3.0)])
def test_spent_clients_stop_and_others_continue(name, horizon, most):
    row = swept().sel(config=name)
    book = ledger(row)
    num_clients = {"uniform": 6, "table": 5}[name]
    assert book.participations.shape == (3, num_clients), "no clients that fill a gap"
    np.testing.assert_array_equal(book.exhausted, book.participations == horizon)
    assert 0 < book.exhausted.sum() < book.exhausted.size
    assert book.participations.max() == horizon
    np.testing.assert_allclose(book.spent[book.exhausted], most, rtol=1e-6)
    assert (book.spent[~book.exhausted] < most).all()
    assert book.basic == pytest.approx(most)
    went_on = 0
    for clients, last in zip(row.clients.values.astype(int), book.last_release, strict=True):
        for client in range(num_clients):
            rounds = np.flatnonzero((clients == client).any(axis=1))
            assert len(rounds) <= horizon
            assert last[client] == (rounds[-1] + 1 if len(rounds) == horizon else 0)
            if len(rounds) == horizon:
                later = clients[rounds[-1] + 1 :]
                went_on += int((later >= 0).any())
    assert went_on > 0, "somebody was spent while others still took part"
    assert np.isnan(book.whole_update).all(), "nothing is trained, so there is no update"
    assert f"{book.exhausted.sum()} of {book.exhausted.size} clients" in text_of({name: book})


def test_sweep_row_and_result_have_the_same_ledger():
    one = ledger(simulate(BANDIT, jax.random.split(KEY, 3)[1]))
    row = ledger(swept().sel(config="uniform").isel(seed=1))
    for ours, theirs in zip(one, row, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_ledger_file_has_one_row_per_seed_and_client(tmp_path):
    books = ledger_table.ledgers(swept())
    ledger_table.save(books, tmp_path / "ledger.csv")
    with (tmp_path / "ledger.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(book.participations.size for book in books.values())
    places = set()
    for line in lines:
        where = int(line["seed"]), int(line["client"])
        places.add((line["policy"], *where))
        book = books[line["policy"]]
        assert int(line["participations"]) == book.participations[where]
        assert float(line["spent"]) == pytest.approx(book.spent[where], rel=1e-6)
    assert len(places) == len(lines)


def test_ledger_rejects_several_configs_and_batches():
    with pytest.raises(ConfigError, match="must be a single config"):
        ledger(swept())
    one = played(BANDIT, [1] * 6)
    batch = jax.tree.map(lambda x: np.stack([x, x]), one)
    with pytest.raises(ConfigError, match="must be a single run"):
        ledger(batch)


def test_ledger_rejects_run_without_required_quantities():
    run = jax.eval_shape(lambda key: simulate(BANDIT, key, record=("counts", "clients")), KEY)
    with pytest.raises(ConfigError, match=r"run has no queried, spent: .* Add them to `record`"):
        ledger(run)


# ---------------------------------------------------------------- report


def test_table_has_a_hint_without_dp_accounting(monkeypatch):
    _composed.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    books = ledger_table.ledgers(swept())
    assert all(math.isnan(book.tight) for book in books.values())
    assert books["uniform"].basic == 6.0
    assert "pip install 'pause_jax[accounting]'" in text_of(books)
    with pytest.raises(ModuleNotFoundError, match="accounting"):
        total_epsilon(BANDIT.privacy, 2, DELTA)
    assert total_epsilon(BANDIT.privacy, 2, 0.0) == 4.0
