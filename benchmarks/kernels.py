"""Census of compiled programs: kernels by source line, loops and random draws."""

from __future__ import annotations

import collections
import contextlib
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from jax.experimental.compilation_cache import compilation_cache

import pause_jax
from pause_jax import presets
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.run.preflight import prepare
from pause_jax.run.programs import compiled_steps, program_spec, state_shapes
from pause_jax.run.record.result import chosen

ROOT = pathlib.Path(pause_jax.__file__).parent


class Census(NamedTuple):
    """Counts of one compiled program.

    Attributes:
      seconds: processor seconds of the compilation.
      lines: lines of the optimised code.
      kernels: number of kernels, such as fusions and products.
      loops: number of while loops. On a CPU, each draw of random bits has one.
      draws: number of threefry calls in the lowered program.
      lines_of: number of kernels by their innermost source line in this library.
    """

    seconds: float
    lines: int
    kernels: int
    loops: int
    draws: int
    lines_of: collections.Counter[str]


def steps(config: SimConfig) -> dict[str, Any]:
    """Lower the programs that ``simulate`` compiles for a config with learning, by name."""
    config, data = prepare(config)
    quantities = chosen(None)
    spec = program_spec(config, data, quantities)
    steps = compiled_steps(spec, quantities, Execution(), None)
    program_config, policy = spec.config_of(config), np.int32(0)
    state, segment = state_shapes(config, data), spec.segment(config, 1, config.num_rounds)
    return {
        "init": steps.init.lower(program_config, data, jax.random.key(0), policy),
        "advance": steps.advance.lower(program_config, data, state, segment, policy),
        "finish": steps.finish.lower(program_config, state),
    }


def census(lowered: Any) -> Census:
    """Compile a lowered program, and count its kernels, loops and draws."""
    with _compiling_anew():
        start = time.process_time()
        text = lowered.compile().as_text()
        seconds = time.process_time() - start
    source = _Source(text)
    kernels = [
        line
        for part, line in _instructions(text)
        if re.search(r" (fusion|dot|convolution|sort|scatter|gather|reduce)\(", line)
        and not re.match(r"%?(fused|wrapped|parallel)", part)
    ]
    return Census(
        seconds,
        text.count("\n"),
        len(kernels),
        len(re.findall(r" while\(", text)),
        len(re.findall(r"call @_?threefry2x32", lowered.as_text())),
        collections.Counter(map(source.line_of, kernels)),
    )


@contextlib.contextmanager
def _compiling_anew() -> Iterator[None]:
    """Disable JAX's cache, whose programs may name lines of another copy of the library."""
    used = jax.config.values["jax_enable_compilation_cache"]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", used)
        compilation_cache.reset_cache()


def _instructions(text: str) -> list[tuple[str, str]]:
    """Return the pairs (computation, instruction) of an optimised program."""
    part, found = "", list[tuple[str, str]]()
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            part = line.removeprefix("ENTRY ").strip()
        elif line.startswith("  "):
            found.append((part, line))
    return found


class _Source:
    """Tables of files and frames at the head of an optimised program."""

    def __init__(self, text: str) -> None:
        self._tables = collections.defaultdict[str, dict[int, str]](dict)
        table = ""
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
            elif found := re.match(r"(\d+) (.*)", line):
                self._tables[table][int(found[1])] = found[2]

    def line_of(self, instruction: str) -> str:
        """Return the innermost file and line of this library, or ``elsewhere``."""
        found = re.search(r"stack_frame_id=(\d+)", instruction)
        frame = int(found[1]) if found else 0
        while frame:
            fields = self._fields("StackFrames", frame)
            location = self._fields("FileLocations", fields["file_location_id"])
            name = pathlib.Path(self._tables["FileNames"][location["file_name_id"]].strip('"'))
            if name.is_relative_to(ROOT):
                return f"{name.relative_to(ROOT)}:{location['line']}"
            parent = fields.get("parent_frame_id", 0)
            frame = 0 if parent == frame else parent
        return "elsewhere"

    def _fields(self, table: str, number: int) -> dict[str, int]:
        text = self._tables[table][number]
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def main(
    preset: Annotated[str, typer.Option(help="Of pause_jax.presets.")] = "digits_small",
    most: Annotated[int, typer.Option(help="Lines to show.", min=0)] = 30,
) -> None:
    """Print a census of the compiled programs of a preset."""
    for name, lowered in steps(getattr(presets, preset)()).items():
        found = census(lowered)
        typer.echo(
            f"{name}: {found.seconds:.2f} processor seconds, {found.lines} lines, "
            f"{found.kernels} kernels, {found.loops} loops, {found.draws} draws"
        )
        for line, number in found.lines_of.most_common(most):
            typer.echo(f"{number:6} {line}")
