"""The pages read as docs/readability.py asks: short lines, short sentences, standard terms."""

import importlib.util

import pytest

from tests.support.pages import ROOT

spec = importlib.util.spec_from_file_location("readability", ROOT / "docs" / "readability.py")
readability = importlib.util.module_from_spec(spec)
spec.loader.exec_module(readability)


@pytest.mark.parametrize("path", readability.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_easy_to_read(path):
    name = path.relative_to(ROOT).as_posix()
    assert not readability.findings(path.read_text(encoding="utf-8"), name)


def test_what_is_hard_to_read_is_found():
    long_line = "word " * 21 + "word."
    long_sentence = "\n".join(["word " * 16, "word " * 15 + "end."])
    page = f"# Title {long_line}\n\n{long_line}\n\n{long_sentence}\n\nA policy of your own.\n"
    assert [finding.split(": ", 1)[0] for finding in readability.findings(page, "page.md")] == [
        "page.md:3",
        "page.md:8",
        "page.md",
        "page.md",
    ]


def test_code_and_tables_are_not_prose():
    page = f"```python\n{'x + ' * 40}\n```\n\n| {'cell ' * 40} |\n\nQuite short. Also short: two.\n"
    assert not readability.findings(page, "page.md")
    assert readability.sentences(page) == ["Quite short.", "Also short: two."]


def test_the_readme_fits_ninety_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90
