"""The rows of a summary and of the ledger's table, against NumPy."""

import numpy as np
import pytest

from pause_jax.analysis import ledger_table
from pause_jax.analysis.ledger import Ledger
from pause_jax.analysis.summary import merits, notes, summary
from tests.support.results import made, with_client_accuracy


def test_row_has_the_metrics_of_its_config():
    result = made({"a": None, "b": None}, seeds=4)
    # Neither the first nor the last evaluation is the best one or the worst.
    order = [1, 3, 0, 2]
    result.test_accuracy[:] = result.test_accuracy.values[..., order]
    result.test_loss[:] = result.test_loss.values[..., order]
    result.test_accuracy[1, 2] = 0.1
    for i, row in enumerate(summary(result, 0.7)):
        accuracy, loss = result.test_accuracy.values[i], result.test_loss.values[i]
        clock, reached = result.eval_clock.values[i], (accuracy >= 0.7).any(axis=1)
        first = clock[np.arange(4), np.argmax(accuracy >= 0.7, axis=1)]
        expected = {
            "accuracy": accuracy[:, -1],
            "best_accuracy": accuracy.max(axis=1),
            "loss": loss[:, -1],
            "best_loss": loss.min(axis=1),
            "seconds_to_target": first[reached],
            "seconds": result.clock.values[i, :, -1],
            "max_spent": result.spent.values[i].max(axis=1),
            "regret": result.regret.values[i].sum(axis=1),
            "gigabytes": (result.downloaded + result.uploaded).values[i].sum(axis=1) / 1e9,
        }
        for name, values in expected.items():
            assert row[name] == pytest.approx(values.mean(), rel=1e-5), name
            error = values.std(ddof=1) / len(values) ** 0.5
            assert row[f"{name}_se"] == pytest.approx(error, rel=1e-4), name
        assert (row["config"], row["seeds"], row["reached"]) == ("ab"[i], 4, reached.sum())
        assert (row["rounds"], row["empty_rounds"], row["reward.gamma"]) == (80, 0, i / 2)
    assert reached.tolist() == [True, True, False, True]


def test_ledger_row_has_the_largest_values_over_seeds():
    counts = np.asarray([[1, 5, 2], [0, 3, 4]])
    book = Ledger(
        *("l1_laplace", "update", 10, 1e-5, counts, counts),
        *(np.full(counts.shape, 2.5), 0.25 * counts, 0.5 * counts, counts >= 4),
        *(np.where(counts >= 4, 9 * counts, 0), 2.5, 0.0, 1.5, 7.5, ()),
    )
    (row,) = ledger_table.rows({"mine": book})
    assert row == ("mine", "update", "1.25", "2.5", "1.5", "7.5", "5")
    words = "mine: 2 of 6 clients, over all seeds, spent their budget. Last releases:"
    notes = list(ledger_table.notes({"mine": book}))
    assert f"{words} rounds 36 to 45." in notes
    unknown = book._replace(last_release=0 * counts)
    assert f"{words} not recorded." in ledger_table.notes({"mine": unknown})
    # Without a guarantee for the whole message every epsilon of an update is marked.
    (row,) = ledger_table.rows({"mine": book._replace(unnoised=("losses",))})
    assert row[2:6] == ("1.25", "2.5 (!)", "1.5 (!)", "7.5 (!)")


def test_client_accuracy_adds_columns_worst_tenth_and_spread():
    plain = made({"a": None, "b": None}, seeds=2)
    assert "worst_tenth" not in summary(plain, 0.7)[0]
    result = with_client_accuracy(plain)
    result.client_accuracy[1, :, :, 2] = np.nan
    rows = summary(result, 0.7)
    assert [row["worst_tenth"] for row in rows] == pytest.approx([0.0, 0.1])
    spread = [np.std([0.5, 0.4, 0.3, 0.2, 0.1, 0.0]), np.std([0.6, 0.5, 0.3, 0.2, 0.1])]
    assert [row["spread"] for row in rows] == pytest.approx(spread)
    shown = merits(rows, 0.7)
    assert shown.headings[4:6] == ("worst tenth, %", "spread, %")
    cells = {row[0]: row[4:6] for row in shown.rows}
    assert cells == {"a": ("0.0±0.0", "17.1±0.0"), "b": ("10.0±0.0", "18.5±0.0")}
    assert "worst tenth: the worst clients' mean accuracy. spread: " in shown.caption
    result["query_seconds"] *= 0
    words = "b: no accuracy for clients with one sample (up to 1 per seed)."
    assert list(notes(result)) == [words]
    result.client_accuracy[1] = np.nan  # no finite model
    assert not list(notes(result))
    assert np.isnan(summary(result, 0.7)[1]["spread"])
