"""Convolution and max-pooling that are fast inside loops and with one kernel per client.

XLA's convolution gradients are slow in loops on a CPU, and ``vmap`` over kernels produces slow
grouped convolutions. We instead use matrix products of input patches where they are faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# See ``models.Cnn3``.
FORMS = ("auto", "products", "direct", "xla")
# On a CPU, ``auto`` selects ``direct`` for convolutions with at least PATCHES bytes of patches, at
# least CHANNELS input channels and fewer than FEATURES output features (docs/engineering_log.md).
PATCHES, CHANNELS, FEATURES = 6 * 2**20, 16, 256
# On a CPU, a matrix row in ``products`` may hold several adjacent outputs (at most ROW values in
# total) if the input has at most NARROW channels. See docs/engineering_log.md.
NARROW, ROW = 8, 64
# Maximum total patch size in bytes for ``products`` on a GPU, about twice the benchmarked maximum.
PATCHES_ON_GPU = 16 * 2**20

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(form: str, x: Array, kernel: Array, stride: int = 1, padding: int = 0) -> Array:
    """Convolve images [B, H, W, C], zero-padded by ``padding``, with a kernel [kh, kw, C, O].

    The results of all ``FORMS`` agree up to rounding. For the gradient, ``products`` stores the
    patches, which at stride 1 are about kh * kw times as large as the input.
    """
    if form == "auto":
        form = best_form(x, kernel, stride, padding)
    if form == "direct":
        return _direct(x, kernel, stride, padding)
    if form == "products":
        edge = (padding, padding)
        return _in_rows(jnp.pad(x, ((0, 0), edge, edge, (0, 0))), kernel, stride)
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=_LAYOUT
    )


def best_form(x: Array, kernel: Array, stride: int, padding: int) -> str:
    """Return the form that ``auto`` selects for these shapes on the default backend.

    On a GPU, ``products`` is selected only for shapes similar to those benchmarked, because XLA in
    JAX 0.11.2 aborts on a ResNet-18's matrix products.
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
    """Return ``make(x)`` for a pure function ``make``. On a CPU, ``make(x)`` is computed only once.

    XLA recomputes cheap values inside each consumer, but never the result of a ``cond``. An
    optimization barrier does not help, because XLA removes it before fusion.
    """
    if jax.default_backend() != "cpu":
        return make(x)
    like = jax.eval_shape(make, x)
    always = lax.optimization_barrier(jnp.array(True))  # without it, XLA removes the cond
    return lax.cond(always, make, lambda _: jnp.zeros(like.shape, like.dtype), x)


@jax.custom_vjp
def gradient_stored(x: Array) -> Array:
    """Return ``x``. On a CPU, the gradient with respect to ``x`` is computed only once."""
    return x


gradient_stored.defvjp(lambda x: (x, None), lambda _, d: (stored(lambda d: d, d),))


def _places(x: Array, height: int, width: int, strides: tuple[int, int]) -> list[Array]:
    """Return the pixels under each tap of a sliding window, with taps in row-major order."""
    down, across = strides
    rows = (x.shape[1] - height) // down + 1
    columns = (x.shape[2] - width) // across + 1
    return [
        x[:, i::down, j::across][:, :rows, :columns] for i in range(height) for j in range(width)
    ]


