"""Damaged inputs with fixed seeds, and the rule that each is read right or refused in one line."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest

from pause_jax import ConfigError

T = TypeVar("T")
# What stands in the place of a number or a word.
TOKENS = (
    *(
        b"",
        b" ",
        b"nan",
        b"inf",
        b"-1",
        b"-0.0",
        b"0",
        b"1.5",
        b"1e400",
        b"1e-320",
        b"3e38",
        b"1e39",
    ),
    *(b"2147483648", b"4294967301", b"9" * 5000, b"1_0", b"0x1F", b"1,5", b"+7", b"007", b"1e3"),
    *(b"true", b"null", b"none", b"[]", b"{}", b"[[1]]", b'"', b'""', b"'", b"=", b"=1+1", b"-x"),
    *(b"\0", b"a\0", b"\n", b"\r", b"\r\n", b"\t", b",", b",,", b";", b":", b"\\", b"\xff"),
    *(b"\\ud800", b"\\u0000", b"\xe2\x80\xa8", b"\xc2\x85", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *("٣".encode(), "é".encode(), b"../x", b"/dev/zero", b"x" * 300, b"y" * 140_000),
    *(b"2026-01-01T00:00:00Z", b"__class__"),
)
# Values of TOML, most of the right kind for some field.
TOML = (
    *(
        b"2",
        b"3",
        b"4",
        b"5",
        b"8",
        b"10",
        b"20",
        b"0.25",
        b"0.5",
        b"0.75",
        b"1.5",
        b"2.0",
        b"12.5",
    ),
    *(b"0", b"1", b"2", b"7", b"-1", b"0.3", b"-0.0", b"1.0", b"1e-30", b"1e30", b"1e39", b"1e400"),
    *(b"nan", b"inf", b"2147483647", b"2147483648", b"9223372036854775808", b"9" * 5000, b"1_000"),
    *(b"true", b"false", b"[]", b"[1]", b"[0.5, 0.5]", b"[[1]]", b"{}", b"{name = 'random'}"),
    *(
        b"''",
        b"'none'",
        b"'x'",
        b"'pause'",
        b"'random'",
        b"'drop'",
        b"'1'",
        b"1979-05-27",
        b"07:32:00",
    ),
    *(b'"a\\u0000"', b'"\\n"', b"'/dev/zero'", b"'os:system'"),
)


def mutants(
    content: bytes,
    number: int,
    seed: int,
    *,
    tokens: Sequence[bytes] = TOKENS,
    place: bytes = rb"[\w.+-]+",
) -> Iterator[bytes]:
    """Yield damaged copies of a file.

    Args:
      content: of the file.
      number: of copies.
      seed: of the damages.
      tokens: what stands in the place of a number or a word.
      place: pattern of a number or a word.
    """
    rng = random.Random(seed)
    for _ in range(number):
        mutant = content
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            mutant = _damaged(rng, mutant, tokens, re.compile(place))
        yield mutant


def _damaged(
    rng: random.Random, content: bytes, tokens: Sequence[bytes], pattern: re.Pattern[bytes]
) -> bytes:
    """Return a copy in which one thing is replaced, inserted, swapped, doubled, cut or flipped."""
    kind = rng.choice((*["replace"] * 4, "insert", "swap", "double", "cut", "flip"))
    start = rng.randint(0, len(content))
    found = list(pattern.finditer(content))
    if kind == "replace" and found:
        old = rng.choice(found)
        return content[: old.start()] + rng.choice(tokens) + content[old.end() :]
    if kind == "swap" and len(found) > 1:
        one, two = sorted(rng.sample(found, 2), key=lambda match: match.start())
        between = content[one.end() : two.start()]
        return content[: one.start()] + two[0] + between + one[0] + content[two.end() :]
    if kind == "double":
        lines = content.splitlines(keepends=True)
        return b"".join(sorted([*lines, *rng.sample(lines, min(1, len(lines)))], key=lines.index))
    if kind == "cut":
        return content[:start] + content[start + rng.choice((1, 3, 20, len(content))) :]
    if kind == "flip" and content:
        flipped = bytearray(content)
        flipped[min(start, len(content) - 1)] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    return content[:start] + rng.choice(tokens) + content[start:]


def outcome(call: Callable[[], T], names: str, content: object) -> T | None:
    """Return what a call returns, or None after a ConfigError of one line that has ``names``."""
    try:
        return call()
    except ConfigError as error:
        line = str(error)
        if names in line and line.isprintable() and len(line) < 4000:
            return None
        pytest.fail(f"{line[:500]!r} from {content!r:.300}")
    except BaseException as error:
        error.add_note(f"from {content!r:.300}")
        raise
