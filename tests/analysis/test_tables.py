"""The tables and files of a sweep, from rows and data made by hand."""

import collections
import csv
import io
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pause_jax import ConfigError, SimConfig, tuning
from pause_jax.analysis import ledger_table, summary
from pause_jax.analysis.ledger import Ledger
from pause_jax.analysis.table import label, make_table, number, word
from pause_jax.cli import result_folder, tune
from tests.support.command import run

NAN = math.nan


def printed(table, width):
    file = io.StringIO()
    console = Console(file=file, width=width)
    console.print(table)
    return file.getvalue()


def test_narrow_terminal_wraps_labels_but_not_numbers():
    columns = [label("policy"), word("unit"), number("spent\nin all"), number("rounds")]
    long = "a_name_that_a_user_made_as_long_as_they_liked"
    text = printed(make_table(columns, [(long, "update", "123456.7±89.0", "5")], title="t"), 52)
    for words in ("123456.7±89.0", "update", "in all", "rounds"):
        assert words in text
    assert long not in text
    body = text[text.rindex("──") :].splitlines()[1:]
    assert "".join(line.split()[0] for line in body if line.strip()) == long


def letters(text):
    """How often each character is in a text, but for blanks and rules."""
    return collections.Counter(c for c in text if not c.isspace() and c != "─")


def assert_whole(sheet, width):
    """That nothing of a table is cut at that width, be it a table or a list."""
    text = printed(sheet, width)
    assert max(map(len, text.splitlines())) <= width
    headings = [column.header for column in sheet.columns]
    others = [cell.plain for row in sheet.rows for cell in row]
    others += [sheet.title or "", sheet.caption or ""]
    as_table = letters("".join(headings + others))
    of_rows = [heading for row in sheet.rows for heading, cell in
               zip(headings[1:], row[1:], strict=True) if cell.plain]  # fmt: skip
    as_list = letters("".join(of_rows + others))
    assert letters(text) in (as_table, as_list)
    return text


WORDS = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=30)
TEXTS = st.lists(WORDS, max_size=4).map(" ".join)


@given(
    st.lists(st.tuples(WORDS.filter(bool), st.sampled_from((label, word, number, str))),
             min_size=2, max_size=7),
    st.data(),
    st.integers(40, 130),
)  # fmt: skip
def test_tables_are_never_truncated(columns, data, width):
    rows = data.draw(st.lists(st.lists(TEXTS, min_size=len(columns), max_size=len(columns)),
                              min_size=1, max_size=4))  # fmt: skip
    title, caption = data.draw(st.none() | TEXTS), data.draw(st.none() | TEXTS)
    sheet = make_table([make(text) for text, make in columns], rows, title=title, caption=caption)
    assert_whole(sheet, width)


def test_brackets_in_a_label_are_not_markup():
    assert "[red]x :smile:" in printed(make_table([label("a"), "b"], [("[red]x :smile:", "y")]), 80)


# As `pause-jax sweep` has them of a grid over two fields.
LABELS = [
    f"speed_weight = {weight}, total_epsilon = {epsilon}"
    for weight, epsilon in itertools.product((0.5, 1.0, 2.0, 4.0), (10.0, 100.0, 1000.0))
]
WIDTHS = pytest.mark.parametrize("width", [60, 80])


@WIDTHS
@pytest.mark.parametrize("accuracy", [0.912, NAN])
@pytest.mark.parametrize("units", [("coordinate",), ("coordinate", "update")])
def test_summary_with_long_labels_is_not_truncated(width, accuracy, units):
    rows = [
        row(name, reached=2, seconds=1234.5, unit=unit, accuracy=accuracy)
        for name, unit in zip(LABELS, itertools.cycle(units), strict=False)
    ]
    rows[3]["empty_rounds"] = 60
    text = assert_whole(summary.table(rows, 0.8), width)
    assert "60/60" in text


def book(unit, spent, unnoised=()):
    counts = np.asarray([3, 60])
    return Ledger(
        mechanism="x", unit=unit, num_parameters=25_818, delta=1e-5, participations=counts,
        releases=counts, budget=np.asarray([200.0, 200.0]), spent=np.asarray([1.0, spent]),
        whole_update=np.asarray([1.0, spent * 25_818]), exhausted=np.asarray([True, True]),
        last_release=np.asarray([7, 9]),
        basic=spent, basic_delta=0.0, tight=spent, tight_at_most=spent, unnoised=unnoised,
    )  # fmt: skip


def test_demo_ledger_fits_in_80_columns():
    books = {"pause": book("coordinate", 170.4), "all": book("coordinate", 200.0)}
    books["all, no privacy"] = book("none", math.inf, ("updates",))
    lines = printed(ledger_table.table(books), 80).splitlines()
    assert any(line.split()[:3] == ["pause", "coord", "170.4"] for line in lines)


def test_policy_named_all_is_quoted_in_noise_notes():
    books = {"all": book("update", 1.0), "random": book("update", 1.0, ("losses",))}
    assert "Nothing is sent without noise in 'all' (" in " ".join(ledger_table.notes(books))
    del books["random"]
    assert "Nothing is sent without noise in any config (" in " ".join(ledger_table.notes(books))


