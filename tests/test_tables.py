"""The tables and files of a sweep, from rows and data made by hand."""

import csv
import io
import math

import pytest
import xarray as xr
from rich.console import Console

from pause_jax import ConfigError
from pause_jax.analysis import result_folder, summary
from pause_jax.analysis.table import label, make_table, number, word

NAN = math.nan


def printed(table, width):
    file = io.StringIO()
    console = Console(file=file, width=width)
    console.print(table)
    return file.getvalue()


def test_in_a_narrow_terminal_labels_are_folded_and_numbers_stay_whole():
    columns = [label("policy"), word("unit"), number("spent\nin all"), number("rounds")]
    long = "a_name_that_a_user_made_as_long_as_they_liked"
    text = printed(make_table(columns, [(long, "update", "123456.7±89.0", "5")], title="t"), 52)
    for words in ("123456.7±89.0", "update", "in all", "rounds"):
        assert words in text
    assert long not in text
    body = text[text.rindex("──") :].splitlines()[1:]
    assert "".join(line.split()[0] for line in body if line.strip()) == long


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


def test_the_soonest_to_the_target_comes_first_and_never_last():
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


def test_two_units_are_marked_on_each_figure():
    rows = [row("a", reached=0, seconds=NAN), row("b", reached=0, seconds=NAN, unit="update")]
    text = printed(summary.table(rows, 0.8), 100)
    assert "20.0±0.2/coord" in text
    assert "20.0±0.2/update" in text
    assert "per coordinate" not in text


def test_without_learning_the_table_has_seconds_and_regret():
    text = printed(summary.table([row("a", reached=0, seconds=NAN, accuracy=NAN)], 0.8), 100)
    assert "s in all" in text
    assert "regret" in text
    assert "best, %" not in text
    assert "accuracy" not in text


def test_of_a_regression_the_table_has_losses():
    rows = [row("a", reached=0, seconds=NAN, accuracy=NAN, loss=0.1234)]
    text = printed(summary.table(rows, 0.8), 100)
    for words in ("end loss", "0.123±0.250", "s in all", "test loss"):
        assert words in text
    assert "accuracy" not in text


def test_rounds_without_clients_are_in_the_table_if_there_are_any():
    rows = [row("a", reached=0, seconds=NAN), row("b", reached=0, seconds=NAN)]
    assert "empty" not in printed(summary.table(rows, 0.8), 100)
    rows[1]["empty_rounds"] = 12
    text = printed(summary.table(rows, 0.8), 100)
    assert "0/60" in text
    assert "12/60" in text
    assert "nobody took part" in text


def test_the_summary_is_written_as_csv(tmp_path):
    rows = [row("a", reached=1, seconds=1.5)]
    summary.save(rows, tmp_path / "summary.csv")
    with (tmp_path / "summary.csv").open() as file:
        (read,) = csv.DictReader(file)
    assert read == {name: str(value) for name, value in rows[0].items()}


def test_a_folder_is_reserved_numbered_refused_or_forced(tmp_path):
    def reserve(explicit=False, force=False):
        return result_folder.reserve(tmp_path / "out", "mine", explicit=explicit, force=force).name

    assert reserve(explicit=True) == "mine"
    assert [reserve(), reserve()] == ["mine-2", "mine-3"]
    with pytest.raises(ConfigError, match="mine exists"):
        reserve(explicit=True)
    assert reserve(explicit=True, force=True) == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        result_folder.reserve(tmp_path / "file", "mine", explicit=True, force=False)


def test_only_an_empty_folder_is_given_back(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        folder.mkdir()
    (full / "data.nc").touch()
    for folder in (empty, full):
        result_folder.give_back(folder)
    assert not empty.exists()
    assert (full / "data.nc").exists()


def test_data_replace_older_data_when_they_are_whole(tmp_path):
    (tmp_path / "data.nc").write_text("older")
    result_folder.save_data(xr.Dataset({"clock": ("round", [1.0, 2.0])}), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["data.nc"]
    assert xr.load_dataset(tmp_path / "data.nc").clock.values.tolist() == [1, 2]
