"""Convolution and max-pooling that are fast inside a loop and with own weights.

On CPUs XLA computes the gradients of its convolution with plain loops inside ``scan`` and
``fori_loop``. On any device one with a kernel per client (``vmap``) becomes a grouped one. Here a
convolution is one matrix product with the patches of its input, and so are its gradients; or, where
the patches would not stay in a CPU's cache, XLA's convolution, and so are its gradients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.device_choice import device_choice

# How a model convolves: by matrix products, by XLA's convolution with gradients that are such
# convolutions too, by XLA's with its own gradients, or as its backend does best.
FORMS = ("auto", "products", "direct", "xla")
# Where ``auto`` is direct on a CPU: patches of so many bytes and more, kernels of so many channels
# and more and of fewer features. Measured: docs/engineering_log.md.
PATCHES, CHANNELS, FEATURES = 6 * 2**20, 16, 256
# Bytes of patches up to which ``auto`` is products on a GPU: about twice what was measured.
PATCHES_ON_GPU = 16 * 2**20

_LAYOUT = ("NHWC", "HWIO", "NHWC")
_ONES = (1, 1)
_Pads = tuple[tuple[int, int], ...]
_NO_PADS: _Pads = ((0, 0), (0, 0))


def convolution(form: str) -> Callable[..., Array]:
    """What ``flax.linen.Conv`` takes as ``conv_general_dilated``.

    ``auto`` goes by the shapes, in the way of the device's row in ``device_choice``.
    """
    if (device_choice().convolution if form == "auto" else form) == "xla":
        return lax.conv_general_dilated
    return functools.partial(conv, form)


# Flax names all arguments of ``lax.conv_general_dilated`` from the dilations on.
def conv(
    form: str,
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **others: Any,
) -> Array:
    """``lax.conv_general_dilated`` in the form ``products``, ``direct`` or ``auto``; its arguments.

    Input [B, H, W, C], kernel [kh, kw, C, O], two strides, ``SAME``, ``VALID`` or two (low, high)
    pairs of padding, no groups and no dilation; all else is handed to ``lax``. Products keep the
    patches for the gradient: kh kw times the input.

    Returns:
      [B, H', W', O].
    """
    if not _is_plain(lhs, rhs, **others):
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **others)
    precision = others.get("precision")
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:3], rhs.shape[:2], window_strides, padding)
    strides = tuple(window_strides)
    pads = tuple((int(low), int(high)) for low, high in padding)
    if form == "auto":
        form = _best(lhs, rhs, strides, pads)
    if form == "xla":
        return lax.conv_general_dilated(lhs, rhs, strides, pads, **others)
    if form == "direct":
        return _direct(lhs, rhs, strides, pads, precision)
    edges = [(low, high, 0) for low, high in ((0, 0), *padding, (0, 0))]
    x = lax.pad(lhs, jnp.zeros((), lhs.dtype), edges)
    return _valid_conv(x, rhs, strides, precision)


def _best(lhs: Array, rhs: Array, strides: tuple[int, ...], padding: _Pads) -> str:
    """The form that ``auto`` is, for these shapes on this device.

    On a CPU direct where the patches are so large, for so few products, that moving them takes
    longest. On a GPU what was measured: XLA of JAX 0.11.2 aborts on the products of a ResNet-18.
    """
    *size, channels, features = rhs.shape
    rows = math.prod(
        (n + low + high - k) // stride + 1
        for n, (low, high), k, stride in zip(lhs.shape[1:3], padding, size, strides, strict=True)
    )
    patches = lhs.shape[0] * rows * math.prod(size) * channels * lhs.dtype.itemsize
    if device_choice().convolution == "cached":
        leaves = patches >= PATCHES and channels >= CHANNELS and features < FEATURES
        return "direct" if leaves else "products"
    within = strides == _ONES and padding == _NO_PADS and patches <= PATCHES_ON_GPU
    return "products" if within else "xla"


def _is_plain(
    lhs: Array,
    rhs: Array,
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
) -> bool:
    """Whether a convolution is of images in this layout, without groups and dilation."""
    if lhs.ndim != 4 or feature_group_count != 1:
        return False
    asked, ours = (
        lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
        for numbers in (dimension_numbers, _LAYOUT)
    )
    return asked == ours and {*(lhs_dilation or ()), *(rhs_dilation or ())} <= {1}


def stored(make: Callable[[Array], Array], x: Array) -> Array:
    """``make(x)`` of a pure function, computed once on a CPU and kept for all that use it.

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
    """Give x itself; its gradient is computed once (see ``stored``)."""
    return x


