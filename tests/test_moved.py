"""Import paths of version 0.2 work for one release, with a warning."""

import importlib
import sys

import pytest

from pause_jax import _moved


@pytest.fixture
def forgotten():
    """Old names are imported as for the first time, and forgotten afterwards."""

    def forget() -> None:
        for name in [name for name in sys.modules if _moved.moved_to(name)]:
            del sys.modules[name]

    forget()
    yield
    forget()


@pytest.mark.parametrize("old", sorted(_moved.MOVED))
def test_an_old_name_is_the_same_module_with_a_warning(old, forgotten):
    name = f"pause_jax.{old}"
    parent = name.rpartition(".")[0]
    if _moved.moved_to(parent):
        with pytest.warns(DeprecationWarning, match="moved"):
            importlib.import_module(parent)
    with pytest.warns(DeprecationWarning, match=f"{name} moved: import pause_jax"):
        module = importlib.import_module(name)
    if old != "engine":
        assert module is importlib.import_module(f"pause_jax.{_moved.MOVED[old]}")


def test_a_class_of_an_old_name_is_the_same_class(forgotten):
    with pytest.warns(DeprecationWarning, match="moved"):
        from pause_jax.engine.round import play  # type: ignore[import-not-found]
    with pytest.warns(DeprecationWarning, match="moved"):
        from pause_jax.presence import OnOff  # type: ignore[import-not-found]
    from pause_jax.run import round
    from pause_jax.world import availability

    assert play is round.play
    assert OnOff is availability.OnOff


def test_a_public_name_is_the_rooms(recwarn):
    from pause_jax import latency, reward
    from pause_jax.bandit import reward as reward_room
    from pause_jax.world import latency as latency_room

    assert {name: getattr(latency, name) for name in latency_room.__all__} == {
        name: getattr(latency_room, name) for name in latency_room.__all__
    }
    assert reward.Reward is reward_room.Reward
    assert not recwarn.list


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="attic"):
        importlib.import_module("pause_jax.attic")
