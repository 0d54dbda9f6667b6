import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pause_jax.learning import Cnn3
from pause_jax.learning.convolution import convolution, max_pool

pytestmark = pytest.mark.slow

NUMBERS = ("NHWC", "HWIO", "NHWC")
both_forms = pytest.mark.parametrize("form", ["products", "direct"])


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def value_and_gradients(convolve, x, kernel, strides, padding, **options):
    """The output and the gradients of its product with fixed random numbers."""

    def forward(x, kernel):
        y = convolve(x, kernel, strides, padding, dimension_numbers=NUMBERS, **options)
        return jnp.sum(y * draw(3, *y.shape)), y

    (_, y), gradients = jax.jit(jax.value_and_grad(forward, (0, 1), has_aux=True))(x, kernel)
    return y, *gradients


def assert_close(actual, expected) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)


CASES = [
    # height, width, kernel, strides, padding
    (6, 5, (3, 3), (1, 1), "SAME"),
    (7, 8, (3, 2), (2, 3), "VALID"),
    (8, 7, (2, 3), (3, 2), "SAME"),
    (5, 9, (1, 1), (2, 2), "VALID"),
    (5, 6, (3, 3), (2, 1), ((2, 0), (1, 3))),
    # The halving layers of a ResNet.
    (8, 7, (3, 3), (2, 2), ((1, 1), (1, 1))),
    (8, 7, (1, 1), (2, 2), ((0, 0), (0, 0))),
]


@functools.cache
def by_lax(height, width, size, strides, padding):
    x, kernel = draw(0, 2, height, width, 3), draw(1, *size, 3, 4)
    return value_and_gradients(lax.conv_general_dilated, x, kernel, strides, padding)


@both_forms
@pytest.mark.parametrize(("height", "width", "size", "strides", "padding"), CASES)
def test_value_and_gradients_are_those_of_lax(form, height, width, size, strides, padding):
    x, kernel = draw(0, 2, height, width, 3), draw(1, *size, 3, 4)
    actual = value_and_gradients(convolution(form), x, kernel, strides, padding)
    assert_close(actual, by_lax(height, width, size, strides, padding))


@both_forms
def test_a_kernel_turned_upside_down_is_noticed(form):
    x, kernel = draw(0, 2, 6, 5, 3), draw(1, 3, 3, 3, 4)
    expected = by_lax(6, 5, (3, 3), (1, 1), "VALID")

    @jax.jit
    def convolved(kernel):
        return value_and_gradients(convolution(form), x, kernel, (1, 1), "VALID")

    for wrong in (kernel[::-1], kernel[:, ::-1], kernel[:, :, ::-1]):
        actual = convolved(wrong)
        for a, e in zip(actual[:2], expected[:2], strict=True):
            assert not np.allclose(a, e, atol=0.1)


@pytest.mark.parametrize(
    "options",
    [{"rhs_dilation": (2, 1)}, {"lhs_dilation": (1, 2)}, {"feature_group_count": 3}],
    ids=lambda options: next(iter(options)),
)
def test_dilation_and_groups_are_left_to_lax(options):
    conv = convolution("auto")
    x, kernel = draw(0, 2, 6, 5, 3), draw(1, 3, 2, 1 if "feature_group_count" in options else 3, 6)
    padding = ((0, 1), (1, 1))
    actual = value_and_gradients(conv, x, kernel, (1, 1), padding, **options)
    expected = value_and_gradients(lax.conv_general_dilated, x, kernel, (1, 1), padding, **options)
    assert_close(actual, expected)


def test_other_layouts_are_left_to_lax():
    conv = convolution("auto")
    for x, kernel in (
        (draw(0, 2, 3, 6, 5), draw(1, 4, 3, 3, 3)),
        (draw(0, 2, 3, 6), draw(1, 4, 3, 3)),
    ):
        strides = (1,) * (x.ndim - 2)
        np.testing.assert_allclose(
            conv(x, kernel, strides, "SAME"), lax.conv_general_dilated(x, kernel, strides, "SAME")
        )