gradient_stored.defvjp(lambda x: (x, None), lambda _, d: (stored(lambda d: d, d),))


def _places(x: Array, window: tuple[int, int], strides: tuple[int, ...]) -> list[Array]:
    """Of windows that are slid over images, the pixels at each place of the window, row by row."""
    height, width = (
        (size - k) // stride + 1
        for size, k, stride in zip(x.shape[1:3], window, strides, strict=True)
    )
    return [
        x[:, i :: strides[0], j :: strides[1]][:, :height, :width]
        for i in range(window[0])
        for j in range(window[1])
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _valid_conv(x: Array, kernel: Array, strides: tuple[int, ...], precision: Any) -> Array:
    return _forward(x, kernel, strides, precision)[0]


def _forward(
    x: Array, kernel: Array, strides: tuple[int, ...], precision: Any
) -> tuple[Array, tuple[Array, Array, Array]]:
    kh, kw, _, features = kernel.shape
    taps = _places(stored(lambda x: x, x), (kh, kw), strides)
    # A product over 27 values, as of a colour image, takes longer than one over 28.
    spare = -kh * kw * x.shape[-1] % 4
    taps.append(jnp.zeros((*taps[0].shape[:-1], spare), x.dtype))
    patches = jnp.concatenate(taps, axis=-1)
    rows = patches.reshape(-1, patches.shape[-1])
    weights = jnp.pad(kernel.reshape(-1, features), ((0, spare), (0, 0)))
    y = jnp.matmul(rows, weights, precision=precision)
    # Only the shape of x is needed again; an array of no elements carries it.
    empty = jnp.zeros((0, *x.shape[1:]), x.dtype)
    return y.reshape(*patches.shape[:3], features), (rows, kernel, empty)


def _backward(
    strides: tuple[int, ...], precision: Any, kept: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    rows, kernel, empty = kept
    kh, kw, channels, features = kernel.shape
    batch, height, width, _ = dy.shape
    d = dy.reshape(-1, features)
    # Without the barriers XLA folds the transposes into the products, which then run slower.
    rows_t, kernel_t = lax.optimization_barrier((rows.T, kernel.reshape(-1, features).T))
    d_weights = jnp.matmul(rows_t, d, precision=precision)
    d_kernel = d_weights[: kh * kw * channels].reshape(kernel.shape)
    d_patches = jnp.matmul(d, kernel_t, precision=precision)
    d_patches = d_patches.reshape(batch, height, width, kh, kw, channels)

    def place(d_patches: Array, i: int, j: int) -> Array:
        """The gradient through tap (i, j), at its places in the input."""
        edges = [(0, 0, 0)]
        for axis, low in ((0, i), (1, j)):
            covered = (dy.shape[1 + axis] - 1) * strides[axis] + 1
            edges.append((low, empty.shape[1 + axis] - covered - low, strides[axis] - 1))
        return lax.pad(d_patches[:, :, :, i, j], jnp.zeros((), dy.dtype), [*edges, (0, 0, 0)])

    # A sum of padded arrays is one loop over the input; scattered additions would be many.
    def total(d_patches: Array) -> Array:
        return functools.reduce(
            jnp.add, [place(d_patches, i, j) for i in range(kh) for j in range(kw)]
        )

    return stored(total, d_patches), d_kernel


_valid_conv.defvjp(_forward, _backward)


@functools.cache
def _one_by_one(
    strides: tuple[int, ...],
    padding: _Pads,
    dilation: tuple[tuple[int, ...], tuple[int, ...]],
    precision: Any,
) -> Callable[[Array, Array], Array]:
    """XLA's convolution, which under ``vmap`` is a loop and not a grouped one."""

    @jax.custom_batching.custom_vmap
    def convolve(x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(
            x, kernel, strides, padding, *dilation, dimension_numbers=_LAYOUT, precision=precision
        )

    @convolve.def_vmap
    def loop(size: int, batched: list[bool], x: Array, kernel: Array) -> tuple[Array, bool]:
        if batched[1]:
            x = x if batched[0] else jnp.broadcast_to(x, (size, *x.shape))
            return lax.map(lambda pair: convolve(*pair), (x, kernel)), True
        y = convolve(x.reshape(-1, *x.shape[2:]), kernel)
        return y.reshape(*x.shape[:2], *y.shape[1:]), True

    return convolve


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _direct(
    x: Array, kernel: Array, strides: tuple[int, ...], padding: _Pads, precision: Any
) -> Array:
    return _one_by_one(strides, padding, (_ONES, _ONES), precision)(x, kernel)


def _direct_forward(
    x: Array, kernel: Array, strides: tuple[int, ...], padding: _Pads, precision: Any
) -> tuple[Array, tuple[Array, Array]]:
    return _direct(x, kernel, strides, padding, precision), (x, kernel)


def _direct_backward(
    strides: tuple[int, ...], padding: _Pads, precision: Any, kept: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, kernel = kept
    dy = stored(lambda dy: dy, dy)  # or both convolutions below compute it from what makes it
    axes = list(zip(x.shape[1:3], kernel.shape[:2], dy.shape[1:3], strides, padding, strict=True))
    # With the input: of dy, spread by the strides, with the kernel turned around.
    pads = tuple((k - 1 - low, n + low - 1 - (m - 1) * s) for n, k, m, s, (low, _) in axes)
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    dx = _one_by_one(_ONES, pads, (strides, _ONES), precision)(dy, turned)
    # With the kernel: of the input with dy as kernel, channels as batch and samples as channels.
    pads = tuple((low, (m - 1) * s + k - n - low) for n, k, m, s, (low, _) in axes)
    d_kernel = _one_by_one(_ONES, pads, (_ONES, strides), precision)(
        x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
    )
    return dx, d_kernel.transpose(1, 2, 0, 3)


_direct.defvjp(_direct_forward, _direct_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool(x: Array, window: tuple[int, int]) -> Array:
    """Maximum over windows that do not overlap: ``nn.max_pool(x, window, strides=window)``.

    The gradient goes to the first maximum of a window, as in XLA and PyTorch. From x [B, H, W, C],
    whose rows and columns that fill no window are left out, and a window (height, width) of at most
    256 places.

    Returns:
      [B, H // height, W // width, C].
    """
    return _pool(x, window)[0]


def _pool(x: Array, window: tuple[int, int]) -> tuple[Array, tuple[Array, Array]]:
    if math.prod(window) > 256:
        raise ValueError(f"window = {window}: must have at most 256 places.")
    places = _places(x, window, window)
    y = functools.reduce(jnp.maximum, places)
    first = jnp.full(y.shape, len(places) - 1)
    for place in reversed(range(len(places) - 1)):
        first = jnp.where(places[place] == y, place, first)
    return y, (first.astype(jnp.uint8), jnp.zeros((0, *x.shape[1:]), x.dtype))


def _unpool(window: tuple[int, int], kept: tuple[Array, Array], dy: Array) -> tuple[Array]:
    first, empty = kept
    batch, height, width, channels = dy.shape
    # A window's columns side by side as channels, its rows one below the other: concatenations,
    # which XLA does not fuse, so that what makes dy is not computed anew for every place.
    first = jnp.concatenate([first] * window[1], axis=-1)
    dy = jnp.concatenate([dy] * window[1], axis=-1)
    column = jnp.repeat(jnp.arange(window[1], dtype=jnp.uint8), channels)[None, None, None]
    rows = [jnp.where(first == column + jnp.uint8(i * window[1]), dy, 0) for i in range(window[0])]
    dx = jnp.stack(rows, axis=2).reshape(batch, height * window[0], width * window[1], channels)
    rest = [size - used for size, used in zip(empty.shape[1:3], dx.shape[1:3], strict=True)]
    return (jnp.pad(dx, ((0, 0), (0, rest[0]), (0, rest[1]), (0, 0))),)


max_pool.defvjp(_pool, _unpool)