@WIDTHS
def test_tune_output_is_not_truncated_and_reports_overestimates(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    paths = ("policy.index.speed_weight", "privacy.budget.total_epsilon", "reward.gamma")
    scores = np.asarray([[4.0, 5.0], [7.0, 8.0], [NAN, NAN], [3.0, NAN]])
    table = tuning.summarise(scores, np.zeros((4, 2)), 1)
    table = pd.DataFrame(123.4, columns=paths, index=table.index).join(table)
    table = table.assign(searched=2.0, change=[-3.0, 0.0, NAN, NAN], change_error=0.5)
    found = tuning.Tuned(SimConfig(learning=None), table, table, 0)
    tune._print(found, tuning.objective_of("regret"))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    for words in ("weight", "epsilon", "initial", "searched", "4.5", "-3", "nan"):
        assert words in text


@WIDTHS
@pytest.mark.parametrize("command", ["policies", "latencies", "availability-traces", "datasets"])
def test_lists_keep_all_words_in_a_narrow_terminal(width, command, monkeypatch, capsys):
    def words(width):
        monkeypatch.setenv("COLUMNS", str(width))
        assert run(command) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width
        return set(text.split()) - {"─" * n for n in range(width)}

    assert words(1000) - words(width) <= {"name"}, "a list has no heading for its first column"


def test_policy_description_matches_its_index(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    assert run("policies") == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "pause_thompson" in x)
    assert "UCB on speed" not in line
    assert "index = thompson" in line


def row(policy, *, reached, seconds, unit="coordinate", accuracy=0.5, loss=NAN):
    merits = {
        "accuracy": accuracy, "best_accuracy": accuracy, "seconds_to_target": seconds,
        "loss": loss, "best_loss": loss,
        "seconds": 9.0, "max_spent": math.inf if unit == "none" else 20.0, "fairness": 1.0,
        "regret": 3.0,
    }  # fmt: skip
    errors = {f"{name}_se": 0.25 for name in merits}
    return {
        "config": policy, "seeds": 3, "reached": reached, "epsilon_unit": unit, "rounds": 60,
        "empty_rounds": 0, **merits, **errors
    }  # fmt: skip


def shown_of(rows):
    """The table of a summary on one line."""
    return " ".join(printed(summary.table(rows, 0.8), 200).split())


def test_summary_is_sorted_by_time_to_target():
    rows = [
        row("no", reached=0, seconds=NAN),
        row("two", reached=2, seconds=10.0),
        row("late", reached=3, seconds=40.0),
        row("soon", reached=3, seconds=20.0, unit="none"),
    ]
    lines = printed(summary.table(rows, 0.8), 100).splitlines()
    body = [line.split() for line in lines if "±" in line and "mean" not in line]
    assert [cells[0] for cells in body] == ["soon", "late", "two", "no"]
    text = "\n".join(lines)
    for words in ("3 seeds", "s to 80 %", "10.0±0.2 (2/3)", "never", "no limit", "per coordinate"):
        assert words in text


def test_mixed_units_are_marked_in_each_cell():
    rows = [row("a", reached=0, seconds=NAN), row("b", reached=0, seconds=NAN, unit="update")]
    text = shown_of(rows)
    assert "20.0±0.2/coord" in text
    assert "20.0±0.2/update" in text
    assert "per coordinate" not in text


@pytest.mark.parametrize(
    ("loss", "shown", "hidden"),
    [
        (NAN, ("total s", "regret"), ("accuracy", "best, %")),
        (0.1234, ("final loss", "0.123±0.250", "total s", "test loss"), ("accuracy",)),
    ],
)
def test_summary_shows_loss_or_regret_without_accuracy(loss, shown, hidden):
    text = shown_of([row("a", reached=0, seconds=NAN, accuracy=NAN, loss=loss)])
    assert all(words in text for words in shown)
    assert not any(words in text for words in hidden)


def test_summary_shows_empty_rounds_only_if_any():
    rows = [row("a", reached=0, seconds=NAN), row("b", reached=0, seconds=NAN)]
    assert "empty" not in shown_of(rows)
    rows[1]["empty_rounds"] = 12
    text = shown_of(rows)
    assert "0/60" in text
    assert "12/60" in text
    assert "These rounds add 0 to the regret." not in text, "the table has no regret"
    for entry in rows:
        entry["best_accuracy"] = NAN
    words = "number of rounds without clients, summed over seeds. These rounds add 0 to the regret."
    assert words in shown_of(rows)


def test_summary_warns_if_regrets_are_not_comparable():
    rows = [row(name, reached=0, seconds=NAN, accuracy=NAN) for name in ("a", "b")]
    assert "not comparable" not in shown_of(rows)
    for gamma, entry in enumerate(rows):
        entry["reward.gamma"] = gamma
    words = "Regrets are not comparable, because the configs differ in reward.gamma."
    assert words in shown_of(rows)
    rows[0]["best_accuracy"] = 0.5
    assert "not comparable" not in shown_of(rows), "the table has no regret"


def test_summary_is_written_as_csv(tmp_path):
    rows = [row("a", reached=1, seconds=1.5)]
    summary.save(rows, tmp_path / "summary.csv")
    with (tmp_path / "summary.csv").open() as file:
        (read,) = csv.DictReader(file)
    assert read == {name: str(value) for name, value in rows[0].items()}


def test_result_folder_is_reserved_numbered_or_rejected(tmp_path):
    def reserve(explicit=False):
        return result_folder.reserve(tmp_path / "out", "mine", explicit=explicit).name

    assert reserve(explicit=True) == "mine"
    assert [reserve(), reserve()] == ["mine-2", "mine-3"]
    with pytest.raises(ConfigError, match=r"mine already exists.* or remove the folder"):
        reserve(explicit=True)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        result_folder.reserve(tmp_path / "file", "mine", explicit=True)


def test_only_empty_folders_are_released(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        folder.mkdir()
    (full / "data.nc").touch()
    for folder in (empty, full):
        result_folder.give_back(folder)
    assert not empty.exists()
    assert (full / "data.nc").exists()
