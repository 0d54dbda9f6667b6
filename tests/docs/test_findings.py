"""The page of findings says what the experiments measured."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "experiments"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FINDINGS = re.split(r"\n(?=\d+\. \*\*)", TEXT)[1:]
LINK = re.compile(r"\[[^\]]*\]\(([^)]*)\)")
# Numbers that name a setting or a place, not a measurement.
SETTINGS = {"10^6"}


def numbers(text: str) -> set[str]:
    """The numbers of two digits and more."""
    found = re.findall(r"(?<![\w^])-?\d[\d,.^e+]*\d", text)
    return {number for number in found if number not in SETTINGS}


def test_there_are_ten():
    assert [int(each.split(".")[0]) for each in FINDINGS] == list(range(1, 11))


@pytest.mark.parametrize("finding", FINDINGS, ids=range(1, 11))
def test_its_numbers_are_those_of_its_experiments(finding):
    folders = {ROOT / link.split("/")[0] for link in LINK.findall(finding) if "README" in link}
    assert folders
    kept = "\n".join((folder / "output.txt").read_text(encoding="utf-8") for folder in folders)
    words = LINK.sub("", finding.split(".", 1)[1])
    missing = {number for number in numbers(words) if number.rstrip(".,") not in kept}
    assert not missing, f"{missing} not in {sorted(folder.name for folder in folders)}"


def test_its_links_lead_to_files():
    for link in LINK.findall(TEXT):
        assert (ROOT / link).is_file(), link
