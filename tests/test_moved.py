"""Import paths and names of version 0.2 work for one release, with a warning."""

import importlib
import sys
import warnings

import pytest

import pause_jax
from pause_jax import ConfigError, SimConfig, _moved, bandit, config_file, policies
from pause_jax.world import availability
from pause_jax.world.availability import AvailabilityTrace, OnOff


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


def test_fields_and_values_of_before_are_taken():
    trace = OnOff(leave=0.3)
    now = SimConfig(availability_trace=trace, stale_updates="next", when_spent="drop")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        old = SimConfig(**{"presence": trace, "late": "next", "when_spent": "silent"})
        replaced = SimConfig().replace(late="next")
        overridden = now.override({"presence.leave": 0.4})
        read = config_file.loads('when_spent = "silent"\n[presence]\nname = "on_off"\n')
        attribute = getattr(overridden, "presence")  # noqa: B009
    said = {str(each.message).partition(". ")[0] for each in warned}
    assert said == {
        "presence is now availability_trace",
        "late is now stale_updates",
        "when_spent = 'silent' is now 'drop'",
    }
    assert old == now
    assert replaced.stale_updates == "next"
    assert attribute == overridden.availability_trace == OnOff(leave=0.4)
    assert (read.when_spent, read.availability_trace) == ("drop", OnOff())
    assert "presence" not in config_file.dumps(now)


def test_an_unknown_field_is_refused_as_ever(recwarn):
    with pytest.raises(ConfigError, match="latness"):
        SimConfig().replace(latness="next")
    with pytest.raises(AttributeError, match="latness"):
        getattr(SimConfig(), "latness")  # noqa: B009
    assert SimConfig().stale_updates == "lost"
    assert not recwarn.list


def test_names_of_before_are_read():
    with pytest.warns(DeprecationWarning, match="play_shard is now run_shard"):
        assert pause_jax.play_shard is pause_jax.run_shard
    with pytest.warns(DeprecationWarning, match="AvailabilityTrace"):
        assert availability.Presence is AvailabilityTrace
    with pytest.raises(AttributeError, match="Absence"):
        getattr(availability, "Absence")  # noqa: B009
    seen = bandit.Observation(1.0, 1.0, 1.0, 1.0, received=False)
    with pytest.warns(DeprecationWarning, match=r"Observation.heard is now received"):
        assert seen.heard is False
    answer = policies.Answer(1.0, 1.0, reported=False)
    with pytest.warns(DeprecationWarning, match=r"Answer.told is now reported"):
        assert answer.told is False


def test_a_trace_with_begin_is_initialised_by_it():
    with pytest.warns(DeprecationWarning, match="Old.begin is now init"):

        class Old(AvailabilityTrace):
            def begin(self, key, num_clients):
                return num_clients

    assert Old().init(None, 7) == 7
