"""Convolution and max-pooling that are fast inside a loop and with a kernel for each client.

On CPUs XLA computes the gradients of its convolution with plain loops inside ``scan`` and
``fori_loop``. On any device one with a kernel per client (``vmap``) becomes a grouped one. Here a
convolution is one matrix product with the patches of its input, and so are its gradients; or, where
the patches would not stay in a CPU's cache, XLA's convolution, and so are its gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# How a model convolves: by matrix products, by XLA's convolution with gradients that are such
# convolutions too, by XLA's with its own gradients, or as its backend does best.
FORMS = ("auto", "products", "direct", "xla")
# Where ``auto`` is direct on a CPU: patches of so many bytes and more, kernels of so many channels
# and more and of fewer features. Measured: docs/engineering_log.md.
PATCHES, CHANNELS, FEATURES = 6 * 2**20, 16, 256
# Bytes of patches up to which ``auto`` is products on a GPU: about twice what was measured.
PATCHES_ON_GPU = 16 * 2**20

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(form: str, x: Array, kernel: Array, stride: int = 1, padding: int = 0) -> Array:
    """Convolve images [B, H, W, C] with a kernel [kh, kw, C, O], ``padding`` zeros on every side.

    All ``FORMS`` agree up to rounding. Products keep the patches for the gradient: kh kw times the
    input.
    """
    if form == "auto":
        form = best_form(x, kernel, stride, padding)
    if form == "direct":
        return _direct(x, kernel, stride, padding)
    if form == "products":
        edge = (padding, padding)
        return _products(jnp.pad(x, ((0, 0), edge, edge, (0, 0))), kernel, stride)
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=_LAYOUT)


def best_form(x: Array, kernel: Array, stride: int, padding: int) -> str:
    """Return the form that ``auto`` means for these shapes on the default backend.

    On a CPU direct where the patches are so large, for so few products, that moving them takes
    longest. On a GPU only what was measured: XLA of JAX 0.11.2 aborts on the products of a
    ResNet-18.
    """
    height, width, channels, features = kernel.shape
    rows = (x.shape[1] + 2 * padding - height) // stride + 1
    columns = (x.shape[2] + 2 * padding - width) // stride + 1
    patches = x.shape[0] * rows * columns * height * width * channels * x.dtype.itemsize
    if jax.default_backend() == "cpu":
        leaves_cache = patches >= PATCHES and channels >= CHANNELS and features < FEATURES
        return "direct" if leaves_cache else "products"
    was_measured = stride == 1 and padding == 0 and patches <= PATCHES_ON_GPU
    return "products" if jax.default_backend() == "gpu" and was_measured else "xla"


def stored(make: Callable[[Array], Array], x: Array) -> Array:
    """Return ``make(x)`` of a pure function, computed once on a CPU and kept for all its users.

    XLA computes what is cheap anew inside each of its users, which for a sum of nine arrays with
    five users takes half the time of a network's step. It leaves alone what a ``cond`` returns;
    barriers are gone by the time that it fuses.
    """
    if jax.default_backend() != "cpu":
        return make(x)
    like = jax.eval_shape(make, x)
    always = lax.optimization_barrier(jnp.array(True))  # or it is known to be True, and no cond
    return lax.cond(always, make, lambda _: jnp.zeros(like.shape, like.dtype), x)


@jax.custom_vjp
def gradient_stored(x: Array) -> Array:
    """Return x; its gradient is computed once (see ``stored``)."""
    return x


gradient_stored.defvjp(lambda x: (x, None), lambda _, d: (stored(lambda d: d, d),))


def _places(x: Array, height: int, width: int, stride: int) -> list[Array]:
    """Return the pixels at each place of a window that slides over images, row by row."""
    rows = (x.shape[1] - height) // stride + 1
    columns = (x.shape[2] - width) // stride + 1
    return [
        x[:, i::stride, j::stride][:, :rows, :columns] for i in range(height) for j in range(width)
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _products(x: Array, kernel: Array, stride: int) -> Array:
    return _products_forward(x, kernel, stride)[0]


def _products_forward(
    x: Array, kernel: Array, stride: int
) -> tuple[Array, tuple[Array, Array, Array]]:
    height, width, channels, features = kernel.shape
    taps = _places(stored(lambda x: x, x), height, width, stride)
    # A product over 27 values, as of a colour image, takes longer than one over 28.
    spare = -height * width * channels % 4
    taps.append(jnp.zeros((*taps[0].shape[:-1], spare), x.dtype))
    patches = jnp.concatenate(taps, axis=-1)
    rows = patches.reshape(-1, patches.shape[-1])
    y = rows @ jnp.pad(kernel.reshape(-1, features), ((0, spare), (0, 0)))
    # Only the shape of x is needed again; an array of no elements carries it.
    empty = jnp.zeros((0, *x.shape[1:]), x.dtype)
    return y.reshape(*patches.shape[:3], features), (rows, kernel, empty)


def _products_backward(
    stride: int, residuals: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    rows, kernel, empty = residuals
    height, width, channels, features = kernel.shape
    d = dy.reshape(-1, features)
    # Without the barriers XLA folds the transposes into the products, which then run slower.
    rows_t, kernel_t = lax.optimization_barrier((rows.T, kernel.reshape(-1, features).T))
    d_kernel = (rows_t @ d)[: height * width * channels].reshape(kernel.shape)
    d_patches = (d @ kernel_t).reshape(*dy.shape[:3], height, width, channels)

    def place(d_patches: Array, *tap: int) -> Array:
        """Put the gradient through a tap at its places in the input."""
        edges = [
            (low, size - ((count - 1) * stride + 1) - low, stride - 1)
            for low, size, count in zip(tap, empty.shape[1:3], dy.shape[1:3], strict=True)
        ]
        d = d_patches[:, :, :, tap[0], tap[1]]
        return lax.pad(d, jnp.zeros((), dy.dtype), [(0, 0, 0), *edges, (0, 0, 0)])

    # A sum of padded arrays is one loop over the input; scattered additions would be many.
    def total(d_patches: Array) -> Array:
        taps = [place(d_patches, i, j) for i in range(height) for j in range(width)]
        return functools.reduce(jnp.add, taps)

    return stored(total, d_patches), d_kernel


_products.defvjp(_products_forward, _products_backward)


def _one_by_one(x: Array, kernel: Array, **options: Any) -> Array:
    """Convolve by XLA; under ``vmap`` in a loop, as a grouped convolution is slow."""
    convolution = functools.partial(lax.conv_general_dilated, dimension_numbers=_LAYOUT, **options)
    result: Array = jax.custom_batching.sequential_vmap(convolution)(x, kernel)
    return result


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _direct(x: Array, kernel: Array, stride: int, padding: int) -> Array:
    pads = [(padding, padding)] * 2
    return _one_by_one(x, kernel, window_strides=(stride, stride), padding=pads)


def _direct_forward(
    x: Array, kernel: Array, stride: int, padding: int
) -> tuple[Array, tuple[Array, Array]]:
    return _direct(x, kernel, stride, padding), (x, kernel)


def _direct_backward(
    stride: int, padding: int, residuals: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, kernel = residuals
    dy = stored(lambda dy: dy, dy)  # or both convolutions below compute it from what makes it
    # Pixels of the padded image that no window reaches.
    spare = [
        n + 2 * padding - (m - 1) * stride - k
        for n, k, m in zip(x.shape[1:3], kernel.shape[:2], dy.shape[1:3], strict=True)
    ]
    # The input gradient convolves dy, dilated by the stride, with the flipped kernel.
    dx = _one_by_one(
        dy,
        jnp.flip(kernel, (0, 1)).swapaxes(2, 3),
        window_strides=(1, 1),
        padding=[
            (k - 1 - padding, k - 1 - padding + rest)
            for k, rest in zip(kernel.shape[:2], spare, strict=True)
        ],
        lhs_dilation=(stride, stride),
    )
    # The kernel gradient convolves the input with dy: channels as batch, samples as channels.
    d_kernel = _one_by_one(
        x.transpose(3, 1, 2, 0),
        dy.transpose(1, 2, 0, 3),
        window_strides=(1, 1),
        padding=[(padding, padding - rest) for rest in spare],
        rhs_dilation=(stride, stride),
    )
    return dx, d_kernel.transpose(1, 2, 0, 3)


_direct.defvjp(_direct_forward, _direct_backward)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Return the maximum of each 2x2 window of images: ``nn.max_pool(x, (2, 2), (2, 2))``.

    The gradient goes to the first maximum of a window, as in XLA and PyTorch. An odd last row or
    column is left out.
    """
    return _pool(x)[0]


