"""What a policy sees, for tests of a policy alone: a context and an observation."""

import jax
import numpy as np

from pause_jax.bandit.reward import Reward
from pause_jax.policies import Context, Observation
from pause_jax.privacy import NoPrivacy


def context(sizes, m, **changes) -> Context:
    """A network of clients with these data sizes, no privacy, and speeds from 0.2 to 0.9."""
    size = np.asarray(sizes, np.float32)
    speed = np.linspace(0.2, 0.9, len(sizes), dtype=np.float32)
    numbers = {
        "data_size": size,
        "local_samples": size,
        "share": size / size.sum(),
        "min_latency": np.float32(0.05),
        "expected_speed": speed,
        "expected_latency": np.float32(0.05) / speed,
    }
    base = Context(
        num_clients=len(sizes),
        num_selected=m,
        num_rounds=100,
        update_size=0,
        num_features=1,
        reward=Reward(),
        privacy=NoPrivacy(),
        **jax.device_put(numbers),
    )
    return base._replace(**changes)


def observation(latency, loss=1.0, square_loss=1.0, update=None, received=True) -> Observation:
    """What the chosen returned: latency is [m], the rest is broadcast to it; all are received.

    In NumPy, whose operations compile nothing, unless it is given arrays of JAX.
    """
    latency = in_numpy(latency, np.float32)
    update = np.zeros((*latency.shape, 0)) if update is None else update

    def of_each(value):
        value = in_numpy(value, np.float32)
        return value if value.shape == latency.shape else np.full(latency.shape, value)

    return Observation(
        latency,
        of_each(loss),
        of_each(square_loss),
        in_numpy(update, np.float32),
        in_numpy(received),
    )


def in_numpy(value, dtype=None):
    """``value``, as a NumPy array if it is none of JAX, which may be traced."""
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype)
