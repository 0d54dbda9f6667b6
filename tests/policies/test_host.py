"""Calls on the host: what they are given, and that they end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.policies.clustered import PIECE_BYTES, call_on_host
from tests.support.command import python

LIKE = jax.ShapeDtypeStruct((), jnp.float32)


def test_host_call_receives_complete_arguments():
    seen = []

    def note(*given: np.ndarray) -> np.float32:
        seen.append(given)
        return np.float32(given[0].sum())

    square = jnp.arange(300 * 300, dtype=jnp.float32).reshape(300, 300)
    order, few = jnp.arange(PIECE_BYTES // 4 + 1), jnp.asarray([True, False])
    result = jax.jit(lambda *given: call_on_host(note, LIKE, *given))(square, order, few)
    assert result == np.float32(np.asarray(square).sum())
    for got, given in zip(seen[0], (square, order, few), strict=True):
        np.testing.assert_array_equal(got, given)
        assert got.dtype == given.dtype
    each = jax.vmap(lambda one: call_on_host(note, LIKE, one))(square)
    np.testing.assert_array_equal(each, np.asarray(square).sum(1))


# Both threads of XLA's pool are in callbacks when they want their arguments. A program runs on the
# pool if what it is given is not ready yet.
MEET = """
import threading
from concurrent.futures import ThreadPoolExecutor
import jax, jax.numpy as jnp, numpy as np
from pause_jax.policies.clustered import call_on_host

barrier, like = threading.Barrier(2), jax.ShapeDtypeStruct((), jnp.float32)

def meet(x):
    barrier.wait(30)
    return np.asarray(x)

@jax.jit
def slowly(x):
    return jax.lax.fori_loop(0, 6, lambda _, a: jnp.tanh(a @ a), jnp.full((1500, 1500), x))[0, 0]

@jax.jit
def program(x):
    x = jax.pure_callback(meet, like, x)
    return call_on_host(lambda a: np.float32(a.mean()), like, jnp.full((300, 300), x))

program.lower(like).compile()
with ThreadPoolExecutor(2) as pool:
    print(*pool.map(lambda x: float(program(slowly(jnp.float32(x)))), [0, 1]))
"""


@pytest.mark.slow
def test_concurrent_host_calls_do_not_deadlock():
    done = python("-c", MEET, timeout=60, PJRT_NPROC="2", JAX_PLATFORMS="cpu")
    assert done.stdout.split() == ["0.0", "1.0"], done.stderr
