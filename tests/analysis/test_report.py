"""The HTML report: contents and escaping of labels."""

import html.parser
import json
import re
import sys

import numpy as np
import pytest

from pause_jax.analysis import report, summary
from pause_jax.analysis.comparison import compare
from pause_jax.analysis.participation import participation
from pause_jax.analysis.report import page, pictures, tables
from pause_jax.base.struct import ConfigError
from pause_jax.privacy import NoPrivacy
from tests.support.results import made, small_config, with_client_accuracy

pytestmark = pytest.mark.slow

EVIL = "</script ><script>alert(1)</script>"


class Page(html.parser.HTMLParser):
    """What of a page is looked at: elements, texts and the charts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.charts, self.scripts = [], [], {}, []
        self.raw = []
        self._chart = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._chart = dict(attrs).get("data-chart", "") if tag == "script" else None

    def handle_endtag(self, tag):
        self._chart = None

    def handle_data(self, data):
        if self._chart:
            self.charts[self._chart] = json.loads(data)
            self.raw.append(data)
        elif self._chart == "":
            self.scripts.append(data)
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def shown(result, target=0.8, **options):
    return Page(page.render(result, target, options.get("against"), "my result"))


def three():
    found = made({"good": None, EVIL: None, "clear": small_config(privacy=NoPrivacy())})
    found["max_spent"][2] = np.inf
    return found


@pytest.fixture
def result():
    return three()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The report of that result, which no test changes."""
    return report.write(three(), tmp_path_factory.mktemp("report") / "report.html", 0.5)


@pytest.fixture(scope="module")
def found(written):
    return Page(written.read_text("utf-8"))


def test_report_is_self_contained_and_small(written):
    assert written.stat().st_size < 3e6
    text = written.read_text("utf-8")
    assert set(re.findall(r'(?:src|href)="(.*?)"', text.partition("<script>")[0])) == {"data:,"}
    policies = [attrs.get("content", "") for tag, attrs in Page(text).elements if tag == "meta"]
    rest = "style-src 'unsafe-inline'; img-src data: blob:"
    whole = rf"default-src 'none'; script-src( 'sha256-[\w+/]+=')+; {rest}"
    assert any(re.fullmatch(whole, policy) for policy in policies)


def test_labels_are_escaped(found):
    assert len(found.scripts) == 2
    assert EVIL in found.text
    assert any(EVIL in json.dumps(chart) for chart in found.charts.values())
    assert not any("alert(1)" in script for script in found.scripts)
    # A browser ends a script at `</script ` too.
    assert not any("<" in data for data in found.raw)


def test_report_is_readable_without_charts(found):
    tags = [tag for tag, _ in found.elements]
    assert "noscript" in tags
    assert ("html", {"lang": "en"}) in found.elements
    assert "title" in tags
    charts = [attrs for tag, attrs in found.elements if attrs.get("class") == "chart"]
    assert len(charts) == len(found.charts) == 4
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 40 for attrs in charts)
    scopes = [attrs.get("scope") for tag, attrs in found.elements if tag == "th"]
    assert set(scopes) == {"col", "row"}


def test_report_shows_attributes_interruption_and_a_custom_class(result, found):
    assert "Incomplete results" not in found.text
    result.attrs |= {"command": "pause-jax compare", "interrupted": "after 3 of 9 runs", "own": 7}
    texts = [str(text).replace("per_coordinate", "my_own") for text in result.config_toml.values]
    text = shown(result.assign_coords(config_toml=("config", texts))).text
    assert "Incomplete results: the sweep stopped after 3 of 9 runs." in text
    assert re.search(r"command pause-jax compare .* own 7", text)
    # The class is not loaded.
    assert "Privacy ledger unavailable:" in text
    assert "--load" in text
    assert "good: unit coordinate" in text


def colours_of(spec):
    """Colours by config, wherever a chart says them."""
    found: dict[str, str] = {}
    if isinstance(spec, dict):
        scale = spec.get("color", {}) if isinstance(spec.get("color"), dict) else {}
        scale = scale.get("scale") or {}
        if "range" in scale:
            found |= dict(zip(scale["domain"], scale["range"], strict=True))
        parts = list(spec.values())
    else:
        parts = spec if isinstance(spec, list) else []
    for part in parts:
        found |= colours_of(part)
    return found


def test_config_has_the_same_colour_in_all_charts(found):
    each = [colours_of(chart) for chart in found.charts.values()]
    assert {len(own) for own in each} == {2, 3}  # without a budget `clear` has no such curve
    for own in each:
        assert own.items() <= each[0].items()


