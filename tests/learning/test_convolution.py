"""Convolutions and pooling against NumPy in float64, and the forms that a device chooses."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.learning.convolution import FORMS, best_form, convolve, max_pool
from tests.support.arrays import assert_near, draw

pytestmark = pytest.mark.slow

# A case: size of the kernel, stride, padding. The images have an odd and an even side.
CASES = [(k, s, padding) for k in (1, 3, 7) for s in (1, 2) for padding in sorted({0, k // 2})]
IMAGE = (9, 8)


def convolved(x, kernel, dy, stride: int, padding: int):
    """Output, gradient of x and of the kernel of sum(y dy), one output pixel after the other."""
    size = kernel.shape[0]
    padded = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    rows, columns = ((n - size) // stride + 1 for n in padded.shape[1:3])
    y = np.empty((len(x), rows, columns, kernel.shape[-1]))
    d_padded, d_kernel = np.zeros_like(padded), np.zeros_like(kernel)
    for i in range(rows):
        for j in range(columns):
            window = np.s_[:, i * stride : i * stride + size, j * stride : j * stride + size]
            y[:, i, j] = np.tensordot(padded[window], kernel, axes=3)
            d = dy[:, i, j]
            d_kernel += np.tensordot(padded[window], d, axes=(0, 0))
            d_padded[window] += np.tensordot(d, kernel, axes=(1, 3))
    height, width = x.shape[1:3]
    dx = d_padded[:, padding : padding + height, padding : padding + width]
    return y, dx, d_kernel


def case_arrays(k: int, stride: int, padding: int, *clients: int):
    """(input, kernel, gradient of the output), of clients in front or of one."""
    height, width = ((n + 2 * padding - k) // stride + 1 for n in IMAGE)
    shapes = (2, *IMAGE, 3), (k, k, 3, 4), (2, height, width, 4)
    return tuple(draw(seed + k, *clients, *shape) for seed, shape in enumerate(shapes))


@functools.partial(jax.jit, static_argnums=(0, 1))
def values_and_gradients(form: str, cases, arrays):
    """Value and gradients of each case; its axes say what the clients of a vmap have alone."""

    def one(_, stride, padding, x, kernel, dy):
        y, pull = jax.vjp(lambda x, kernel: convolve(form, x, kernel, stride, padding), x, kernel)
        return y, *pull(dy)

    results = []
    for (*case, axes), operands in zip(cases, arrays, strict=True):
        run = functools.partial(one, *case)
        results.append((run if axes is None else jax.vmap(run, axes))(*operands))
    return results


@pytest.mark.parametrize("form", [form for form in FORMS if form != "auto"])
def test_every_convolution_form_matches_float64(form):
    cases = [(*case, None) for case in CASES]
    arrays = [case_arrays(*case) for case in CASES]
    expected = [
        convolved(x, kernel, dy, stride, padding)
        for (_, stride, padding), (x, kernel, dy) in zip(CASES, arrays, strict=True)
    ]
    # Clients side by side, each with its own kernel, and all with one; each has its gradient.
    for case, many in (((3, 2, 1), True), ((3, 1, 0), False), ((7, 2, 3), True)):
        x, kernels, dy = case_arrays(*case, 3)
        kernel = kernels if many else kernels[0]
        each = [convolved(x[i], kernels[i if many else 0], dy[i], *case[1:]) for i in range(3)]
        cases.append((*case, (0, 0 if many else None, 0)))
        arrays.append((x, kernel, dy))
        expected.append(tuple(map(np.stack, zip(*each, strict=True))))
    single = jax.tree.map(np.float32, arrays)
    assert_near(values_and_gradients(form, tuple(cases), single), expected, 1e-5)


def test_slightly_wrong_kernel_is_noticed():
    case = (3, 2, 1)
    x, kernel, dy = case_arrays(*case)
    right, wrong = (convolved(x, each, dy, *case[1:]) for each in (kernel, kernel * (1 + 1e-4)))
    for part in range(2):  # the gradient of the kernel does not depend on it
        with pytest.raises(AssertionError):
            assert_near(wrong[part], right[part], 1e-5)


def test_gradient_with_many_users_is_computed_once():
    """Left to itself XLA sums the nine taps anew for each of them (learning/convolution.py)."""
    x, kernel = np.float32(draw(0, 4, 9, 9, 8)), np.float32(draw(1, 3, 3, 8, 16))

    def users(through):
        (d_x,) = jax.vjp(lambda x: convolve("products", x, kernel), x)[1](through)
        return jnp.sum(d_x), jnp.sum(d_x, 0), jnp.sum(d_x, (1, 2)), jnp.max(d_x, 3), d_x * x

    compiled = jax.jit(users).lower(np.float32(draw(2, 4, 7, 7, 16))).compile().as_text()
    sums = [line for line in compiled.splitlines() if " add(" in line and "f32[4,9,9,8]" in line]
    assert len(sums) == 8


def test_per_client_kernels_use_a_loop_not_a_grouped_convolution():
    """A grouped one is a plain loop on a CPU."""
    x, kernel = draw(0, 3, 2, 6, 5, 4), draw(1, 3, 3, 3, 4, 5)
    program = str(jax.make_jaxpr(jax.vmap(functools.partial(convolve, "direct")))(x, kernel))
    assert "feature_group_count=1" in program
    assert "scan" in program


# ---------------------------------------------------------------- the form that ``auto`` is


@pytest.mark.parametrize(
    ("backend", "shape", "features", "stride", "padding", "expected"),
    [
        ("cpu", (10, 30, 30, 32), 64, 1, 0, "direct"),  # patches of 8.6 MiB
        ("cpu", (2, 30, 30, 32), 64, 1, 0, "products"),  # 1.7 MiB stay in the cache
        ("cpu", (100, 32, 32, 3), 32, 1, 0, "products"),  # few channels
        ("cpu", (20, 10, 10, 256), 256, 1, 0, "products"),  # many features
        ("gpu", (20, 15, 15, 32), 64, 1, 0, "products"),  # cnn3, a step
        ("gpu", (10, 30, 30, 32), 64, 1, 0, "products"),  # cnn2, a step
        ("gpu", (500, 15, 15, 32), 64, 1, 0, "xla"),  # an evaluation
        ("gpu", (20, 32, 32, 32), 64, 1, 1, "xla"),  # ResNet-18
        ("gpu", (20, 32, 32, 32), 64, 2, 0, "xla"),
        ("new", (20, 15, 15, 32), 64, 1, 0, "xla"),
    ],
)
def test_each_device_uses_the_fastest_measured_form(
    monkeypatch, backend, shape, features, stride, padding, expected
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    sizes = shape, (3, 3, shape[-1], features)
    x, kernel = (jax.ShapeDtypeStruct(size, np.float32) for size in sizes)
    assert best_form(x, kernel, stride, padding) == expected


def test_program_contains_the_selected_form():
    x, kernel = (jax.ShapeDtypeStruct(size, np.float32) for size in ((2, 9, 9, 4), (3, 3, 4, 5)))

    def program(form):
        return str(jax.make_jaxpr(functools.partial(convolve, form))(x, kernel))

    assert "conv_general_dilated" not in program("products")
    for form in ("direct", "xla"):
        assert "conv_general_dilated" in program(form)


# ---------------------------------------------------------------- pooling


def pooled(pool, x):
    y, pull = jax.vjp(pool, x)
    return y, *pull(np.float32(draw(3, *y.shape)))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (2, 7, 5, 3)])
def test_max_pool_and_its_gradient_match_flax(shape, ties):
    x = np.float32(draw(0, 3, *shape))  # three batches side by side
    x = np.round(x) if ties else x
    flax_pool = functools.partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))
    y, gradient = jax.jit(jax.vmap(functools.partial(pooled, max_pool)))(x)
    expected, expected_gradient = jax.jit(jax.vmap(functools.partial(pooled, flax_pool)))(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)
