"""The command line, called in the process of a test."""

import sys

import pytest

from pause_jax import cli


def run(*arguments: object) -> int:
    """Run ``pause-jax`` with these arguments and return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pause-jax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return int(stop.value.code or 0)
