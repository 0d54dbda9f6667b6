"""Fixtures of tests that need Flower (``make flower``). Without it, no test is collected."""

import importlib.util
import warnings

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]

if not collect_ignore_glob:
    with warnings.catch_warnings():
        # Flower and what it needs, not what they do here.
        warnings.simplefilter("ignore")
        import flwr.clientapp
        import flwr.serverapp.strategy  # noqa: F401


@pytest.fixture
def warned(monkeypatch):
    """Texts of the warnings that the strategy and the mod log."""
    from pause_jax.deploy.flower.protocol import LOG

    texts: list[str] = []
    monkeypatch.setattr(LOG, "warning", lambda text, *values: texts.append(text % values))
    return texts
