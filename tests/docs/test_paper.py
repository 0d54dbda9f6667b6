"""The paper cites what its bibliography has, and the files that describe the project agree."""

import json
import re
import tomllib

from tests.support.pages import ROOT

PAPER = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
BIBLIOGRAPHY = (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8")


def test_every_citation_is_in_the_bibliography_and_every_entry_is_cited():
    cited = set(re.findall(r"@(\w+)", PAPER))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", BIBLIOGRAPHY, re.MULTILINE))
    assert len(cited) > 10


def test_the_paper_has_the_sections_of_a_software_paper():
    sections = re.findall(r"^# (.+)$", PAPER, re.MULTILINE)
    assert sections == [
        "Summary",
        "Statement of need",
        "State of the field",
        "Software design",
        "Research impact",
        "AI usage disclosure",
        "Acknowledgements",
        "References",
    ]
    assert 500 < len(PAPER.split()) < 1500


def test_codemeta_says_what_the_package_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    meta = json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))
    for name in ("name", "version", "description", "keywords"):
        assert meta[name] == project[name]
    assert meta["license"].endswith(project["license"])
    assert meta["runtimePlatform"] == f"Python {project['requires-python'].replace('>=', '>= ')}"