@both_forms
@pytest.mark.parametrize(("x_axis", "kernel_axis"), [(0, 0), (0, None), (None, 0)])
def test_batched_inputs_and_kernels_give_what_a_loop_gives(form, x_axis, kernel_axis):
    x, kernel = draw(0, 3, 2, 5, 6, 2), draw(1, 3, 3, 3, 2, 4)
    x, kernel = (x if x_axis == 0 else x[0]), (kernel if kernel_axis == 0 else kernel[0])

    @jax.jit
    def both(x, kernel):
        return value_and_gradients(convolution(form), x, kernel, (2, 1), "SAME")

    together = jax.device_get(jax.vmap(both, (x_axis, kernel_axis))(x, kernel))
    for i in range(3):
        one = both(x[i] if x_axis == 0 else x, kernel[i] if kernel_axis == 0 else kernel)
        assert_close([leaf[i] for leaf in together], one)


def test_a_gradient_with_many_users_is_computed_once():
    """Left to itself XLA sums the nine taps anew for each of them (learning/convolution.py)."""
    conv, x, kernel = convolution("products"), draw(0, 4, 9, 9, 8), draw(1, 3, 3, 8, 16)

    def users(through):
        d = jax.vjp(lambda x: conv(x, kernel, (1, 1), "VALID", dimension_numbers=NUMBERS), x)[1]
        (d_x,) = d(through)
        return jnp.sum(d_x), jnp.sum(d_x, 0), jnp.sum(d_x, (1, 2)), jnp.max(d_x, 3), d_x * x

    compiled = jax.jit(users).lower(draw(2, 4, 7, 7, 16)).compile().as_text()
    sums = [line for line in compiled.splitlines() if " add(" in line and "f32[4,9,9,8]" in line]
    assert len(sums) == 8


@both_forms
def test_gradients_survive_remat(form):
    conv, x, kernel = convolution(form), draw(0, 2, 6, 5, 3), draw(1, 3, 3, 3, 4)
    expected = value_and_gradients(conv, x, kernel, (1, 1), "VALID")

    def forward(x, kernel):
        y = conv(x, kernel, (1, 1), "VALID", dimension_numbers=NUMBERS)
        return jnp.sum(y * draw(3, *y.shape))

    assert_close(jax.jit(jax.grad(jax.checkpoint(forward), (0, 1)))(x, kernel), expected[1:])


def pooled(pool, x):
    def forward(x):
        y = pool(x)
        return jnp.sum(y * draw(3, *y.shape)), y

    (_, y), gradient = jax.jit(jax.value_and_grad(forward, has_aux=True))(x)
    return y, gradient


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 6, 4, 3), (2, 2)),
        ((2, 7, 5, 3), (2, 2)),
        ((1, 9, 8, 2), (3, 2)),
        ((1, 3, 3, 1), (1, 3)),
    ],
)
def test_max_pool_and_its_gradient_are_those_of_flax(shape, window, ties):
    x = draw(0, *shape)
    x = np.round(x) if ties else x
    y, gradient = pooled(lambda x: max_pool(x, window), x)
    expected, expected_gradient = pooled(lambda x: nn.max_pool(x, window, strides=window), x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_the_gradient_of_a_tie_goes_to_the_first_maximum():
    x = np.asarray([[1.0, 2.0], [2.0, 2.0]], np.float32).reshape(1, 2, 2, 1)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x, (2, 2)))))(x)
    np.testing.assert_array_equal(gradient.reshape(2, 2), [[0, 1], [0, 0]])


def test_max_pool_of_a_batch_of_batches():
    x = np.round(draw(0, 3, 2, 5, 4, 2))

    @jax.jit
    def alone(x):
        return pooled(lambda x: max_pool(x, (2, 2)), x)

    together = jax.device_get(jax.vmap(alone)(x))
    for i in range(3):
        assert_close([leaf[i] for leaf in together], alone(x[i]))


