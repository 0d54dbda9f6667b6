"""What a policy sees, for tests of a policy alone: a context and an observation."""

import jax.numpy as jnp
import numpy as np

from pause_jax.policies import Context, Observation
from pause_jax.privacy import NoPrivacy
from pause_jax.reward import Reward


def context(sizes, m, **changes) -> Context:
    """A network of clients with these data sizes, no privacy, and speeds from 0.2 to 0.9."""
    size = jnp.asarray(np.asarray(sizes), jnp.float32)
    speed = jnp.linspace(0.2, 0.9, len(sizes))
    base = Context(
        num_clients=len(sizes),
        num_selected=m,
        num_rounds=100,
        update_size=0,
        num_features=1,
        data_size=size,
        local_samples=size,
        share=size / size.sum(),
        reward=Reward(),
        privacy=NoPrivacy(),
        min_latency=jnp.asarray(0.05),
        expected_speed=speed,
        expected_latency=0.05 / speed,
    )
    return base._replace(**changes)


def observation(latency, loss=1.0, square_loss=1.0, update=None, received=True) -> Observation:
    """What the chosen returned: latency is [m], the rest is broadcast to it; all are received."""
    latency = jnp.asarray(latency, jnp.float32)
    update = jnp.zeros((*latency.shape, 0)) if update is None else jnp.asarray(update)
    return Observation(
        latency,
        jnp.broadcast_to(jnp.asarray(loss, jnp.float32), latency.shape),
        jnp.broadcast_to(jnp.asarray(square_loss, jnp.float32), latency.shape),
        update,
        jnp.asarray(received),
    )
