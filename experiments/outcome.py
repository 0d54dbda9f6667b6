"""What every experiment does with its figures: print them, check them, keep them."""

from __future__ import annotations

import json
import pathlib

import typer

from experiments.claims import Verdict


class Outcome:
    """Lines of text and named checks, written beside an experiment as ``output.txt``."""

    def __init__(self, title: str):
        self.lines = [title]
        self.checks: dict[str, bool] = {}
        self.verdicts: list[Verdict] = []

    def add(self, *lines: str) -> None:
        """Add lines."""
        self.lines += lines

    def check(self, what: str, passed: object) -> None:
        """Add a check; ``what`` says the rule and the figure that was measured."""
        self.checks[what] = bool(passed)

    def judge(self, *verdicts: Verdict) -> None:
        """Add what became of the paper's claims; none of them fails an experiment."""
        self.verdicts += verdicts

    def finish(self, out: pathlib.Path) -> None:
        """Print everything, write it to ``out/output.txt``; exit status 1 if a check failed."""
        checks = [f"{'ok  ' if ok else 'FAIL'} {what}" for what, ok in self.checks.items()]
        text = "\n".join([*self.lines, *map(str, self.verdicts), *checks]) + "\n"
        typer.echo(text, nl=False)
        out.mkdir(parents=True, exist_ok=True)
        (out / "output.txt").write_text(text)
        if self.verdicts:
            lines = [json.dumps(verdict._asdict()) for verdict in self.verdicts]
            (out / "verdicts.jsonl").write_text("\n".join(lines) + "\n")
        if not all(self.checks.values()):
            raise typer.Exit(1)
