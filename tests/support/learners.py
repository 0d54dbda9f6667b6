"""Small learners on three classes of five features, which a model soon tells apart."""

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax import Learning, SimConfig
from pause_jax.bandit import Selection
from pause_jax.learning import Dataset, Iid, Mlp
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from pause_jax.rng import keys

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
LABELS = RNG.integers(3, size=200)
FEATURES = (RNG.standard_normal((200, 5)) + 3 * np.eye(3, 5)[LABELS]).astype(np.float32)
DATA = Dataset.of(FEATURES, LABELS)
# Weights: hidden_0 5 x 4 and 4, output 4 x 3 and 3.
MODEL = Mlp(hidden=(4,))


def learning(**changes) -> Learning:
    words = {
        "model": MODEL, "partition": Iid(), "max_steps": 3, "batch_size": 4, "optimizer": "sgd",
        "learning_rate": 0.1, **changes,
    }  # fmt: skip
    return Learning(**words)


def config(rounds=5, privacy=None, **changes) -> SimConfig:
    """A run that is evaluated after its last round; ``changes`` are those of ``learning``."""
    return SimConfig(
        num_clients=4, num_selected=2, num_rounds=rounds, eval_every=rounds, policy=Random(),
        learning=learning(**changes), privacy=privacy or NoPrivacy(), track_regret=False,
    )  # fmt: skip


def built(trained="all", **changes):
    """A learner and its first state."""
    config = learning(trained=trained, **changes)
    learner = config.build(config.load(4, DATA), 4)
    return learner, learner.init(keys.streams(KEY))


def updates_of(trained="all", steps=1, **changes):
    """The updates of two clients, [2, d]."""
    learner, state = built(trained, max_steps=steps, **changes)
    selection = Selection(jnp.asarray([0, 1]), jnp.full(2, 0.5))
    train = jax.jit(lambda state: learner.train(KEY, state, selection, lambda updates: updates)[1])
    return train(state).released
