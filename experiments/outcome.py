"""What every experiment does with its figures: print them, check them, keep them."""

from __future__ import annotations

import pathlib

import typer


class Outcome:
    """Lines of text and named checks, written beside an experiment as ``output.txt``."""

    def __init__(self, title: str):
        self.lines = [title]
        self.checks: dict[str, bool] = {}

    def add(self, *lines: str) -> None:
        """Add lines."""
        self.lines += lines

    def check(self, what: str, passed: object) -> None:
        """Add a check; ``what`` says the rule and the figure that was measured."""
        self.checks[what] = bool(passed)

    def finish(self, out: pathlib.Path) -> None:
        """Print everything, write it to ``out/output.txt``; exit status 1 if a check failed."""
        verdicts = [f"{'ok  ' if ok else 'FAIL'} {what}" for what, ok in self.checks.items()]
        text = "\n".join([*self.lines, *verdicts]) + "\n"
        typer.echo(text, nl=False)
        out.mkdir(parents=True, exist_ok=True)
        (out / "output.txt").write_text(text)
        if not all(self.checks.values()):
            raise typer.Exit(1)
