"""The ``pause-jax audit`` command, which tests the claimed epsilon of privacy mechanisms."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Annotated

import jax
import typer
from rich.console import Console
from rich.text import Text

from pause_jax.analysis.table import make_table, word
from pause_jax.base.checks import check_fields
from pause_jax.base.registry import look_up
from pause_jax.base.struct import ConfigError
from pause_jax.cli.options import Load, Seed
from pause_jax.cli.settings import changed
from pause_jax.privacy import MECHANISMS, Mechanism

if TYPE_CHECKING:
    from pause_jax.privacy.audit import Audit


def audit(
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Mechanism to audit (default: all except 'none'): "
            f"{', '.join(cls.name for cls in MECHANISMS)}."
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Claimed epsilon of a single release.")] = 1.0,
    claim: Annotated[
        str | None,
        typer.Option(
            help="Privacy unit of epsilon: coordinate or update (default: the mechanism's unit)."
        ),
    ] = None,
    dimension: Annotated[int, typer.Option(help="Number of coordinates in an update.")] = 16,
    samples: Annotated[int, typer.Option(help="Number of releases drawn per mechanism.")] = 200_000,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Field to change, e.g. clip_norm=2. May be repeated.",
        ),
    ] = None,
    seed: Seed = 0,
    load: Load = None,
) -> None:
    """Audit mechanisms by estimating a lower bound on their actual epsilon.

    The exit status is 1 if a lower bound exceeds the claim. Passing the audit does not prove a
    claim, because other attacks may be stronger and no lower bound can exceed the resolution. If
    all claims are true, the probability of a false alarm is at most 5 %. If a bound is close to the
    claim, repeat the audit with a different seed. If a mechanism has a delta, increase it, e.g.
    with --set delta=0.1. At delta 1e-5, events that reveal a violation are too rare to observe.
    """
    # Import lazily, because scipy.stats takes half a second to import.
    from pause_jax.privacy import audit as audits

    chosen = _chosen(mechanism, change)
    results = [
        audits.audit(
            entry,
            # Fold in the name to make the noise of different mechanisms independent.
            jax.random.fold_in(jax.random.key(seed), zlib.crc32(entry.name.encode())),
            epsilon=epsilon,
            claim=claim,
            dimension=dimension,
            samples=samples,
            confidence=1 - 0.05 / len(chosen),
        )
        for entry in chosen
    ]
    console = Console()
    headings = ("mechanism", "unit", "claimed", "lower bound", "resolution", "verdict")
    title = "Lower bounds on epsilon (95 % confidence that all hold)"
    console.print(make_table([word(h) for h in headings], map(_row, results), title=title))
    for found in results:
        delta = f" (delta {found.delta:g})" if found.delta else ""
        sentence = f"- {found.mechanism}{delta}: strongest attack {found.attack}"
        console.print(sentence, highlight=False)
    if any(found.violated for found in results):
        raise typer.Exit(1)


def _chosen(name: str | None, change: list[str] | None) -> list[Mechanism]:
    """Return the named mechanism with ``change`` applied, or all private ones if none is named."""
    if name is None:
        if change:
            raise ConfigError(f"--set {change[0]}: requires --mechanism. Add --mechanism NAME.")
        return [cls() for cls in MECHANISMS if cls.unit != "none"]
    mechanism = changed(look_up(Mechanism, name, "--mechanism"), change)
    check_fields(mechanism)
    return [mechanism]


def _row(found: Audit) -> tuple[str | Text, ...]:
    numbers = f"{found.epsilon:g}", f"{found.lower_bound:.3f}", f"{found.resolution:.2f}"
    verdict = "too few samples" if found.epsilon >= found.resolution else "not refuted"
    judged = Text("VIOLATED", "red") if found.violated else verdict
    return found.mechanism, found.claim, *numbers, judged
