"""What every experiment does with its figures: print them, check them, keep them."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence

import typer

from experiments.common import claims
from experiments.common.claims import Claim, Verdict


class Outcome:
    """Lines of text and named checks, written beside an experiment as ``output.txt``."""

    def __init__(self, title: str):
        self.lines = [title]
        self.checks: dict[str, bool] = {}
        self.verdicts: list[tuple[Verdict, Claim]] = []

    def add(self, *lines: str) -> None:
        """Add lines."""
        self.lines += lines

    def check(self, what: str, passed: object) -> None:
        """Add a check; ``what`` says the rule and the figure that was measured."""
        self.checks[what] = bool(passed)

    def judge(self, family: Sequence[Claim]) -> None:
        """Add what becomes of all claims of a figure; none of them fails an experiment."""
        self.verdicts += zip(claims.judge(family), family, strict=True)

    def finish(self, out: pathlib.Path) -> None:
        """Print everything, write it to ``out/output.txt``; exit status 1 if a check failed."""
        checks = [f"{'ok  ' if ok else 'FAIL'} {what}" for what, ok in self.checks.items()]
        text = (
            "\n".join([*self.lines, *(str(verdict) for verdict, _ in self.verdicts), *checks])
            + "\n"
        )
        typer.echo(text, nl=False)
        out.mkdir(parents=True, exist_ok=True)
        (out / "output.txt").write_text(text)
        if self.verdicts:
            lines = [json.dumps(_record(*each), allow_nan=False) for each in self.verdicts]
            (out / "verdicts.jsonl").write_text("\n".join(lines) + "\n")
        if not all(self.checks.values()):
            raise typer.Exit(1)


def _record(verdict: Verdict, claim: Claim) -> dict[str, object]:
    """A verdict with the numbers on which it rests; null is no bound, or no value."""
    numbers = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in claim._asdict().items()
        if name != "text"
    }
    return {**verdict._asdict(), **numbers}
