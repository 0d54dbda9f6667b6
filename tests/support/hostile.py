"""Damaged inputs with fixed seeds, and the rule that each is read right or refused in one line."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from pause_jax import ConfigError

T = TypeVar("T")
# Replacements for a number or a word.
TOKENS = (
    *(b"", b" ", b"nan", b"inf", b"-1", b"-0.0", b"0", b"1.5", b"1e400", b"1e-320", b"3e38"),
    *(b"1e39", b"2147483648", b"4294967301", b"9" * 5000, b"1_0", b"0x1F", b"1,5", b"+7", b"007"),
    *(b"1e3", b"true", b"null", b"none", b"[]", b"{}", b"[[1]]", b'"', b'""', b"'", b"=", b"=1+1"),
    *(b"-x", b"\0", b"a\0", b"\n", b"\r", b"\r\n", b"\t", b",", b",,", b";", b":", b"\\", b"\xff"),
    *(b"\\ud800", b"\\u0000", b"\xe2\x80\xa8", b"\xc2\x85", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *("٣".encode(), "é".encode(), b"../x", b"/dev/zero", b"x" * 300, b"y" * 140_000),
    *(b"2026-01-01T00:00:00Z", b"__class__"),
)
# Values of TOML, most of the right kind for some field.
TOML = (
    b"2", b"3", b"4", b"5", b"8", b"10", b"20", b"0.25", b"0.5", b"0.75", b"1.5", b"2.0", b"12.5",
    b"0", b"1", b"2", b"7", b"-1", b"0.3", b"-0.0", b"1.0", b"1e-30", b"1e30", b"1e39", b"1e400",
    b"nan", b"inf", b"2147483647", b"2147483648", b"9223372036854775808", b"9" * 5000, b"1_000",
    b"true", b"false", b"[]", b"[1]", b"[0.5, 0.5]", b"[[1]]", b"{}", b"{name = 'random'}",
    b"''", b"'none'", b"'x'", b"'pause'", b"'random'", b"'drop'", b"'1'", b"1979-05-27",
    b"07:32:00", b'"a\\u0000"', b'"\\n"', b"'/dev/zero'", b"'os:system'",
)  # fmt: skip
# JSON values, most of a wrong type.
JSON: tuple[Any, ...] = (
    None, True, "", "text", "two\nlines", "\0", "\ud800", -1, 0, 2**31, 2**63, 10**400, -0.5,
    1e39, 1e308, float("nan"), float("inf"), [], [[]], {}, [None], {"a": 1},
)  # fmt: skip
DEEP = 3000


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


def damaged(content: bytes, seed: int) -> bytes:
    """Return one damaged copy of a file."""
    return next(mutants(content, 1, seed))


def rewritten(content: bytes, seed: int) -> bytes:
    """Return JSON with one field replaced, removed, added, or nested too deeply."""
    rng = random.Random(seed)
    table = json.loads(content)
    place: Any = table
    key: Any = rng.choice(list(table))
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
        place = place[key]
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    match rng.choice(("remove", "add", "replace", "replace", "nest")):
        case "remove":
            del place[key]
        case "add" if isinstance(place, dict):
            place["another"] = rng.choice(JSON)
        case "nest":
            deep = "[" * DEEP + "]" * DEEP
            return json.dumps(table).replace(json.dumps(place[key]), deep, 1).encode()
        case _:
            place[key] = rng.choice(JSON)
    return json.dumps(table).encode()


def repacked(content: bytes, seed: int) -> bytes:
    """Return an npz file with one array changed, removed, renamed, or replaced by other bytes."""
    rng = random.Random(seed)
    with np.load(io.BytesIO(content)) as archive:
        arrays = dict(archive)
    name = rng.choice(sorted(arrays))
    array = arrays.pop(name)
    number = array.dtype.kind in "iufb"
    negative = ~array if array.dtype.kind in "ub" else np.full_like(array, -100)
    changed = rng.choice(
        (
            {},
            {f"{name}0": array},
            {name: array[None]},
            {name: np.concatenate([np.atleast_1d(array)] * 2)},
            {name: np.atleast_1d(array)[:0]},
            {name: np.asarray("text")},
            {name: np.frombuffer(array.tobytes() + b"\0", np.uint8)},
            {name: array.astype(complex) if number else np.asarray(1j)},
            {name: negative},
            {name: np.full(array.shape, np.nan)},
            {name: np.full(array.shape, 1e300)},
            None,
        )
    )
    file = io.BytesIO()
    np.savez(file, **arrays, **(changed or {}))
    if changed is None:
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(f"{name}.npy", b"\x93NUMPY and no more")
    return file.getvalue()


def outcome(call: Callable[[], T], names: str, content: object, *, longest: int = 4000) -> T | None:
    """Return what a call returns, or None after a ConfigError of one line that has ``names``."""
    try:
        return call()
    except ConfigError as error:
        line = str(error)
        if names in line and line.isprintable() and len(line) < longest and "Traced" not in line:
            return None
        pytest.fail(f"{line[:500]!r} from {content!r:.300}")
    except BaseException as error:
        error.add_note(f"from {content!r:.300}")
        raise
