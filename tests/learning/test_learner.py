"""The learner as a seam: that of a bandit alone, one of a user's own, and speed settings apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, Learning, policies, simulate, sweep
from pause_jax.bandit import Selection
from pause_jax.learning import (
    FedAdam,
    Learner,
    LearnerState,
    Lora,
    StepDecay,
    Trained,
    UniformWork,
    bandit_only,
)
from pause_jax.learning.partition import Partition
from pause_jax.privacy import L1Laplace, NoPrivacy
from pause_jax.rng import keys
from tests.support.compilations import Compilations
from tests.support.learners import DATA, config
from tests.support.runs import KEY, LEARN

pytestmark = pytest.mark.slow


def test_bandit_only_learner_learns_nothing_and_costs_nothing():
    learner = bandit_only(4)
    state = learner.init(keys.streams(KEY))
    selection = Selection(np.asarray([2, 0]), np.asarray([0.5, 0.5], np.float32))

    def release(updates):
        raise AssertionError("there is nothing to release")

    after, trained = learner.train(KEY, state, selection, release)
    assert after is state
    assert trained.released.shape == (2, 0)
    np.testing.assert_array_equal(trained.loss, [1, 1])
    assert np.isnan(trained.mean_loss)
    np.testing.assert_array_equal(learner.ask(KEY, state, np.arange(3), None), [1, 1, 1])
    assert np.isnan(learner.evaluate(state)["test_accuracy"])
    share = jax.jit(lambda partition: partition.share)(state.partition)
    np.testing.assert_array_equal(share, np.full(4, 0.25))


class MeanOfNumbers(Learning):
    """Client k holds the number k; the model is one number, and each client moves halfway there."""

    name = "mean_of_numbers"

    def load(self, num_clients, data=None):
        return np.arange(num_clients, dtype=np.float32)

    def build(self, data, num_clients, execution=None):
        def init(streams):
            one = jnp.ones(num_clients, jnp.int32)
            partition = Partition(jnp.arange(num_clients), 0 * one, one, jnp.ones(num_clients))
            variables = {"params": {"guess": jnp.zeros(1)}}
            return LearnerState(partition, variables, None, streams.inputs)

        def train(key, state, selection, release):
            guess = state.model["params"]["guess"]
            updates = (data[selection.clients][:, None] - guess[None, :]) / 2
            released = release(updates)
            guess = guess + selection.weights @ released
            error = jnp.abs(updates[:, 0])
            state = state._replace(variables={"params": {"guess": guess}})
            return state, Trained(error, error**2, released, selection.weights @ error)

        def ask(key, state, clients, batch_size):
            return jnp.abs(data[clients] - state.model["params"]["guess"])

        def evaluate(state):
            off = jnp.abs(state.model["params"]["guess"][0] - jnp.mean(data))
            return {"test_loss": off, "test_accuracy": jnp.exp(-off)}

        return Learner(init, train, ask, evaluate)


MINE = LEARN.replace(num_rounds=40, eval_every=1, privacy=NoPrivacy(), learning=MeanOfNumbers())
MINE = MINE.replace(policy=policies.named("round_robin"))
RECORD = ("clients", "test_loss", "max_spent")


def test_custom_learner_is_simulated_and_swept():
    result = simulate(MINE, KEY, record=RECORD)
    guess, expected = 0.0, []
    for row in np.asarray(result.clients):
        guess += np.mean([(k - guess) / 2 for k in row])
        expected.append(abs(guess - 2.5))
    np.testing.assert_allclose(result.test_loss, expected, rtol=1e-5)
    assert result.num_parameters == 1
    data = sweep({"mine": MINE, "asking": MINE.replace(policy=policies.named("power_of_choice"))},
                 KEY, record=RECORD, progress=False)  # fmt: skip
    np.testing.assert_allclose(data.test_loss.sel(config="mine")[0], expected, rtol=1e-5)
    # Power-of-Choice takes those that are furthest away: the loss is asked of this learner.
    first = set(data.clients.sel(config="asking")[0, 0].values.tolist())
    assert first & {4, 5}


def test_custom_learner_releases_pass_through_the_mechanism():
    private = MINE.replace(privacy=L1Laplace(clip_norm=0.1))
    noisy, exact = (simulate(config, KEY, record=RECORD) for config in (private, MINE))
    np.testing.assert_array_equal(noisy.clients, exact.clients)
    assert not np.allclose(noisy.test_loss, exact.test_loss)
    assert noisy.max_spent[-1] > 0


# ---------------------------------------------------------------- speed settings


def test_execution_options_are_not_in_a_config():
    with pytest.raises(TypeError, match="client_batch"):
        Learning(client_batch=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", [0, -1, 2.0, "2", True])
def test_bad_client_batch_gives_one_message(bad):
    for call in (simulate, sweep):
        with pytest.raises(ConfigError, match=r"client_batch = .*must be a whole number >= 1"):
            call(LEARN, KEY, client_batch=bad)


# ---------------------------------------------------------------- numbers

NUMBERS = {
    "epochs": 0.4, "proximal": 5.0, "schedule.factor": 0.1, "server.rate": 0.5,
    "trained.scale": 2.0, "work.low": 0.9,
}  # fmt: skip


def test_numbers_of_all_parts_of_learning_share_one_program():
    base = config(
        4, max_steps=20, proximal=0.0, schedule=StepDecay(every=2, factor=0.5),
        server=FedAdam(rate=0.1), trained=Lora(rank=2, scale=0.5), work=UniformWork(),
    )  # fmt: skip

    def loss(config):
        return np.asarray(simulate(config, KEY, DATA, record=("test_loss",)).test_loss)

    first = loss(base)
    compilations = Compilations()
    for path, value in NUMBERS.items():
        assert np.all(loss(base.override({f"learning.{path}": value})) != first), path
    assert compilations.programs == 0
