"""Pages and generators of the site. ``make docs`` builds it and checks every reference."""

import re
import subprocess

import pytest

from pause_jax.policies import NAMED
from tests.support.pages import ROOT
from tools import cross_references, policy_gallery, site_pages

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/guides/*.md", "experiments/*/README.md")
    for path in ROOT.glob(pattern)
)
MADE = {"docs/gallery/index.md", "docs/api/index.md", "docs/command_line/options.md"}


def broken_links(text: str, folder) -> list[str]:
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose)
    links = [link for link in links if not link.startswith("http")]
    missing = [link for link in links if not (folder / link).exists()]
    made = {(ROOT / page).resolve() for page in MADE}
    return [link for link in missing if (folder / link).resolve() not in made]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_exist_in_a_checkout(path):
    assert broken_links(path.read_text("utf-8"), path.parent) == []


def test_broken_link_is_found():
    assert broken_links("[a](nowhere.md#b), [c](README.md)", ROOT) == ["nowhere.md"]


def test_every_guide_is_in_the_contents():
    contents = (ROOT / "docs" / "index.md").read_text("utf-8")
    listed = set(re.findall(r"^([\w./]+)$", contents, re.MULTILINE))
    pages = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in PAGES
             if p.is_relative_to(ROOT / "docs")}  # fmt: skip
    assert pages - {"index"} <= listed


def test_gallery_has_a_curve_of_every_named_policy():
    kept = policy_gallery.kept()
    assert list(kept) == list(NAMED)
    rounds = policy_gallery.SETTING.num_rounds
    planned = list(range(policy_gallery.EVAL_EVERY, rounds + 1, policy_gallery.EVAL_EVERY))
    for points in kept.values():
        assert [point.round for point in points] == planned
    # Only policies with queries wait for answers, and the genie has no regret.
    assert [name for name in kept if kept[name][-1].asking > 0] == [
        *("rbcs_f", "power_of_choice", "fedcs", "fedcor", "refl", "tifl", "cpow_d", "adapow_d")
    ]
    assert kept["genie"][-1].regret == 0


def test_card_shows_the_declarations_of_its_policy():
    policy = NAMED["power_of_choice"]
    said = dict(policy_gallery.facts(policy, policy_gallery.kept()["power_of_choice"]))
    assert said["observes"] == policy.observes
    assert said["source"] == policy.reference
    assert "loss" in said["released without noise"]
    assert re.search(r"queries take \d+% of the simulated time", said["costs"])
    alsa = dict(policy_gallery.facts(NAMED["alsa"], policy_gallery.kept()["alsa"]))
    assert "500 annealing steps" in alsa["costs"]


def test_every_notebook_has_a_card_and_a_place_in_the_contents(tmp_path):
    site_pages.write_notebook_cards(tmp_path)
    page = (tmp_path / "notebooks.md").read_text("utf-8")
    contents = (ROOT / "docs" / "index.md").read_text("utf-8")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f":link: ../../notebooks/{path.stem}\n" in page
        assert (tmp_path / f"{path.stem}.png").read_bytes().startswith(b"\x89PNG")
        assert f"\n../notebooks/{path.stem}\n" in contents
    # A card is a link, and links cannot be nested.
    assert "](" not in page


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("pause_jax.latency.Traces", "pause_jax.world.latency.traces.Traces"),
        ("pause_jax.bandit.search.exact", "pause_jax.bandit.search.exact.exact"),
        ("pause_jax.Result", "pause_jax.run.record.result.Result"),
        ("pause_jax.learning.Trained", "pause_jax.learning.learner.Trained"),
        ("pause_jax.regret", "pause_jax.analysis.regret"),
    ],
)
def test_name_is_documented_where_it_is_defined(name, where):
    assert cross_references.canonical(name) == where
    if where not in site_pages.public_modules():
        module = where.rpartition(".")[0]
        assert where in {symbol.name for symbol in site_pages.defined_in(module)}
    with pytest.raises(LookupError):
        cross_references.canonical("pause_jax.latency.Tracers")


def test_reference_contains_exactly_the_names_in_each_all():
    module = "pause_jax.analysis.ledger"
    documented = {symbol.name for symbol in site_pages.defined_in(module)}
    assert documented == {f"{module}.Ledger", f"{module}.ledger"}
    assert module in site_pages.public_modules()
    assert "pause_jax.analysis.table" not in site_pages.public_modules()


@pytest.mark.parametrize(
    ("html", "number"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/f.css">', 1),
        ('<a href="https://example.org">x</a><img src="a.png"><link href="_static/a.css">', 0),
    ],
)
def test_tags_that_load_from_the_network_are_found(html, number):
    assert len(site_pages.fetched(html)) == number


def test_files_contain_no_invented_project_address():
    found = subprocess.run(
        ["git", "grep", "-IlE", r"github\.com/pause|pause-jax\.(github|readthedocs)"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    files = set(found.stdout.split()) - {"tests/docs/test_site.py"}
    assert found.returncode in (0, 1), found.stderr
    assert files == set()
