"""The experiment on rounds that overlap runs small; what its page says is in its output."""

import pathlib
import re

import jax
import pytest

from experiments.event_clock import run, setting
from pause_jax.learning import Digits, Learning, Linear

HERE = pathlib.Path(run.__file__).parent
# Of the contestants those that the checks are about: each is a program.
FEW = ("rounds, random", "fedbuff, random", "fedbuff, fastest", "fedbuff, pisces", "paced, pisces")


@pytest.mark.nightly
def test_it_runs_small(tmp_path, monkeypatch, capsys):
    small = Learning(data=Digits(num_train=120), model=Linear(), max_steps=1)
    learning = small.replace(optimizer="sgd")
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests' programs
    fleet = setting.FLEETS["tails"].replace(num_clients=20, num_rounds=900, learning=learning)
    monkeypatch.setitem(setting.FLEETS, "tails", fleet)
    few = {name: setting.CONTESTANTS[name] for name in FEW}
    # Pisces is compiled as long as the others together; test_asynchronous_selector.py has it.
    for clock in ("fedbuff", "paced"):
        few[f"{clock}, pisces"] = "fastest", few[f"{clock}, pisces"][1]
    claims = [claim for claim in setting.CLAIMS if {*claim} <= {*FEW}]
    for module in (setting, run):
        monkeypatch.setattr(module, "CONTESTANTS", few)
    monkeypatch.setattr(run, "CLAIMS", claims)
    run.main(seeds=2, rounds=20, only="tails", out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("\nok ") == 4
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == len(claims) == 3


UNDECIDED = "not decidable here"


def verdicts_on(claim: str, output: str) -> list[str]:
    """The verdicts on a claim, of the three fleets in turn."""
    return re.findall(rf"^(\w+|{UNDECIDED}) +\w+: {claim}", output, re.MULTILINE)


def test_its_page_says_what_was_found():
    output = (HERE / "output.txt").read_text(encoding="utf-8")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    gains = re.findall(r"fedbuff, random above rounds, pause: \+([\d.]+)", output)
    assert [round(float(gain)) for gain in gains] == [11, 12, 14]
    assert "11 to 14 points" in page
    assert verdicts_on("fedbuff, pause above", output) == [UNDECIDED] * 3
    found = verdicts_on("fedbuff, random above fedbuff, f", output)
    assert found == ["open", "open", UNDECIDED]
    for who in ("fedbuff, useful rate above fedbuff, pause", "fedbuff, pisces above fedbuff, r"):
        assert set(verdicts_on(who, output)) <= {UNDECIDED}
    found = verdicts_on("paced, pisces above", output)
    assert found == ["open", "open", UNDECIDED]
    paced = re.findall(r"paced, pisces above [\w ,]+: \+([\d.]+)", output)
    assert paced == ["3.58", "1.48", "1.42"]
    assert output.count("only if differences are nearly normal") == 4
    assert "(+3.58)" in page
    assert "(+1.48)" in page
