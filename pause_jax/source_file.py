"""Files that a config names: read once when a run starts, known by their digest ever after."""

from __future__ import annotations

import csv
import hashlib
import pathlib

from pause_jax.struct import ConfigError


def read(where: str, path: str, digest: str) -> tuple[bytes, str]:
    """A file's content and its SHA-256.

    Args:
      where: the config's part that names it, such as ``latency``, for messages.
      path: the file; if relative, to the working directory.
      digest: what the SHA-256 must be; empty for any.

    Raises:
      ConfigError: if it cannot be read, or is another file than the digest's.
    """
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}.path = {path!r}: cannot be read ({error.strerror}).") from None
    found = hashlib.sha256(content).hexdigest()
    if digest not in ("", found):
        raise ConfigError(
            f"{where}.digest = {digest!r}: must be that of {path!r}, which is {found!r}. The file "
            f"has changed since; set {where}.digest to '' to take it as it is."
        )
    return content, found


def table(where: str, content: bytes) -> list[list[str]]:
    """The rows of a CSV file.

    Raises:
      ConfigError: if it is not text in UTF-8.
    """
    try:
        return list(csv.reader(content.decode("utf-8-sig").splitlines()))
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: must be a CSV file in UTF-8.") from None
