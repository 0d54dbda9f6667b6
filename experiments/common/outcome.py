"""Outcome of an experiment: lines of text, checks and verdicts, printed and kept."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence

import typer

from experiments.common import claims
from experiments.common.claims import Claim, Verdict


class Outcome:
    """Lines of text, named checks and verdicts of an experiment."""

    def __init__(self, title: str):
        self.lines = [title]
        self.checks: dict[str, bool] = {}
        self.verdicts: list[tuple[Verdict, Claim]] = []

    def add(self, *lines: str) -> None:
        """Add lines of text."""
        self.lines += lines

    def check(self, what: str, passed: object) -> None:
        """Add a check; ``what`` states the rule and the measured number."""
        self.checks[what] = bool(passed)

    def judge(self, family: Sequence[Claim]) -> None:
        """Add the verdicts on all claims of a figure, none of which fails an experiment."""
        self.verdicts += zip(claims.judge(family), family, strict=True)

    def finish(self, out: pathlib.Path) -> None:
        """Print and write ``output.txt`` and ``verdicts.jsonl``; exit 1 if a check failed."""
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
    """Return a verdict with its numbers, where None marks a missing bound or value."""
    numbers = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in claim._asdict().items()
        if name != "text"
    }
    return {**verdict._asdict(), **numbers}
