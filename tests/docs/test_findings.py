"""The page of findings says what the experiments measured."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "experiments"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FINDINGS = re.split(r"\n(?=\d+\. \*\*)", TEXT)[1:]
LINK = re.compile(r"\[[^\]]*\]\(([^)]*)\)")


def numbers(text: str) -> set[float]:
    """The numbers of two digits and more."""
    found = re.findall(r"(?<![\w^.])-?\d[\d,.]*\d(?:e\+?\d+)?", text)
    return {float(number.replace(",", "")) for number in found}


def test_findings_are_numbered_in_order():
    assert len(FINDINGS) >= 12
    assert [int(each.split(".")[0]) for each in FINDINGS] == list(range(1, len(FINDINGS) + 1))


@pytest.mark.parametrize("finding", FINDINGS, ids=range(1, len(FINDINGS) + 1))
def test_its_numbers_are_those_of_its_experiments(finding):
    folders = {ROOT / link.split("/")[0] for link in LINK.findall(finding) if "README" in link}
    assert folders
    kept = "\n".join((folder / "output.txt").read_text(encoding="utf-8") for folder in folders)
    words = LINK.sub("", finding.split(".", 1)[1]).replace("10^6", "1,000,000")
    missing = numbers(words) - numbers(kept)
    assert not missing, f"{missing} not in {sorted(folder.name for folder in folders)}"


def test_its_links_lead_to_files():
    for link in LINK.findall(TEXT):
        assert (ROOT / link).is_file(), link
