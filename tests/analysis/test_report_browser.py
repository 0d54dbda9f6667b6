"""Reports in a real browser, in light and dark mode and in print."""

import os
import pathlib
import shutil

import pytest

from pause_jax.analysis import report
from pause_jax.privacy import NoPrivacy
from tests.support.results import made, small_config

pytestmark = pytest.mark.slow

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
EVIL = "</script ><script>alert(1)</script>"


def refuse(why):
    """A machine without a browser skips; where all must be tested it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        refuse("playwright is missing: pip install -e '.[dev]'")
    found = os.environ.get("PAUSE_JAX_BROWSER") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    with sync_playwright() as play:
        own = pathlib.Path(play.chromium.executable_path)
        if found is None and not own.exists():
            refuse(
                f"no browser: none of {', '.join(NAMES)} on the path. Debian: apt-get install "
                "chromium-headless-shell; else: playwright install chromium-headless-shell, or "
                "$PAUSE_JAX_BROWSER"
            )
        opened = play.chromium.launch(executable_path=found or own, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A report of two configs."""
    result = made({"random": None, "fastest": None}, seeds=2)
    return report.write(result, tmp_path_factory.mktemp("report") / "report.html", 0.3)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A report of many configs, one of them with a name that is HTML, and one without a budget."""
    names = {EVIL: None, "clear": small_config(privacy=NoPrivacy())}
    result = made({**names, **{f"gamma = {i}": None for i in range(12)}}, learning="loss")
    return report.write(result, tmp_path_factory.mktemp("odd") / "report.html")


# Parts wider than the box that would cut them, or texts of a chart outside of its picture.
CUT = """() => {
  const wide = [...document.querySelectorAll(".scroll, .chart, p, figcaption")]
    .filter((part) => part.scrollWidth > part.clientWidth);
  const out = [...document.querySelectorAll(".chart svg.marks")].flatMap((chart) => {
    const box = chart.getBoundingClientRect();
    return [...chart.querySelectorAll("text")].filter((text) => {
      const own = text.getBoundingClientRect();
      return own.width && (own.left < box.left - 1 || own.right > box.right + 1
        || own.top < box.top - 1 || own.bottom > box.bottom + 1);
    });
  });
  return [...wide, ...out].map((part) => part.textContent.slice(0, 60));
}"""


class Visit:
    """A page that is open, and what it complained of and asked for."""

    def __init__(self, browser, path, scheme="light", **options):
        self.context = browser.new_context(color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def drawn(self, number):
        """Wait until so many charts are there."""
        self.page.wait_for_function(
            f"document.querySelectorAll('.chart svg.marks').length === {number}", timeout=60_000
        )
        return self.page.locator(".chart svg.marks")

    def cut(self):
        """Texts that are cut, once the charts have had five seconds to fit."""
        for _ in range(50):
            if not (found := self.page.evaluate(CUT)):
                break
            self.page.wait_for_timeout(100)
        return found

    @property
    def outside(self):
        return [url for url in self.requests if not url.startswith(("file:", "data:"))]


def test_labels_are_text_and_many_configs_are_drawn(browser, odd):
    with Visit(browser, odd) as visit:
        charts = visit.drawn(4)
        assert visit.complaints == []
        assert charts.first.locator("text", has_text=EVIL).count() == 1
        assert visit.page.locator("th", has_text=EVIL).count() >= 1
        shapes = charts.first.locator(".role-legend-symbol path, .role-legend-symbol")
        assert len({shape.get_attribute("d") for shape in shapes.all()} - {None}) >= 8


def ink(visit, where, field="fill"):
    return visit.page.locator(where).first.evaluate(f"e => getComputedStyle(e).{field}")


def test_charts_follow_the_colour_scheme_without_errors_or_network_access(browser, compared):
    seen = {}
    for scheme in ("light", "dark"):
        with Visit(browser, compared, scheme) as visit:
            charts = visit.drawn(4)
            lines = charts.first.locator("g.mark-line path")
            assert lines.count() == 2
            assert all(len(path.get_attribute("d")) > 10 for path in lines.all())
            seen[scheme] = [
                ink(visit, "body", "backgroundColor"),
                ink(visit, ".chart .role-axis-label text"),
                ink(visit, ".chart g.mark-line path", "stroke"),
                ink(visit, "th:has-text('random') .swatch line", "stroke"),
            ]
            charts.first.locator("g.mark-symbol.role-mark path").last.hover(force=True)
            visit.page.wait_for_selector("#vg-tooltip-element.visible")
            words = visit.page.locator("#vg-tooltip-element").inner_text()
            assert "± standard error" in words
            visit.page.emulate_media(media="print")
            seen[f"{scheme}, printed"] = [
                ink(visit, "body", "backgroundColor"),
                ink(visit, ".chart g.mark-line path", "stroke"),
            ]
            assert visit.complaints == []
            assert visit.outside == []
    assert all(a != b for a, b in zip(seen["light"], seen["dark"], strict=True))
    assert seen["light"][2] == seen["light"][3] == "rgb(9, 128, 63)"
    assert seen["dark"][2] == seen["dark"][3]
    assert seen["light, printed"] == seen["dark, printed"] == [seen["light"][0], seen["light"][2]]


@pytest.mark.parametrize("which", ["compared", "odd"])
def test_nothing_is_clipped_when_the_screen_is_resized(browser, request, which):
    path = request.getfixturevalue(which)
    with Visit(browser, path, viewport={"width": 390, "height": 800}) as visit:
        visit.drawn(4)
        assert visit.cut() == []
        for width in (1280, 844, 390):
            visit.page.set_viewport_size({"width": width, "height": 800})
            assert visit.cut() == []
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        for part in visit.page.locator("summary").all():
            if part.is_visible():
                part.click()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
        names = visit.page.locator(".chart").first.locator(".role-legend-label text")
        assert names.count() == {"compared": 2, "odd": 14}[which]


def test_printed_page_is_white_and_shows_differing_fields(browser, compared):
    with Visit(browser, compared, "dark", viewport={"width": 690, "height": 1000}) as visit:
        visit.drawn(4)
        details = visit.page.locator("details.printed")
        assert not details.evaluate("part => part.open")
        visit.page.pdf(format="A4")
        assert details.evaluate("part => part.open")
        visit.page.emulate_media(media="print")
        assert ink(visit, "body", "backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 690
        assert visit.cut() == []
        hidden = visit.page.locator("section > details:not(.printed)")
        assert not any(part.is_visible() for part in hidden.all())


def test_modified_script_is_blocked(browser, compared, tmp_path):
    text = compared.read_text("utf-8")
    assert text.count('renderer: "svg"') == 1
    changed = tmp_path / "report.html"
    changed.write_text(text.replace('renderer: "svg"', 'renderer: "canvas"'), "utf-8")
    with Visit(browser, changed) as visit:
        assert visit.page.locator(".chart svg.marks, .chart canvas").count() == 0
        assert any("Content Security Policy" in each for each in visit.complaints)
