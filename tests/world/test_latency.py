import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pause_jax import ConfigError, SimConfig, presets, sweep
from pause_jax.config import validate
from pause_jax.policies import Random, RoundRobin
from pause_jax.world.latency import (
    LATENCIES,
    LinearContext,
    LogNormal,
    Network,
    Pareto,
    ShiftedExponential,
    SpacedLatency,
    SpeedNormal,
    Switching,
    TenGroups,
    Traces,
    TwoGroups,
)
from tests.reference import oracles

pytestmark = pytest.mark.slow

# Of all tests where it does not matter, so that they share programs.
K, ROUNDS = 7, 4000
# Those with a law in closed form; the others have tests of their own.
MODELS = [
    model() for model in LATENCIES if model not in (Traces, LinearContext, Switching, Network)
]
MEASURED = Traces.of(np.random.default_rng(0).gamma(2.0, 0.3, (K, 40)))
PHONES = Network(download_bytes=1e6, upload_bytes=1e6, samples=50.0)
GIVEN = {Traces: MEASURED, Network: PHONES}
ALL = [GIVEN.get(model) or model() for model in LATENCIES]
by_name = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
everyone = pytest.mark.parametrize("model", ALL, ids=lambda model: model.name)
# What spreads a model's latencies.
WIDTH: dict[type, str] = {LogNormal: "sigma", ShiftedExponential: "straggling", Pareto: "shape"}


@partial(jax.jit, static_argnums=1)
def moments(model, num_clients):
    return model.expected_speed(num_clients), model.expected_latency(num_clients)


@partial(jax.jit, static_argnums=(2, 3))
def draw(model, key, num_clients, rounds):
    keys = jax.random.split(key, rounds)
    return jax.vmap(lambda key: model.sample(key, num_clients))(keys)


def many_draws(model):
    """Latencies [52,000, K] by the program of 4,000."""
    return np.concatenate([draw(model, jax.random.key(seed), K, ROUNDS) for seed in range(3, 16)])


two_groups_mean, ten_groups_mean = (
    jax.jit(model().mean, static_argnums=0) for model in (TwoGroups, TenGroups)
)


def speed_means(model, num_clients):
    return np.linspace(model.fastest, model.slowest, num_clients)