def _in_rows(x: Array, kernel: Array, stride: int) -> Array:
    """Compute a convolution as a matrix product with one or more outputs per row (see ``ROW``).

    With one output per row, patches with few channels are slow to build. If there are few features,
    vector registers are mostly empty. A wider patch with shifted copies of the kernel avoids both.
    """
    width, channels, features = kernel.shape[1:]
    columns = (x.shape[2] - width) // stride + 1
    narrow = jax.default_backend() == "cpu" and channels <= NARROW
    counts = range(1, 1 + max(1, ROW // features if narrow else 1))
    count = max(n for n in counts if columns % n == 0)
    shifts = [(stride * i, stride * (count - 1 - i)) for i in range(count)]
    copies = [jnp.pad(kernel, ((0, 0), shift, (0, 0), (0, 0))) for shift in shifts]
    y = _products(x, jnp.concatenate(copies, axis=-1), (stride, stride * count))
    return y.reshape(*y.shape[:2], columns, features)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _products(x: Array, kernel: Array, strides: tuple[int, int]) -> Array:
    return _products_forward(x, kernel, strides)[0]


def _products_forward(
    x: Array, kernel: Array, strides: tuple[int, int]
) -> tuple[Array, tuple[Array, Array, Array]]:
    height, width, channels, features = kernel.shape
    taps = _places(stored(lambda x: x, x), height, width, strides)
    # A matrix product with inner dimension 27 (3x3 taps, 3 colours) is slower than one with 28.
    spare = -height * width * channels % 4
    taps.append(jnp.zeros((*taps[0].shape[:-1], spare), x.dtype))
    patches = jnp.concatenate(taps, axis=-1)
    rows = patches.reshape(-1, patches.shape[-1])
    y = rows @ jnp.pad(kernel.reshape(-1, features), ((0, spare), (0, 0)))
    # The backward pass needs only the image size of x, stored as the shape of an empty array.
    empty = jnp.zeros((0, *x.shape[1:]), x.dtype)
    return y.reshape(*patches.shape[:3], features), (rows, kernel, empty)


def _products_backward(
    strides: tuple[int, int], residuals: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    rows, kernel, empty = residuals
    height, width, channels, features = kernel.shape
    d = dy.reshape(-1, features)
    d_kernel = (rows.T @ d)[: height * width * channels].reshape(kernel.shape)
    d_patches = d @ kernel.reshape(-1, features).T
    d_patches = d_patches.reshape(*dy.shape[:3], height, width, channels)

    def place(d_patches: Array, *tap: int) -> Array:
        """Zero-pad one tap's gradient to the input size."""
        edges = [
            (low, size - ((count - 1) * stride + 1) - low, stride - 1)
            for low, size, count, stride in zip(
                tap, empty.shape[1:3], dy.shape[1:3], strides, strict=True
            )
        ]
        d = d_patches[:, :, :, tap[0], tap[1]]
        return lax.pad(d, jnp.zeros((), dy.dtype), [(0, 0, 0), *edges, (0, 0, 0)])

    # XLA fuses a sum of padded arrays, but not scatter-adds, into one loop over the input.
    def total(d_patches: Array) -> Array:
        taps = [place(d_patches, i, j) for i in range(height) for j in range(width)]
        return functools.reduce(jnp.add, taps)

    return stored(total, d_patches), d_kernel


_products.defvjp(_products_forward, _products_backward)


def _one_by_one(x: Array, kernel: Array, **options: Any) -> Array:
    """Convolve with XLA. Under ``vmap``, use a loop, because a grouped convolution is slow."""
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
    dy = stored(lambda dy: dy, dy)  # otherwise both convolutions recompute it
    # Number of trailing rows and columns of the padded image that no window covers.
    spare = [
        n + 2 * padding - (m - 1) * stride - k
        for n, k, m in zip(x.shape[1:3], kernel.shape[:2], dy.shape[1:3], strict=True)
    ]
    # The input gradient is dy (dilated by the stride) convolved with the flipped kernel.
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
    # The kernel gradient is x (batch and channel axes swapped) convolved with the dilated dy.
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
    """Return ``nn.max_pool(x, (2, 2), (2, 2))``. As in XLA, the first maximum gets the gradient."""
    return _pool(x)[0]


def _pool(x: Array) -> tuple[Array, tuple[Array, Array]]:
    places = _places(x, 2, 2, (2, 2))
    y = functools.reduce(jnp.maximum, places)
    first = jnp.full(y.shape, 3)
    for place in (2, 1, 0):
        first = jnp.where(places[place] == y, place, first)
    return y, (first.astype(jnp.uint8), jnp.zeros((0, *x.shape[1:]), x.dtype))


def _unpool(residuals: tuple[Array, Array], dy: Array) -> tuple[Array]:
    first, empty = residuals
    batch, height, width, channels = dy.shape
    # Lay out window columns along the channel axis, and stack window rows. XLA does not fuse these
    # concatenations, so it does not recompute dy for every position.
    first = jnp.concatenate([first, first], axis=-1)
    dy = jnp.concatenate([dy, dy], axis=-1)
    column = jnp.repeat(jnp.arange(2, dtype=jnp.uint8), channels)[None, None, None]
    rows = [jnp.where(first == column + jnp.uint8(2 * row), dy, 0) for row in (0, 1)]
    dx = jnp.stack(rows, axis=2).reshape(batch, 2 * height, 2 * width, channels)
    odd = [(0, size % 2) for size in empty.shape[1:3]]
    return (jnp.pad(dx, ((0, 0), *odd, (0, 0))),)


max_pool.defvjp(_pool, _unpool)
