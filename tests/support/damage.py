"""Damaged copies of a valid file: the same ones for the same seed."""

import io
import json
import zipfile
from typing import Any

import numpy as np

DEEP = 3000
# What a field may not be, or may be only by chance.
VALUES: tuple[Any, ...] = (
    None, True, "", "text", "two\nlines", "\0", "\ud800", -1, 0, 2**31, 2**63, 10**400, -0.5,
    1e39, 1e308, float("nan"), float("inf"), [], [[]], {}, [None], {"a": 1},
)  # fmt: skip


def flipped(content: bytes, seed: int) -> bytes:
    """Cut off, overwritten, lengthened, or with bytes that no text has."""
    rng = np.random.default_rng(seed)
    data = bytearray(content)
    place = int(rng.integers(len(data)))
    kind = seed % 6
    if kind == 0:
        return bytes(data[:place])
    if kind == 1:
        data[place] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        data[place : place + 8] = bytes(8)
    elif kind == 3:
        data[place:place] = b"\xff\xfe\0"
    elif kind == 4:
        for each in rng.integers(len(data), size=5):
            data[each] = int(rng.integers(256))
    else:
        other = int(rng.integers(len(data)))
        data[place : place + 40] = data[other : other + 40]
    return bytes(data)


def rewritten(content: bytes, seed: int) -> bytes:
    """JSON with a field of another kind, without one, with one more, or nested too deeply."""
    rng = np.random.default_rng(seed)
    table = json.loads(content)
    place: Any = table
    key: Any = str(rng.choice(list(table)))
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
        place = place[key]
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(rng.integers(len(keys)))]
    kind = seed % 4
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place["another"] = VALUES[int(rng.integers(len(VALUES)))]
    elif kind == 2 and seed % 20 == 2:
        text = json.dumps(table).replace(json.dumps(place[key]), "[" * DEEP + "]" * DEEP, 1)
        return text.encode()
    else:
        place[key] = VALUES[int(rng.integers(len(VALUES)))]
    return json.dumps(table).encode()


def repacked(content: bytes, seed: int) -> bytes:
    """An npz file of which a member has other values, another kind or shape, or is no array."""
    rng = np.random.default_rng(seed)
    with np.load(io.BytesIO(content)) as archive:
        arrays = dict(archive)
    name = sorted(arrays)[int(rng.integers(len(arrays)))]
    array = arrays[name]
    number = array.dtype.kind in "iufb"
    changes = {
        "missing": lambda: None,
        "reshaped": lambda: array[None],
        "longer": lambda: np.concatenate([np.atleast_1d(array)] * 2),
        "empty": lambda: np.atleast_1d(array)[:0],
        "a text": lambda: np.asarray("text"),
        "of bytes": lambda: np.frombuffer(array.tobytes() + b"\0", np.uint8),
        "complex": lambda: array.astype(complex) if number else np.asarray(1j),
        "negative": lambda: (
            np.full(array.shape, -100 if number else "-100", array.dtype)
            if array.dtype.kind not in "ub"
            else ~array
        ),
        "NaN": lambda: np.full(array.shape, np.nan),
        "huge": lambda: np.full(array.shape, 1e300),
    }
    kinds = [*changes, "no array", "renamed", "another file"]
    kind = kinds[seed % len(kinds)]
    if kind in changes:
        changed = changes[kind]()
        arrays = {key: value for key, value in arrays.items() if key != name}
        arrays |= {} if changed is None else {name: changed}
    elif kind == "renamed":
        arrays[f"{name}0"] = arrays.pop(name)
    elif kind == "another file":
        arrays = {"x": np.zeros(3)}
    file = io.BytesIO()
    if kind == "no array":
        del arrays[name]
    np.savez(file, **arrays)
    if kind == "no array":
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(f"{name}.npy", b"\x93NUMPY and no more")
    return file.getvalue()