def test_curves_are_thinned_but_keep_their_ends():
    result = made({"a": None})
    rounds = np.arange(5000)
    long = result.regret.isel(round=0, drop=True).expand_dims(round=rounds, axis=2)
    fine = result.drop_dims("round").assign_coords(round=rounds)
    fine["regret"] = long.copy(data=np.ones((1, 3, 5000)))
    fine["clients"] = fine.regret.expand_dims(slot=2, axis=3).astype(int)
    fine["played"] = fine.regret > 0
    rows = pictures.regret(fine).spec["data"]["values"]
    assert len(rows) <= 150
    assert (rows[0]["y"], rows[-1]["y"]) == (1, 5000)
    fine["max_spent"] = fine.regret.cumsum("round")
    rows = pictures.budget(fine).spec["data"]["values"]
    assert len(rows) == 150
    assert (rows[0]["y"], rows[-1]["y"]) == (1, 5000)


def test_regret_has_an_axis_on_which_small_and_large_curves_are_readable():
    spec = pictures.regret(made({"one": None, "two": None})).spec
    scales = [layer["encoding"]["y"].get("scale", {}) for layer in spec["layer"]]
    assert {"symlog"} == {scale["type"] for scale in scales if "type" in scale}


def test_bands_are_standard_errors_over_seeds():
    result = made({"a": None}, seeds=4)
    picture = pictures.against_time(result, 0.8)
    last = picture.spec["data"]["values"][-1]
    ends = 100 * result.test_accuracy.values[0, :, -1]
    error = ends.std(ddof=1) / 2
    np.testing.assert_allclose(last["high"] - last["y"], error, rtol=1e-3, atol=2e-3)
    assert "± standard error over 4 seeds" in picture.caption
    one = pictures.against_time(made({"a": None}, seeds=1), 0.8)
    assert "low" not in one.spec["data"]["values"][0]
    assert "No standard error, because there is only one seed." in one.caption


