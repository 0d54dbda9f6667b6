"""Figures: titles, legends, styles and hidden curves."""

import re

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pause_jax.analysis import plotting
from pause_jax.analysis.curves import LIGHT, styles
from tests.support.results import made

pytestmark = pytest.mark.slow


def drawn(draw, result, **options):
    with matplotlib.rc_context(plotting._SAVED):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        draw(result, axes, **options)
        figure.draw_without_rendering()
    return axes


def names(axes):
    """Texts of the legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def bands(axes):
    return [each for each in axes.collections if type(each).__name__ == "FillBetweenPolyCollection"]


def test_title_explains_error_bands_or_bars_and_legend_is_outside():
    few = drawn(plotting.plot_accuracy, made({"a": None, "b": None}))
    assert few.get_title(loc="left").startswith("Test accuracy against simulated time")
    assert "bands: ± standard error" in few.get_title(loc="left")
    assert len(bands(few)) == 2
    many = drawn(plotting.plot_accuracy, made({f"config {i}": None for i in range(12)}))
    assert "bars at the ends: ± standard error" in many.get_title(loc="left")
    assert not bands(many)
    for axes, number in ((few, 2), (many, 12)):
        assert axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1
        assert len(names(axes)) == number
    one = drawn(plotting.plot_accuracy, made({"a": None, "b": None}, seeds=1))
    assert "standard error" not in one.get_title(loc="left")


def test_target_line_is_labelled():
    axes = drawn(plotting.plot_accuracy, made({"a": None}), target=0.8)
    assert "target 80 %" in [text.get_text() for text in axes.texts]


def test_loss_axis_is_logarithmic():
    axes = drawn(plotting.plot_accuracy, made({"a": None}, learning="loss"), target=0.8)
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    assert values.min() / 2 < low < values.min() < values.max() < high < 2 * values.max()
    assert axes.get_title(loc="left").startswith("Test loss")
    assert not [text for text in axes.texts if "target" in text.get_text()]


def test_colour_does_not_depend_on_omitted_configs():
    result = made({"endless": None, "b": None})
    result["max_spent"] = result.max_spent.cumsum("round")
    result["max_spent"][0] = np.inf
    axes = drawn(plotting.plot_spent, result)
    (line,) = axes.lines
    assert to_hex(line.get_color()) == LIGHT[1].lower()
    assert names(axes) == ["b"]
    assert axes.get_title(loc="left")


def test_hidden_curve_is_wider_and_labelled():
    result = made({"a": None, "b": None, "c": None})
    result["max_spent"][2] = result.max_spent[0]
    axes = drawn(plotting.plot_spent, result)
    widths = {line.get_label(): line.get_linewidth() for line in axes.lines}
    assert widths["a (same as c)"] > widths["c (same as a)"] == widths["b"]


def test_policy_has_the_same_style_in_all_figures():
    result = made({"mine": None, "random": None, "pause": None})
    result["max_spent"] = result.max_spent.cumsum("round")
    looks = styles(["mine", "random", "pause"])
    for draw in (plotting.plot_accuracy, plotting.plot_spent, plotting.plot_participation):
        lines = {line.get_label().split(" (")[0]: line for line in drawn(draw, result).lines}
        for name, look in looks.items():
            found = (to_hex(lines[name].get_color()).upper(), lines[name].get_marker())
            assert found == (look.colour, look.marker), (draw, name)


def test_twenty_configs_differ_in_colour_or_dashes():
    axes = drawn(plotting.plot_accuracy, made({f"config {i}": None for i in range(20)}))
    lines = [line for line in axes.lines if len(line.get_xdata()) == 4]
    looks = {(to_hex(line.get_color()), str(line._dash_pattern)) for line in lines}
    assert len(lines) == len(looks) == 20


@pytest.mark.parametrize("learning", ["accuracy", "none"])
def test_figures_are_png_and_vector_files_with_text(tmp_path, learning):
    result = made({"sa_pause": None, "b": None}, learning=learning)
    files = plotting.save_figures(result, tmp_path / "figures", target=0.8)
    stems = ["accuracy_vs_seconds"] * (learning == "accuracy")
    stems += ["spent_budget_vs_rounds", "participation_per_client"]
    assert [file.name for file in files] == [
        f"{stem}.{form}" for stem in stems for form in ("png", "pdf", "svg")
    ]
    for file in files:
        kind = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[file.suffix]
        assert file.read_bytes().startswith(kind)
        if file.suffix == ".svg":
            assert re.search(r"<text[^>]*>sa_pause[ <]", file.read_text("utf-8"))
    if learning == "accuracy":  # it has the figures of the other case too
        again = plotting.save_figures(result, tmp_path / "again", target=0.8)
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(files, again, strict=True))


def test_budget_figure_is_omitted_without_a_budget(tmp_path):
    result = made({"a": None}, learning="none")
    result["max_spent"][:] = np.inf
    files = plotting.save_figures(result, tmp_path)
    assert {file.stem for file in files} == {"participation_per_client"}


def test_legend_follows_the_order_of_last_values():
    result = made({"a": None, "b": None, "c": None, "d": None})
    result["max_spent"] = result.max_spent.cumsum("round")
    axes = drawn(plotting.plot_spent, result)
    assert axes.get_ylim()[0] == 0
    ends = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
    assert names(axes) == sorted(ends, key=lambda name: -ends[name])


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_regret_plot_has_a_title_and_a_legend(scale):
    result = made({"a": None, "b": None})
    axes = drawn(plotting.plot_regret, result.regret.cumsum("round"), scale=scale)
    assert axes.get_yscale() == scale
    assert sorted(names(axes)) == ["a", "b"]
    assert axes.get_title(loc="left")


def test_regret_without_a_positive_value_is_drawn_on_a_linear_scale_only():
    result = made({"a": None, "b": None})
    regret = result.regret.cumsum("round")
    regret[1] = -abs(regret[1])
    assert names(drawn(plotting.plot_regret, regret, scale="log")) == ["a"]
    assert sorted(names(drawn(plotting.plot_regret, regret, scale="linear"))) == ["a", "b"]


def test_config_name_is_not_rendered_as_a_formula(tmp_path, monkeypatch):
    monkeypatch.setattr(plotting, "_FORMATS", ("svg",))
    labels = ["$\\frac{$", "a$b", "$x$", "{"]
    plotting.save_figures(made(dict.fromkeys(labels)), tmp_path)
    axes = drawn(plotting.plot_accuracy, made(dict.fromkeys(labels)))
    assert sorted(name.replace("\\$", "$") for name in names(axes)) == sorted(labels)


def test_loss_figure_needs_no_target_and_is_named_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(plotting, "_FORMATS", ("png",))
    files = plotting.save_figures(made({"a": None}, learning="loss"), tmp_path)
    assert files[0].name == "loss_vs_seconds.png"
    assert not any("accuracy" in file.name for file in files)
