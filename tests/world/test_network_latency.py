"""Latency from bytes and samples: what a round is made of, by a table of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax import ConfigError, Learning, SimConfig, simulate
from pause_jax.learning import Dataset, Digits, Linear, Natural
from pause_jax.policies import All
from pause_jax.privacy import NoPrivacy
from pause_jax.world.latency import Network, Work
from tools import devices

pytestmark = pytest.mark.slow

KEY = jax.random.key(2)
HEADER = (
    "device,share,sample_seconds,sample_spread,download_mbit,download_spread,upload_mbit,"
    "upload_spread"
)
# Without spread a round takes what the arithmetic says.
STILL = f"{HEADER}\nfast,0.25,0.001,0,80,0,8,0\nslow,0.75,0.01,0,8,0,0.8,0\n"


drawn, seconds_expected, speed_expected = (
    jax.jit(method, static_argnames="num_clients")
    for method in (Network.sample, Network.expected_latency, Network.expected_speed)
)


@pytest.fixture
def still(file):
    path = file(STILL)
    return Network(path=path)


def seconds_of(fast, samples, down, up):
    compute, receive, send = (0.001, 80e6, 8e6) if fast else (0.01, 8e6, 0.8e6)
    return 8 * down / receive + compute * samples + 8 * up / send


def test_seconds_are_the_sum_of_download_compute_and_upload(still):
    model = still.replace(download_bytes=1e6, upload_bytes=2e5, samples=100.0)
    found = np.asarray(drawn(model, KEY, num_clients=400))
    fast, slow = seconds_of(True, 100, 1e6, 2e5), seconds_of(False, 100, 1e6, 2e5)
    assert (fast, slow) == pytest.approx((0.1 + 0.1 + 0.2, 1 + 1 + 2))
    is_fast = found < 1
    np.testing.assert_allclose(found, np.where(is_fast, fast, slow), rtol=1e-5)
    # A quarter of all, and of every stretch of them.
    assert is_fast.sum() == pytest.approx(100, abs=1)
    assert all(8 <= part.sum() <= 12 for part in is_fast.reshape(10, 40))
    few = np.asarray(drawn(model, KEY, num_clients=40))
    np.testing.assert_allclose(seconds_expected(model, num_clients=40), few, rtol=1e-5)
    np.testing.assert_allclose(speed_expected(model, num_clients=40), 0.05 / few, rtol=1e-5)


def test_run_uses_model_bytes_and_training_samples(still):
    config = SimConfig(
        num_clients=8, num_rounds=2, policy=All(), latency=still, privacy=NoPrivacy(),
        track_regret=False,
        learning=Learning(
            partition=Natural(), model=Linear(), batch_size=4, max_steps=5, optimizer="sgd",
        ),
    )  # fmt: skip
    owner = np.repeat(np.arange(8), [3, 7, 12, 15, 18, 25, 40, 60])
    digits = Digits().load()
    data = Dataset.of(digits.x_train[:180], digits.y_train[:180], clients=owner, pixel_max=16)
    # Updates are compressed: what is fixed is what is counted.
    config = config.override({"latency.upload_bytes": 260.0})
    record = ("data_size", "latency", "downloaded", "uploaded")
    result = jax.device_get(simulate(config, KEY, data, record=record))
    samples = np.minimum(result.data_size, 20)
    assert samples.min() < 20 < result.data_size.max()
    fast = np.asarray(
        drawn(still.replace(download_bytes=0.0, upload_bytes=1e6, samples=1.0), KEY, num_clients=8)
    )
    slowest = max(seconds_of(fast[k] < 5, samples[k], 2600, 260) for k in range(8))
    np.testing.assert_allclose(result.latency, slowest, rtol=1e-5)
    np.testing.assert_array_equal(result.downloaded, 8 * 2600.0)
    np.testing.assert_array_equal(result.uploaded, 8 * 260.0)


def test_each_line_is_a_client_without_column_share(file):
    lines = [HEADER.replace("share,", "")]
    lines += [f"c{k},0.{k + 1},0,1000,0,1000,0" for k in range(5)]
    path = file("\n".join(lines))
    model = Network(path=path, download_bytes=0.0, upload_bytes=0.0, samples=1.0)
    np.testing.assert_allclose(
        drawn(model, KEY, num_clients=5), [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6
    )
    config = SimConfig(num_clients=6, num_selected=2, learning=None, latency=model)
    with pytest.raises(ConfigError, match=r"has 5 lines for num_clients = 6"):
        simulate(config, KEY)


def expectation(of, median, spread, kink):
    """E[of(sum of three log-normals)] in float64; the most varying part is split at the kink."""
    order = np.argsort(np.multiply(median, spread))
    median, spread = (np.asarray(x, float)[order] for x in (median, spread))
    z = np.linspace(-8, 8, 81)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    spent = np.add.outer(*(median[i] * np.exp(spread[i] * z) for i in (0, 1)))[..., None]
    with np.errstate(divide="ignore"):
        at = np.log(np.maximum(kink - spent, 0) / median[2]) / max(spread[2], 1e-9)
    at, (node, rule) = np.clip(at, -8, 8), np.polynomial.legendre.leggauss(24)
    inner = 0.0
    for low, high in ((-8, at), (at, 8)):
        noise = low + (high - low) / 2 * (1 + node)
        value = of(spent + median[2] * np.exp(spread[2] * noise)) * stats.norm.pdf(noise)
        inner = inner + ((high - low) / 2 * rule * value).sum(axis=-1)
    return weight @ inner @ weight


PARTS = [
    ((0.4, 0.8, 2.7), (0.2, 0.7, 0.7)), ((2.0, 0.8, 0.8), (0.2, 0.5, 0.5)),
    ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)), ((2.0, 0.1, 1.0), (0.3, 1.0, 0.8)),
    ((3.0, 0.1, 0.1), (0.1, 0.2, 0.2)), ((1.0, 1.0, 1.0), (0.0, 0.3, 0.0)),
]  # fmt: skip


@pytest.mark.parametrize("least", [2.7, 6.0])
def test_expectations_match_a_quadrature_split_at_min_latency(file, least):
    lines = [
        f"c,{m[0]},{s[0]},{8 / m[1]},{s[1]},{8 / m[2]},{s[2]}" for m, s in PARTS
    ]  # a MB in m seconds
    path = file("\n".join([HEADER.replace("share,", ""), *lines]))
    model = Network(path=path, download_bytes=1e6, upload_bytes=1e6, samples=1.0, min_latency=least)
    speed = [expectation(lambda x: least / np.maximum(least, x), *part, least) for part in PARTS]
    np.testing.assert_allclose(speed_expected(model, num_clients=len(PARTS)), speed, atol=1e-5)
    seconds = [expectation(lambda x: np.maximum(least, x), *part, least) for part in PARTS]
    found = seconds_expected(model, num_clients=len(PARTS))
    np.testing.assert_allclose(found, seconds, rtol=1e-5)


def test_each_part_has_its_own_spread(file):
    draws = {}
    for part in ("sample", "download", "upload"):
        spread = dict.fromkeys(("sample", "download", "upload"), 0.0) | {part: 0.5}
        sample, down, up = spread.values()
        path = file(f"{HEADER}\none,1,0.01,{sample},8,{down},8,{up}\n", f"{part}.csv")
        # Medians of 1, 2 and 4 seconds; one of them varies.
        model = Network(path=path, download_bytes=2e6, upload_bytes=4e6, samples=100.0)
        median = {"sample": 1.0, "download": 2.0, "upload": 4.0}[part]
        draws[part] = np.asarray(model.sample(KEY, 20_000)) - 7.0 + median
        logs = np.log(draws[part])
        assert logs.mean() == pytest.approx(np.log(median), abs=0.02)
        assert logs.std() == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(draws["sample"], draws["upload"])[0, 1]) < 0.05


def test_expectations_are_correct_beyond_one_integration_batch():
    model = Network(download_bytes=1e6, upload_bytes=1e6, samples=30.0)
    few, many = (speed_expected(model, num_clients=number) for number in (20, 300))
    np.testing.assert_allclose(few, many[:20], rtol=1e-6)


@pytest.mark.parametrize("name", ["devices", "phones"])
def test_bundled_tables_match_their_generator(name):
    content = {"devices": devices.table, "phones": devices.phones}[name]()
    assert (devices.FOLDER / f"{name}.csv").read_text(encoding="utf-8") == content
    shares = [float(line.split(",")[1]) for line in content.splitlines()[1:]]
    assert sum(shares) == pytest.approx(1, abs=1e-3)


def test_models_without_work_fields_pass_work_on():
    from pause_jax.world.latency import LogNormal

    work = Work(4.0, 8.0, jnp.ones(3))
    assert LogNormal().with_work(work) == (LogNormal(), work)


BAD = [
    ("", r"must have the columns device, sample_seconds"),
    (HEADER.replace("upload_mbit", "up"), r"must have the columns"),
    (HEADER, r"must have at least one device"),
    (f"{HEADER}\na,1,0.1,0,8,0,8\n", r"line 2, .*: must have 8 cells"),
    (f"{HEADER}\na,1,0.1,0,8,0,0,0\n", r"line 2, upload_mbit = '0': must be a float32 number > 0"),
    (f"{HEADER}\na,1,x,0,8,0,8,0\n", r"sample_seconds = 'x': must be a float32 number >= 0"),
    (f"{HEADER}\na,1,1e300,0,8,0,8,0\n", r"sample_seconds = '1e300': must be a float32 number"),
    (f"{HEADER}\na,1,0.1,100,8,0,8,0\n", r"sample_spread = '100': must be .* <= 10"),
    (f"{HEADER}\na,1,0.1,-1,8,0,8,0\n", r"sample_spread = '-1'"),
    (f"{HEADER}\na,nan,0.1,0,8,0,8,0\n", r"share = 'nan': must be a float32 number > 0"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_invalid_device_table_is_refused_in_one_line(content, message, file):
    path = file(content)
    config = SimConfig(learning=None, latency=Network(path=path, download_bytes=1.0))
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(config, KEY)
    assert "\n" not in str(caught.value)


def test_run_without_a_model_requires_the_bytes():
    config = SimConfig(learning=None, latency=Network())
    with pytest.raises(ConfigError, match=r"latency.download_bytes = None: .* has no model"):
        simulate(config, KEY)
    with pytest.raises(
        ConfigError, match=r"latency.samples = None: the default is determined by the run"
    ):
        Network(download_bytes=1.0, upload_bytes=1.0).sample(KEY, 3)