def _pool(x: Array) -> tuple[Array, tuple[Array, Array]]:
    places = _places(x, 2, 2, 2)
    y = functools.reduce(jnp.maximum, places)
    first = jnp.full(y.shape, 3)
    for place in (2, 1, 0):
        first = jnp.where(places[place] == y, place, first)
    return y, (first.astype(jnp.uint8), jnp.zeros((0, *x.shape[1:]), x.dtype))


def _unpool(residuals: tuple[Array, Array], dy: Array) -> tuple[Array]:
    first, empty = residuals
    batch, height, width, channels = dy.shape
    # A window's columns side by side as channels, its rows one below the other: concatenations,
    # which XLA does not fuse, so that what makes dy is not computed anew for every place.
    first = jnp.concatenate([first, first], axis=-1)
    dy = jnp.concatenate([dy, dy], axis=-1)
    column = jnp.repeat(jnp.arange(2, dtype=jnp.uint8), channels)[None, None, None]
    rows = [jnp.where(first == column + jnp.uint8(2 * row), dy, 0) for row in (0, 1)]
    dx = jnp.stack(rows, axis=2).reshape(batch, 2 * height, 2 * width, channels)
    odd = [(0, size % 2) for size in empty.shape[1:3]]
    return (jnp.pad(dx, ((0, 0), *odd, (0, 0))),)


max_pool.defvjp(_pool, _unpool)