def test_max_pool_refuses_windows_that_its_index_cannot_hold():
    with pytest.raises(ValueError, match="at most 256"):
        max_pool(jnp.zeros((1, 34, 34, 1)), (17, 17))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPUs choose by other rules")
@pytest.mark.parametrize(
    ("shape", "features", "expected"),
    [
        ((10, 30, 30, 32), 64, "direct"),  # of 8.6 MiB
        ((2, 30, 30, 32), 64, "products"),  # 1.7 MiB stay in the cache
        ((100, 32, 32, 3), 32, "products"),  # few channels
        ((20, 10, 10, 256), 256, "products"),  # many features
    ],
)
def test_a_cpu_convolves_by_products_unless_the_patches_leave_its_cache(shape, features, expected):
    sizes = shape, (3, 3, shape[-1], features)
    x, kernel = (jax.ShapeDtypeStruct(size, np.float32) for size in sizes)

    def program(form):
        return str(
            jax.make_jaxpr(
                lambda x, kernel: convolution(form)(
                    x, kernel, (1, 1), "VALID", dimension_numbers=NUMBERS
                )
            )(x, kernel)
        )

    assert ("conv_general_dilated" in program("auto")) == (expected == "direct")
    assert "conv_general_dilated" in program("direct")
    assert "conv_general_dilated" not in program("products")
    assert convolution("xla") is lax.conv_general_dilated


def test_kernels_of_their_own_are_a_loop_and_not_a_grouped_convolution():
    """A grouped one is a plain loop on a CPU; a shared kernel has the samples of all at once."""
    x, kernel = draw(0, 3, 2, 6, 5, 4), draw(1, 3, 3, 3, 4, 5)

    def program(axes, *arguments):
        def one(x, kernel):
            return convolution("direct")(x, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS)

        return str(jax.make_jaxpr(jax.vmap(one, axes))(*arguments))

    own, shared = program((0, 0), x, kernel), program((0, None), x, kernel[0])
    assert "feature_group_count=1" in own
    assert "scan" in own
    assert "scan" not in shared
    assert "f32[6,6,5,4]" in shared


class PlainCnn3(nn.Module):
    """Cnn3 without norm in plain Flax."""

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate((32, 64, 128)):
            x = self.layer(nn.Conv, (width, (3, 3)), 9 * x.shape[-1], f"conv_{i}", padding="VALID")(
                x
            )
            x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate((128, 64, 32)):
            x = nn.relu(self.layer(nn.Dense, (width,), x.shape[-1], f"hidden_{i}")(x))
        return self.layer(nn.Dense, (10,), x.shape[-1], "output")(x)

    def layer(self, cls, sizes, fan_in, name, **options):
        kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        bound = fan_in**-0.5

        def bias_init(key, shape, dtype=jnp.float32):
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        return cls(*sizes, kernel_init=kernel_init, bias_init=bias_init, name=name, **options)


def test_cnn3_is_the_plain_flax_network_from_the_same_initial_weights():
    x, labels = draw(0, 2, 32, 32, 3), np.arange(2)
    plain, own = PlainCnn3(), Cnn3(norm="none", convolution="products").module(10)
    initial = jax.jit(lambda key, x: [module.init(key, x) for module in (own, plain)])
    variables, expected = initial(jax.random.key(1), x)
    jax.tree.map(np.testing.assert_array_equal, variables, expected)

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(module, variables):
        def loss(variables):
            outputs = module.apply(variables, x)
            return -jnp.mean(jax.nn.log_softmax(outputs)[jnp.arange(2), labels])

        return jax.grad(loss)(variables)

    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, atol=1e-5),
        gradient(own, variables),
        gradient(plain, variables),
    )
