"""The core under JAX's strict modes, in this process: each is a context."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import simulate, sweep
from pause_jax.config import canonical
from pause_jax.learning import LinearRegression
from pause_jax.policies import POLICIES, FedCs, Oort, PowerOfChoice, Random, RbcsF
from pause_jax.privacy import MECHANISMS, GaussianMechanism, L1Laplace, NoPrivacy
from pause_jax.privacy.budget import BUDGETS
from pause_jax.run.contract import NotFinite
from pause_jax.run.driver import single_run
from pause_jax.run.preflight import prepare
from pause_jax.run.record.result import chosen
from pause_jax.sweeps.plan import one_of
from pause_jax.world.availability import Diurnal
from pause_jax.world.latency import LATENCIES, Traces, Work
from tests.support import modes

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
BANDIT = modes.BANDIT
# optax's Adam raises a float to a whole number, which strict promotion refuses.
LEARN = modes.LEARN.override(
    {
        "learning.optimizer": "sgd",
        "learning.keep_optimizer_state": False,
        "track_regret": False,  # BANDIT has it
    }
)
RULES = LEARN.replace(
    availability_trace=Diurnal(),
    deadline=0.4,
    wait_for=2,
    stale_updates="next",
    dropout=0.1,
    max_seconds=9.0,
)


def traced(config, choices=()):
    """A whole run, traced and not compiled."""
    config, data = prepare(config)
    config = one_of(config, choices)
    return jax.eval_shape(lambda key: single_run(config, data, key, chosen(None)), KEY)


@pytest.fixture
def strict():
    with jax.numpy_dtype_promotion("strict"):
        yield


def test_policies_mix_no_dtypes(strict):
    each = [policy() for policy in POLICIES if not policy.alone]
    sizes = BANDIT.num_clients, BANDIT.num_selected
    choices = tuple(p for p in each if p.cohort_size(*sizes) == sizes[1] and not p.releases)
    assert len(choices) > 5
    traced(BANDIT.replace(policy=choices[0]), choices)
    for policy in (FedCs(), RbcsF()):
        traced(BANDIT.replace(policy=policy))


def test_rounds_and_learning_mix_no_dtypes(strict):
    traced(RULES.replace(policy=Oort()))
    asked = LEARN.replace(policy=PowerOfChoice(), privacy=GaussianMechanism())
    traced(asked.override({"when_spent": "drop", "learning.data": LinearRegression()}))


def test_latencies_and_mechanisms_mix_no_dtypes(strict):
    def drawn(model, key):
        model = model.with_work(Work(1e6, 1e6, jnp.ones(8)))[0]
        return model.sample(key, 8), model.expected_speed(8), model.expected_latency(8)

    for cls in set(LATENCIES) - {Traces}:
        jax.eval_shape(
            functools.partial(drawn, canonical(BANDIT.replace(latency=cls())).latency), KEY
        )
    measured = Traces.of([[0.1, 0.5]] * 8)
    jax.eval_shape(
        functools.partial(drawn, canonical(BANDIT.replace(latency=measured)).latency), KEY
    )

    def released(mechanism, key):
        return mechanism.privatize(key, jnp.ones(8), jnp.float32(1.0))

    for cls in MECHANISMS:
        mechanism = canonical(BANDIT.replace(privacy=cls())).privacy
        jax.eval_shape(functools.partial(released, mechanism), KEY)
    times = jnp.arange(1, 9)
    for cls in BUDGETS:
        budget = canonical(BANDIT.replace(privacy=L1Laplace(budget=cls()))).privacy.budget
        for method in (budget.remaining, budget.spent, budget.epsilon, budget.exhausted):
            assert jax.eval_shape(method, times).shape == times.shape


@pytest.mark.nightly
def test_healthy_runs_pass_all_modes_at_once():
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True), jax.enable_checks(True):
        assert np.isfinite(simulate(LEARN.replace(policy=Random()), KEY).clock).all()
        assert np.isfinite(sweep({"one": BANDIT}, KEY[None], progress=False).clock).all()


def test_debug_nans_refuses_a_nonfinite_model():
    config = LEARN.replace(privacy=NoPrivacy(), policy=Random())
    config = config.override({"learning.learning_rate": 1e38})
    with pytest.warns(NotFinite):
        assert simulate(config, KEY).first_nonfinite_round > 0
    with pytest.warns(NotFinite, match="fast: .* in 1 of 1 seeds"):
        sweep({"fast": config}, KEY, progress=False)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="round 1: the model is"):
        simulate(config, KEY)


def test_out_of_range_value_under_jit_gives_nan():
    def reward(gamma):
        config = BANDIT.replace(policy=Random()).override({"reward.gamma": gamma})
        return simulate(config, KEY, record=("reward",)).reward

    compiled = jax.jit(reward)
    assert np.isfinite(compiled(0.5)).all()
    np.testing.assert_allclose(compiled(0.5), reward(0.5), rtol=1e-5)
    for wrong in (-0.5, jnp.inf):
        assert np.isnan(compiled(wrong)).all()
