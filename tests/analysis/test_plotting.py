"""Figures: what they say of themselves, and what no longer hides anything."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pause_jax.analysis import plotting
from pause_jax.analysis.curves import LIGHT
from tests.support.results import made

pytestmark = pytest.mark.slow


def drawn(draw, result, **options):
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    draw(result, axes, **options)
    figure.canvas.draw()
    return axes


def bands(axes):
    return [each for each in axes.collections if type(each).__name__ == "FillBetweenPolyCollection"]


@pytest.mark.parametrize("number", [2, 12])
def test_accuracy_has_a_title_and_its_legend_outside(number):
    axes = drawn(plotting.plot_accuracy, made({f"config {i}": None for i in range(number)}))
    assert axes.get_title().startswith("Test accuracy against simulated time")
    assert axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1
    assert len(axes.get_legend().get_texts()) == number


def test_bands_of_few_and_bars_of_many_are_explained():
    few = drawn(plotting.plot_accuracy, made({"a": None, "b": None}))
    assert "bands: ± standard error" in few.get_title()
    assert len(bands(few)) == 2
    many = drawn(plotting.plot_accuracy, made({f"config {i}": None for i in range(12)}))
    assert "bars at the ends: ± standard error" in many.get_title()
    assert not bands(many)
    one = drawn(plotting.plot_accuracy, made({"a": None, "b": None}, seeds=1))
    assert "standard error" not in one.get_title()


def test_the_target_is_named():
    axes = drawn(plotting.plot_accuracy, made({"a": None}), target=0.8)
    assert "target 80 %" in [text.get_text() for text in axes.texts]


def test_a_loss_is_on_a_logarithmic_axis():
    axes = drawn(plotting.plot_accuracy, made({"a": None}, learning="loss"), target=0.8)
    assert axes.get_yscale() == "log"
    assert axes.get_title().startswith("Test loss")
    assert not axes.texts


def test_styles_do_not_come_twice():
    axes = drawn(plotting.plot_accuracy, made({f"config {i}": None for i in range(20)}))
    lines = [line for line in axes.lines if len(line.get_xdata()) == 4]
    styles = {(to_hex(line.get_color()), str(line._dash_pattern)) for line in lines}
    assert len(lines) == len(styles) == 20


def test_a_config_keeps_its_colour_where_another_is_not_drawn():
    result = made({"endless": None, "b": None})
    result["max_spent"] = result.max_spent.cumsum("round")
    result["max_spent"][0] = np.inf
    axes = drawn(plotting.plot_spent, result)
    (line,) = axes.lines
    assert to_hex(line.get_color()) == LIGHT[1].lower()
    assert axes.get_title()


def test_a_curve_under_another_is_wider_and_said():
    result = made({"a": None, "b": None, "c": None})
    result["max_spent"][2] = result.max_spent[0]
    axes = drawn(plotting.plot_spent, result)
    widths = {line.get_label(): line.get_linewidth() for line in axes.lines}
    assert widths["a (as c)"] > widths["c (as a)"] == widths["b"]


@pytest.mark.parametrize("number", [2, 13])
def test_panels_of_participation_have_one_scale(tmp_path, number, monkeypatch):
    seen = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: seen.append(self))
    result = made({f"config {i}": None for i in range(number)})
    result["counts"][1] = 3
    files = plotting.save_figures(result, tmp_path, target=0.8)
    assert len(seen) == len(files) == 3
    panels = [axes for axes in seen[2].axes if axes.patches]
    assert len(panels) == number
    np.testing.assert_allclose([axes.get_ylim() for axes in panels], [[0, 7 * 1.05]] * number)
    assert [axes.get_title(loc="left") for axes in panels[:1]] == ["config 0"]
    assert "one scale" in seen[2].get_suptitle()


def test_regret_has_a_title_and_its_legend_outside():
    result = made({"a": None, "b": None})
    axes = drawn(plotting.plot_regret, result.regret.cumsum("round"))
    assert axes.get_title()
    assert axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1


@pytest.mark.parametrize("name", ["$\\frac{$", "a$b", "$x$", "{"])
def test_the_name_of_a_config_is_no_formula(tmp_path, name):
    plotting.save_figures(made({name: None, "b": None}), tmp_path)
    axes = drawn(plotting.plot_accuracy, made({name: None, "b": None}))
    assert axes.get_legend().get_texts()[0].get_text().replace("\\$", "$") == name


def test_the_picture_of_a_loss_needs_no_target_and_is_called_so(tmp_path):
    files = plotting.save_figures(made({"a": None}, learning="loss"), tmp_path)
    assert [file.name for file in files] == [
        "loss_vs_seconds.png",
        "spent_budget_vs_rounds.png",
        "participation_per_client.png",
    ]
