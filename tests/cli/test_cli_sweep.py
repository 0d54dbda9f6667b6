"""The command ``pause-jax sweep``: the grid, and what is refused before any run."""

import importlib
import itertools

import pytest
import xarray as xr

from pause_jax import ConfigError, config_file, presets
from pause_jax.cli.settings import grid
from pause_jax.policies import Random
from pause_jax.privacy import PerCoordinateLaplace
from tests.support.command import run


def test_grid_has_every_combination_with_its_label():
    base = presets.digits_small()
    configs = grid(base, ["reward.gamma=0, 1e1", "policy=random,pause", "privacy.sensitivity=0.01"])
    assert list(configs) == [
        f"gamma = {gamma}, policy = {policy}, sensitivity = 0.01"
        for gamma in ("0", "1e1")
        for policy in ("random", "pause")
    ]
    second = configs["gamma = 1e1, policy = random, sensitivity = 0.01"]
    assert second.reward.gamma == 10
    assert isinstance(second.policy, Random)
    assert isinstance(second.privacy, PerCoordinateLaplace)
    assert second.privacy.sensitivity == 0.01
    assert list(grid(base, [])) == ["pause"]
    same = grid(base, ["policy.search=exact", "privacy.budget.decay=0.1", "learning.model=linear"])
    assert list(same) == ["search = exact, decay = 0.1, model = linear"]
    two = presets.digits_small("sa_pause")
    paths = ["policy.search.cooling=1", "policy.index.speed_weight=1", "privacy.budget.decay=1"]
    assert list(grid(two, paths)) == ["cooling = 1, speed_weight = 1, decay = 1"]


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        (["reward.gamma"], "--vary reward.gamma: must be PATH=A,B"),
        (["reward.gamma="], "must be PATH=A,B"),
        (["reward.gamma=1,,2"], "must be PATH=A,B"),
        (["reward.gamma=1,1"], "listed twice"),
        (["reward.gamma=1", "reward.gamma=2"], "reward.gamma is varied twice"),
        (["reward.gama=1"], "Reward has no field 'gama'. Did you mean 'gamma'"),
    ],
)
def test_a_bad_grid_is_refused(vary, words):
    with pytest.raises(ConfigError, match=words):
        grid(presets.digits_small(), vary)


@pytest.mark.slow
def test_sweep_of_file_has_values_as_coordinates(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = presets.digits_small("random").replace(learning=None, num_rounds=4, track_regret=False)
    (tmp_path / "mine.toml").write_text(config_file.dumps(config))
    arguments = ("--vary", "reward.gamma=0,1,5", "--seeds", "2", "--no-figures", "--no-report")
    assert run("sweep", "mine.toml", *arguments) == 0
    data = xr.load_dataset(tmp_path / "results" / "sweep-mine" / "data.nc")
    assert data["reward.gamma"].values.tolist() == [0, 1, 5]
    assert data.sizes["seed"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunks", "files"),
    [(0, set()), (1, {"data.nc", "summary.csv", "unfinished"})],
)
def test_interrupt_keeps_finished_runs_and_no_empty_folder(
    monkeypatch, tmp_path, capsys, chunks, files
):
    # The package has a function of that name, which a plain import would find.
    module = importlib.import_module("pause_jax.sweeps.execute")
    run_chunks, played = module.run_chunks, itertools.count()

    def interrupted(*args):
        if chunks == 0:
            raise KeyboardInterrupt
        for part in run_chunks(*args):
            if next(played) == chunks:
                raise KeyboardInterrupt
            yield part

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "run_chunks", interrupted)
    vary = ("--vary", "policy=random,round_robin", "--set", "learning=none")
    quick = ("--set", "track_regret=false", "--set", "num_rounds=4")
    arguments = (*vary, *quick, "--seeds", "2", "--name", "mine", "--no-figures")
    assert run("sweep", "digits_small", *arguments) == 130
    assert "configs (Ctrl-C)." in " ".join(capsys.readouterr().err.split())
    folder = tmp_path / "results" / "mine"
    assert folder.exists() == bool(files)
    assert files <= {path.name for path in folder.glob("*")}