def test_results_come_first_and_match_the_terminal(result, found):
    text = found.text
    merits = summary.merits(summary.summary(result, 0.5), 0.5)
    order = ["Conclusions", compare(result, 0.5).text, *(cell for cell in merits.rows[0])]
    order += [merits.caption, "Test accuracy against simulated time", "Differences from 'clear'"]
    order = [words.replace("'clear'", "good") for words in order]
    order += ["Participation per client", "Privacy", "Compared configs", "Provenance"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    for words in ("paired t-interval", "NO GUARANTEE", "eps/coord basic", "fastest third"):
        assert words in text, words


def test_differing_fields_have_one_row_each():
    result = made({"a": None, "b c": None, "d": None})
    names = ("policy", "policy.search", "policy.index")
    values = (["x", "y", "x"], ["", "z", ""], ["1", "2", "3"])
    more = {name: ("config", each) for name, each in zip(names, values, strict=True)}
    table = tables.differing(result.assign_coords(more))
    assert table.headings == ("field", "values")
    rows: dict[str, str] = dict(table.rows)
    assert rows["policy"] == "x: a and d; y: 'b c'"
    assert rows["policy.search"] == "z: 'b c'"
    assert rows["reward.gamma"] == "0: a; 0.5: 'b c'; 1: d"


@pytest.mark.parametrize("learning", ["loss", "none"])
def test_report_works_without_accuracy(learning):
    found = shown(made({"a": None, "b": None}, learning=learning))
    assert ("chart-time" in found.charts) == (learning == "loss")
    assert "nan" not in found.text.lower().split()


def test_seeds_that_missed_the_target_are_counted():
    result = made({"good": None, "bad": None})
    result["test_accuracy"][1, 0] = 0.1
    table = tables.judged(result, compare(result, 0.5))
    assert table.headings == ("config", "s to 50 %", "final, %")
    ((name, seconds, end),) = table.rows
    assert (name, "(2 of 3 seeds)" in seconds, "seeds" in end) == ("bad", True, False)
    merits = tables.merits(result, 0.5)
    assert "(2/3)" in merits.rows[1][3]


def test_incomplete_data_set_is_rejected(result, tmp_path):
    with pytest.raises(ConfigError, match="the data set has no regret"):
        report.write(result.drop_vars("regret"), tmp_path / "report.html")
    with pytest.raises(ConfigError, match="target = 80"):
        report.write(result, tmp_path / "report.html", 80)


def test_missing_extra_is_reported_with_the_install_command(result, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "pause_jax.analysis.report.page")
    monkeypatch.delattr(report, "page")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"vl_convert is not installed\. Run: pip .*\[report"):
        report.write(result, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_spent_shares_are_shown_by_tier_or_third():
    found = made({"one": None, "two": None, "clear": small_config(privacy=NoPrivacy())})
    tiers = np.asarray([10.0, 200, 10, 10, 200, 50])
    found["budget"][:] = tiers
    found["spent"][:] = np.asarray([0.5, 0.25, 0.0])[:, None, None] * tiers
    found["spent"][0, 0, 0] = 10.0  # one of nine runs of a client of the least budget
    found["budget"][2] = np.inf
    table = tables.by_budget(found)
    assert table.headings == ("config", "budget 10", "budget 50", "budget 200")
    assert table.rows == (
        ("one", "55.6 %", "50.0 %", "50.0 %"),
        ("two", "25.0 %", "25.0 %", "25.0 %"),
        ("clear", "-", "-", "-"),
    )

    found["budget"][:2] = np.arange(6.0)[::-1] + 1  # each client another, so thirds
    found["spent"][:2] = found["budget"][:2] * np.asarray([0.0, 0, 0.2, 0.4, 1, 1])
    table = tables.by_budget(found)
    assert table.headings[1:] == ("smallest budgets", "middle budgets", "largest budgets")
    assert table.rows[0] == ("one", "100.0 % of 1.5", "30.0 % of 3.5", "0.0 % of 5.5")

    found["budget"][:2] = 3.0
    assert tables.by_budget(found) is None
    assert tables.by_budget(found.drop_vars("budget")) is None


def overlapping():
    """A result of two configs whose rounds overlap and of one with rounds."""
    found = with_client_accuracy(made({"fedbuff": None, "pause": None, "rounds": None}))
    slots = ("config", "seed", "round", "slot")
    stale = np.zeros((3, 3, 20, 2), np.int32)
    stale[0] = np.arange(20)[:, None] % 4
    stale[0, :, 19, 1] = -1  # an empty slot
    stale[1, :, :, 1] = 2
    found["staleness"] = (slots, stale)
    found["in_flight"] = (slots[:3], np.asarray([7.0, 5.0, 0.0])[:, None, None] * np.ones((3, 20)))
    found["waiting"] = (slots[:3], np.full((3, 3, 20), 0.25))
    found["useful"] = (slots[:3], np.asarray([1.0, 2.0, 2.0])[:, None, None] * np.ones((3, 20)))
    found["budget"][:] = np.asarray([10.0, 200, 10, 10, 200, 50])
    return found


def test_overlapping_rounds_have_a_section():
    result = overlapping()
    table = tables.answers(result)
    rows = pictures.staleness(result).spec["data"]["values"]
    share = {(row["config"], row["x"]): row["y"] for row in rows}
    # 39 answers, of which the last round's one has a staleness of 3.
    assert share[("fedbuff", 0.0)] == pytest.approx(100 * 10 / 39, rel=1e-4)
    assert share[("fedbuff", 3.0)] == pytest.approx(100 * 9 / 39, rel=1e-4)
    assert [share[("pause", s)] for s in range(4)] == [50, 0, 50, 0]
    assert len(share) == 8  # rounds have none
    under_way = pictures.in_flight(result).spec["data"]["values"]
    assert {(row["config"], row["y"]) for row in under_way} == {("fedbuff", 7), ("pause", 5)}
    steps = pictures.versions(result).spec["data"]["values"]
    seconds = result.clock.mean("seed").values
    for row in steps:
        place = result.config.values.tolist().index(row["config"])
        assert row["x"] == pytest.approx(seconds[place, int(row["y"]) - 1], rel=1e-4)
    cells = {row[0]: row[1:] for row in table.rows}
    last = result.clock.values[0, :, -1]
    assert cells["fedbuff"] == (
        f"{(39 / last).mean():.3g}", f"{(20 / last).mean():.3g}", f"{57 / 39:.3g}", "0.25"
    )  # fmt: skip
    found = shown(result)
    assert {"chart-versions", "chart-in_flight", "chart-staleness"} <= set(found.charts)
    assert "Overlapping rounds" in found.text
    assert "Who is left behind" in found.text
    by_group = tables.left_behind(result, participation(result))
    for each in (table, by_group, tables.by_budget(result)):
        assert each.caption in found.text
    # A point of the accuracy says which version it is.
    points = found.charts["chart-time"]["data"]["values"]
    assert {row["number"] for row in points} == {5, 10, 15, 20}


def test_accuracy_by_client_group_is_one_table():
    found = with_client_accuracy(made({"one": None, "two": None}))
    assert tables.left_behind(found.drop_vars("client_accuracy"), participation(found)) is None
    found["counts"][:] = np.asarray([3, 1, 7, 2, 9, 8])
    found["counts"][1, 0] = np.asarray([9, 8, 7, 3, 2, 1])
    found["budget"][:] = np.asarray([10.0, 200, 10, 10, 200, 50])
    speed = {name: each._replace(clients=np.asarray([5, 3, 1, 0, 2, 4]))
             for name, each in participation(found).items()}  # fmt: skip
    table = tables.left_behind(found, speed)
    assert dict(zip(table.headings, table.rows[0], strict=True)) == {
        "config": "one",
        "all clients": "25.0",
        "worst tenth": "0.0",
        "fastest third": "10.0",
        "slowest third": "20.0",
        "most active third": "5.0",
        "least active third": "30.0",
        "budget 10": "33.3",
        "budget 50": "0.0",
        "budget 200": "25.0",
    }
    # In one of its three seeds the least active clients are the last two, not 1 and 3.
    assert table.rows[1][5:7] == ("28.3", "31.7")
    unknown = {name: each._replace(clients=None) for name, each in speed.items()}
    assert "fastest third" not in tables.left_behind(found, unknown).headings