def group_means(model, num_clients):
    return np.array([model.slowest * (k * 10 // num_clients + 1) / 10 for k in range(num_clients)])


def published(draw, low):
    """Latency of a drawn speed in BSFL's programs: clip(tau_min / draw, tau_min, 1)."""
    with np.errstate(divide="ignore"):
        return np.clip(low / np.asarray(draw, np.float64), low, 1.0)


def normal(model, num_clients):
    """Both moments in float64 where the latency is a function of a normal draw."""
    low = model.min_latency
    edges: tuple[float, ...]
    if isinstance(model, SpeedNormal):
        means, edges = speed_means(model, num_clients), (0.0, low, 1.0)

        def latency(draw):
            return float(published(draw, low))
    else:

        def latency(seconds):
            return max(low, seconds)

        pick = oracles.two_groups_mean if isinstance(model, TwoGroups) else None
        means = pick(num_clients) if pick else group_means(model, num_clients)
        edges = (low,)
    return [
        [oracles.normal_moment(f, mean, model.std, edges) for mean in means]
        for f in (lambda x: low / latency(x), latency)
    ]


def tailed(model, num_clients):
    """Both moments in float64 where the latency is a function of a normal or exponential draw."""
    low, moments = math.log(model.min_latency), []
    for power in (-1, 1):
        found = []
        for scale in np.geomspace(model.fastest, model.slowest, num_clients):
            scale = math.log(scale)
            if isinstance(model, LogNormal):
                of = partial(of_seconds, power, low, lambda y: y)
                value = oracles.normal_moment(of, scale, model.sigma, (low,))
            elif isinstance(model, Pareto):
                of = partial(of_seconds, power, low, lambda e, s=scale: s + e / model.shape)
                value = oracles.exponential_moment(of, (low - scale) * model.shape)
            else:
                of = partial(
                    of_seconds, power, low, lambda e, s=scale: s + math.log1p(model.straggling * e)
                )
                value = oracles.exponential_moment(of, math.expm1(low - scale) / model.straggling)
            found.append(value)
        moments.append(found)
    return moments


def of_seconds(power, low, log_latency, draw):
    """tau (power 1) or tau_min / tau (power -1) after the cut; logarithms do not overflow."""
    log_seconds = max(low, log_latency(draw))
    return math.exp(log_seconds if power > 0 else low - log_seconds)


def quadrature(model, num_clients):
    """(E[tau_min / tau], E[tau]) of every client, from the definition of the model's latency."""
    law = tailed if isinstance(model, SpacedLatency) else normal
    return tuple(map(np.array, law(model, num_clients)))


@pytest.mark.parametrize("num_clients", [30, 7, 2, 1])
def test_two_groups_means_match_the_paper(num_clients):
    expected = oracles.two_groups_mean(num_clients)
    np.testing.assert_allclose(two_groups_mean(num_clients), expected, rtol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(two_groups_mean(num_clients), expected, rtol=1e-14)


@pytest.mark.parametrize("num_clients", [500, 10, 23])
def test_ten_groups_means(num_clients):
    mean = np.asarray(ten_groups_mean(num_clients))
    tenths, sizes = np.unique(np.round(mean * 10, 4), return_counts=True)
    np.testing.assert_allclose(tenths, np.arange(1, 11))
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(mean) >= 0).all()
    np.testing.assert_allclose(mean, group_means(TenGroups(), num_clients), rtol=1e-6)


@by_name
@pytest.mark.parametrize("num_clients", [K, 1])
def test_moments_match_quadrature(model, num_clients):
    expected = quadrature(model, num_clients)
    for found, value in zip(moments(model, num_clients), expected, strict=True):
        assert found.shape == (num_clients,)
        np.testing.assert_allclose(found, value, rtol=3e-6)
    if num_clients == 1:
        return  # an edge of the means, not of the precision
    with jax.enable_x64(True):
        for found, value in zip(moments(model, num_clients), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-8)


@by_name
@settings(max_examples=12)
@given(low=st.floats(0.02, 0.3), width=st.floats(0.01, 0.6))
def test_moments_match_quadrature_for_any_parameters(model, low, width):
    # A shape of 1.5 to 31.
    spread = 1 + 0.3 / width if isinstance(model, Pareto) else width
    model = model.replace(min_latency=low, **{WIDTH.get(type(model), "std"): spread})
    with jax.enable_x64(True):
        found = moments(model, K)
    for value, expected in zip(found, quadrature(model, K), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_moments_are_correct_at_extreme_parameters():
    for model in (
        LogNormal(sigma=5.0),
        LogNormal(sigma=0.01, fastest=1e-3),
        ShiftedExponential(straggling=1e3),
        ShiftedExponential(straggling=1e-3),
        Pareto(shape=1.1),
        Pareto(shape=50.0, fastest=1e-3),
    ):
        for found, value in zip(moments(model, K), quadrature(model, K), strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-5, err_msg=str(model))


def test_moments_of_switching_clients_are_means_over_their_places():
    # With an odd number of clients everybody is everywhere.
    for found, value in zip(moments(Switching(), K), quadrature(LogNormal(), K), strict=True):
        np.testing.assert_allclose(found, np.full(K, value.mean()), rtol=3e-6)


@pytest.mark.parametrize("model", [m for m in ALL if not m.varies], ids=lambda model: model.name)
def test_moments_match_the_samples(model):
    model = model.replace(shape=4.0) if isinstance(model, Pareto) else model
    latency = many_draws(model).astype(float)
    assert latency.shape == (52_000, K)
    for found, samples in zip(
        moments(model, K), (model.min_latency / latency, latency), strict=True
    ):
        standard_error = samples.std(axis=0) / np.sqrt(len(latency))
        # The second term is for clients whose latency hardly varies in float32.
        allowed = 5 * standard_error + 1e-6
        expected = np.asarray(found, float)
        assert (np.abs(samples.mean(axis=0) - expected) < allowed).all()
        # The control: means that are 5 % off are told apart.
        assert (np.abs(samples.mean(axis=0) - 1.05 * expected) > allowed).all()


@everyone
def test_each_client_has_one_sample_of_at_least_tau_min(model):
    latency = np.asarray(draw(model, jax.random.key(0), K, ROUNDS))
    assert latency.shape == (ROUNDS, K)
    assert (latency >= np.float32(model.min_latency)).all()
    assert np.isfinite(latency).all()
    if isinstance(model, SpeedNormal):
        assert (latency <= 1).all()
        assert latency.max() > 0.9
    # So that the cut is not only where nothing is: most of what a client would take lies below.
    late = model.replace(min_latency=0.9)
    cut = np.asarray(draw(late, jax.random.key(0), K, ROUNDS))
    assert cut.min() == np.float32(0.9)


@everyone
def test_samples_depend_on_the_key_and_clients_are_independent(model):
    one, again, other = (np.asarray(draw(model, jax.random.key(s), K, ROUNDS)) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    # Of the ranks: a long tail's correlation has no normal error.
    ranks = one.argsort(axis=0).argsort(axis=0)
    correlation = np.corrcoef(ranks, rowvar=False) - np.eye(K)
    assert np.abs(correlation).max() < 5 / np.sqrt(ROUNDS)
    serial = [np.corrcoef(client[:-1], client[1:])[0, 1] for client in ranks.T]
    assert np.abs(serial).max() < 5 / np.sqrt(ROUNDS)


@everyone
def test_moments_trace_every_parameter(model):
    other = jax.tree.map(lambda number: 1.1 * number, model)
    if isinstance(model, SpeedNormal | LinearContext):
        other = jax.tree.map(lambda number: 0.9 * number, model)
    stacked = jax.tree.map(lambda *leaves: np.stack(list(map(np.asarray, leaves))), model, other)
    together = np.stack(jax.vmap(lambda model: moments(model, K))(stacked), axis=1)
    for row, single in zip(together, (model, other), strict=True):
        np.testing.assert_allclose(row, np.stack(moments(single, K)), rtol=1e-5)
    assert not np.allclose(together[0], together[1], rtol=1e-3)


# Those that differ in what a run asks of them. Runs of ``test_whole_round.py`` have other models.
@pytest.mark.parametrize("model", [LinearContext(), Switching(), MEASURED], ids=lambda m: m.name)
def test_policies_with_the_same_key_have_the_same_latencies(model):
    config = SimConfig(
        num_clients=4, num_selected=4, num_rounds=3, latency=model, learning=None,
        track_regret=False,
    )  # fmt: skip
    configs = [config.replace(policy=policy) for policy in (Random(), RoundRobin())]
    clocks = sweep(configs, jax.random.key(0), record=("clock",), progress=False).clock.values
    # All take part: the clock says what the slowest took.
    np.testing.assert_array_equal(clocks[0], clocks[1])
    assert np.all(np.diff(clocks[0]) > 0)


# ---------------------------------------------------------------- the model normal in speed


def test_latency_follows_the_rule_for_the_drawn_speed(monkeypatch):
    model = SpeedNormal()
    draws = np.array([-3.0, -1e-6, 0.0, 1e-6, 0.04, 0.05, 0.3, 1.0, 1.7], np.float32)
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: draws)
    monkeypatch.setattr(SpeedNormal, "mean_speed", lambda self, num_clients: jnp.zeros(num_clients))
    sample = jax.jit(model.replace(std=1.0).sample, static_argnums=1)
    found = sample(jax.random.key(0), draws.size)
    np.testing.assert_allclose(found, published(draws, model.min_latency), rtol=1e-6)


def test_bsfl_preset_is_as_published():
    assert type(presets.bsfl_linear().latency) is SpeedNormal


# ---------------------------------------------------------------- Pareto


@pytest.mark.parametrize("shape", [1.0, 0.5])
def test_pareto_without_a_finite_mean_is_refused(shape):
    config = SimConfig(learning=None, latency=Pareto(shape=shape))
    with pytest.raises(ConfigError, match=rf"latency.shape = {shape}: must be > 1.*infinite"):
        validate(config)
