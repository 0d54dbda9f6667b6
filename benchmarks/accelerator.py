"""All measurements on an accelerator, in one command that resumes where it stopped.

    python -m benchmarks accelerator --minutes 9 --out DIR [--data PARTS]

It installs nothing and needs no network. ``DIR/lines.jsonl`` has one line per finished step, and
``DIR/table.md`` shows all of them. With the same DIR, the command continues with the next step. A
failed step is not repeated until its line is deleted. ``PARTS`` is the output of ``data-parts``.
Without it, steps that need MNIST or CIFAR-10 are skipped.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Annotated, Any

import jax
import typer

from benchmarks.accelerator_steps import LINES, PIECES, Setting, ended

ROOT = pathlib.Path(__file__).parent.parent
CURRENT, TABLE = "current.txt", "table.md"
# Seconds to wait for a terminated process before it is killed.
PATIENCE = 5.0
_HEAD = ["| piece | step | on | s | found |", "| --- | --- | --- | --- | --- |"]


def add(out: pathlib.Path, **line: Any) -> None:
    """Append a line, after ending a partial line of a killed process."""
    path = out / LINES
    half = path.exists() and not path.read_text().endswith("\n")
    with path.open("a") as file:
        file.write("\n" * half + json.dumps(line) + "\n")


def take(piece: str, setting: Setting) -> None:
    """Run the unfinished steps of a piece in this process."""
    out = setting.out
    device, done = jax.devices()[0].device_kind, {
        line.get("step") for line in ended(out) if line["piece"] == piece
    }  # fmt: skip
    for step in PIECES[piece].steps(setting):
        if step.name in done:
            continue
        (out / CURRENT).write_text(step.name)
        start = time.perf_counter()
        try:
            found: dict[str, Any] = {"found": step.measure()}
        except Exception as error:  # the next step may succeed
            found = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        seconds = round(time.perf_counter() - start, 2)
        add(out, piece=piece, step=step.name, device=device, jax=jax.__version__, seconds=seconds,
            **found)  # fmt: skip
        typer.echo(f"{piece}: {step.name}: {seconds} s", err=True)
    add(out, piece=piece, device=device)


def play(command: list[str], env: dict[str, str], out: pathlib.Path, until: float) -> int | None:
    """Run the process of a piece until it ends or the time is up.

    Returns:
      Exit status, or None if the process was stopped.
    """
    with (out / "log.txt").open("a") as log:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)
        try:
            return process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None


def table(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per step, without results that are lists."""
    rows = list(_HEAD)
    for line in lines:
        if "step" not in line:
            continue
        found = line.get("error") or "; ".join(
            f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in line["found"].items()
            if not isinstance(value, list)
        )
        cells = (
            line["piece"],
            line["step"],
            line.get("device", ""),
            line.get("seconds", ""),
            found,
        )
        rows.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def main(
    out: Annotated[pathlib.Path, typer.Option(help="Folder of what is written, and gone on with.")],
    minutes: Annotated[float, typer.Option(help="After which it stops.", min=0)] = 9,
    data: Annotated[pathlib.Path | None, typer.Option(help="Folder of parts.")] = None,
    only: Annotated[str, typer.Option(help="Pieces, with commas; all if left out.")] = "",
    small: Annotated[bool, typer.Option(help="The least of each piece: a rehearsal.")] = False,
    forced: Annotated[
        bool, typer.Option("--forced", help="On a CPU, take an accelerator's paths of the code.")
    ] = False,
    piece: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run the next steps, and write the table."""
    if piece:
        if forced:
            jax.default_backend = lambda: "forced"  # only the library calls it
        take(piece, Setting(out, data, small))
        return
    until = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in only.split(",") if name] or list(PIECES)
    for name in chosen:
        if name not in PIECES:
            raise typer.BadParameter(f"{name!r}: must be one of {', '.join(PIECES)}.")
    state: int | None = 0
    for name in chosen:
        while state is not None and not _is_over(name, out):
            (out / CURRENT).unlink(missing_ok=True)
            command = command_of(name, out, data, small=small, forced=forced)
            state = play(command, _environment(out, PIECES[name].env), out, until)
            if state:
                _crashed(name, out, state)
        (out / TABLE).write_text(table(ended(out)))
    typer.echo((out / TABLE).read_text())
    typer.echo("stopped: start it again to go on" if state is None else "all pieces ended")


def command_of(
    piece: str, out: pathlib.Path, data: pathlib.Path | None, *, small: bool, forced: bool
) -> list[str]:
    """Return the command that runs the steps of a piece."""
    command = [sys.executable, "-m", "benchmarks", "accelerator", "--piece", piece]
    command += ["--out", str(out.resolve()), "--small" if small else "--no-small"]
    command += ["--forced"] if forced else []
    return command + (["--data", str(data.resolve())] if data is not None else [])


def _is_over(piece: str, out: pathlib.Path) -> bool:
    return any(line["piece"] == piece and "step" not in line for line in ended(out))


def _environment(out: pathlib.Path, own: Any) -> dict[str, str]:
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), own.get("XLA_FLAGS"))))
    return {
        **os.environ,
        **own,
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAX_COMPILATION_CACHE_DIR": str(out.resolve() / "programs"),
        "PAUSE_JAX_CACHE": str(out.resolve() / "cache"),
    }


def _crashed(piece: str, out: pathlib.Path, status: int) -> None:
    """Add a line for the step that crashed its process, to prevent its repetition."""
    current = out / CURRENT
    error = f"ended the process with status {status}; see log.txt"
    if current.exists():
        add(out, piece=piece, step=current.read_text(), error=error)
    else:  # before any step: the piece cannot run
        add(out, piece=piece, step="start", error=error)
        add(out, piece=piece)
