"""The measured phones: as fast as those of FLHetBench, and there as FLASH's users were."""

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, presets, simulate
from pause_jax.world.availability import Phones
from pause_jax.world.latency import Network

K = 4000
# Of 710 users of FLASH: quantiles of the share of the time (see `Phones`).
QUANTILES = {0.25: 0.013, 0.5: 0.055, 0.75: 0.131, 0.9: 0.255, 0.95: 0.324}


def test_phone_latencies_match_the_measurements():
    amounts = {"download_bytes": 1e6, "upload_bytes": 0.0, "samples": 0.0}
    network = Network(path="phones", **amounts, min_latency=1e-3).loaded()
    down = np.asarray(network._of_clients(K)[0]).sum(axis=1)
    assert np.median(8 / down) == pytest.approx(4.6, abs=0.5)  # Mbit/s
    computing = network.replace(download_bytes=0.0, samples=1.0)
    seconds = np.asarray(computing._of_clients(K)[0]).sum(axis=1)
    assert np.quantile(seconds, [0.05, 0.5, 0.95]) == pytest.approx([0.066, 0.166, 0.556], rel=0.2)
    # A phone's compute says nothing of its network.
    assert abs(np.corrcoef(np.log(seconds), np.log(down))[0, 1]) < 0.03
    assert network.digest != Network(**amounts).loaded().digest


def test_user_file_with_a_bundled_name_is_distinct(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phones").write_text("x")
    Network(path="phones").loaded()
    with pytest.raises(ConfigError, match="must have the columns device"):
        Network(path="./phones").loaded()


@pytest.fixture(scope="module")
def week():
    """Who is there, bool [T, K], every ten minutes of a week, and the hours."""
    trace, step = Phones(), 600.0
    hours = np.arange(0, 7 * 24, step / 3600)

    def one(state, clock):
        here, state = trace.step(state, jax.random.fold_in(jax.random.key(1), clock), clock, K)
        return state, here

    @jax.jit
    def whole(clocks):
        return jax.lax.scan(one, trace.init(jax.random.key(0), K), clocks)[1]

    return np.asarray(whole(np.asarray(hours * 3600, np.float32))), hours


def test_phone_availability_matches_flash(week):
    here, hours = week
    shares = here.mean(axis=0)
    assert shares.mean() == pytest.approx(0.095, rel=0.05)
    for quantile, share in QUANTILES.items():
        assert np.quantile(shares, quantile) == pytest.approx(share, abs=0.042)
    by_hour = [here[(hours % 24 // 1) == hour].mean() for hour in range(24)]
    assert np.argmax(by_hour) in (3, 4, 5)
    assert [max(by_hour), min(by_hour)] == pytest.approx([0.137, 0.065], rel=0.15)
    # The same days for all: a constant share would not swing.
    assert max(by_hour) / min(by_hour) > 1.7


def test_stretch_lengths_are_independent_of_round_lengths(week):
    here, _ = week
    # A phone that is there leaves at the rate 1 / 1931 s; within ten minutes it may come back.
    stays = (here[1:] & here[:-1]).sum() / here[:-1].sum()
    long = Phones(stretch=1931.0)
    share = np.clip(-np.log1p(-(np.arange(K) * 2**0.5 % 1)) * 0.095, 0, 0.999)
    back = share + (1 - share) * np.exp(-600 / (1931 * (1 - share)))
    assert stays == pytest.approx((share * back).sum() / share.sum(), abs=0.01)
    # After no time nobody has left or come, after a long time all are as at first.
    state = jax.jit(long.init, static_argnums=1)(jax.random.key(0), K)
    step, first = jax.jit(long.step, static_argnums=3), np.asarray(state[0])
    same, _ = step(state, jax.random.key(1), np.float32(0.0), K)
    np.testing.assert_array_equal(same, first)
    later, _ = step(state, jax.random.key(1), np.float32(7 * 86_400.0), K)
    both = (np.asarray(later) & first).mean()
    midnight = 1 + 0.36 * np.cos(2 * np.pi * 4 / 24)
    assert both == pytest.approx(float(np.mean((share * midnight) ** 2)), rel=0.3)
    assert both < 0.5 * first.mean()


@pytest.mark.slow
def test_phone_preset_has_few_available_clients():
    config = presets.phones("random").replace(num_rounds=40, learning=None, track_regret=False)
    config = config.override({"latency.samples": 50.0})
    result = simulate(config, jax.random.key(0), record=("clients", "clock"))
    result = jax.device_get(result)
    assert result.clients.max() > 100
    # Five of about twenty phones that are there, and minutes for each round.
    seconds = np.diff(result.clock)
    assert 150 < np.median(seconds) < 600
    chosen = len(np.unique(result.clients))
    assert 15 < chosen < 150
