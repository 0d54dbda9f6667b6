"""Convolutions, norms and the networks made of them against NumPy and plain Flax, in float64."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.learning import Cnn3, ResNet18
from pause_jax.learning.convolution import FORMS, convolution
from pause_jax.learning.network import linen_network
from pause_jax.learning.normalisation import normalise

pytestmark = pytest.mark.slow

# A case: size of the kernel, stride, padding. The images have an odd and an even side.
CASES = [(k, s, padding) for k in (1, 3, 7) for s in (1, 2) for padding in ("SAME", "VALID")]
IMAGE = (9, 8)


def draw(seed: int, *shape: int) -> np.ndarray:
    """float64 values that float32 holds too."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(float)


def assert_near(actual, expected, rtol: float) -> None:
    """Every leaf, to a share of its largest entry."""

    def check(a, e):
        assert np.shape(a) == np.shape(e)
        assert np.abs(np.asarray(a) - e).max() <= rtol * np.abs(e).max()

    jax.tree.map(check, actual, expected)


# ---------------------------------------------------------------- convolutions


def edges(size: int, k: int, stride: int, padding: str) -> tuple[int, int]:
    """Zeros before and after an axis: SAME has ceil(size / stride) outputs, and pads at the end."""
    spare = max((-(-size // stride) - 1) * stride + k - size, 0) if padding == "SAME" else 0
    return spare // 2, spare - spare // 2


def convolved(x, kernel, dy, stride: int, padding: str):
    """Output, gradient of x and of the kernel of sum(y dy), one output pixel after the other."""
    size = kernel.shape[0]
    around = [edges(n, size, stride, padding) for n in x.shape[1:3]]
    padded = np.pad(x, [(0, 0), *around, (0, 0)])
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
    (top, _), (left, _) = around
    dx = d_padded[:, top : top + x.shape[1], left : left + x.shape[2]]
    return y, dx, d_kernel


def outputs(size: int, k: int, stride: int, padding: str) -> int:
    return (size + sum(edges(size, k, stride, padding)) - k) // stride + 1


def case_arrays(k: int, stride: int, padding: str, *clients: int):
    """(input, kernel, gradient of the output), of clients in front or of one."""
    height, width = (outputs(n, k, stride, padding) for n in IMAGE)
    shapes = (2, *IMAGE, 3), (k, k, 3, 4), (2, height, width, 4)
    return tuple(draw(seed + k, *clients, *shape) for seed, shape in enumerate(shapes))


@functools.partial(jax.jit, static_argnums=(0, 1))
def found(form: str, cases, arrays):
    """Value and gradients of each case; its axes say what the clients of a vmap have alone."""

    def one(k, stride, padding, x, kernel, dy):
        def forward(x, kernel):
            numbers = ("NHWC", "HWIO", "NHWC")
            strides = (stride, stride)
            return convolution(form)(x, kernel, strides, padding, dimension_numbers=numbers)

        y, pull = jax.vjp(forward, x, kernel)
        return y, *pull(dy)

    results = []
    for (*case, axes), given in zip(cases, arrays, strict=True):
        run = functools.partial(one, *case)
        results.append((run if axes is None else jax.vmap(run, axes))(*given))
    return results


@pytest.mark.parametrize("form", [form for form in FORMS if form != "auto"])
def test_every_form_of_convolution_is_that_of_float64(form):
    cases = [(*case, None) for case in CASES]
    arrays = [case_arrays(*case) for case in CASES]
    expected = [
        convolved(x, kernel, dy, stride, padding)
        for (_, stride, padding), (x, kernel, dy) in zip(CASES, arrays, strict=True)
    ]
    # Clients side by side, each with its own kernel, and all with one; each has its gradient.
    for case, own in (((3, 2, "SAME"), True), ((3, 1, "VALID"), False), ((7, 2, "SAME"), True)):
        x, kernels, dy = case_arrays(*case, 3)
        kernel = kernels if own else kernels[0]
        each = [convolved(x[i], kernels[i if own else 0], dy[i], *case[1:]) for i in range(3)]
        cases.append((*case, (0, 0 if own else None, 0)))
        arrays.append((x, kernel, dy))
        expected.append(tuple(map(np.stack, zip(*each, strict=True))))
    single = jax.tree.map(np.float32, arrays)
    assert_near(found(form, tuple(cases), single), expected, 1e-5)


def test_a_kernel_that_is_a_little_off_is_noticed():
    case = (3, 2, "SAME")
    x, kernel, dy = case_arrays(*case)
    right, wrong = (convolved(x, each, dy, *case[1:]) for each in (kernel, kernel * (1 + 1e-4)))
    for part in range(2):  # the gradient of the kernel does not depend on it
        with pytest.raises(AssertionError):
            assert_near(wrong[part], right[part], 1e-5)


# ---------------------------------------------------------------- norms


class Normalised(nn.Module):
    """One layer of norm."""

    norm: str

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return normalise(x, self.norm, "norm", train, mask)


@pytest.mark.parametrize("shape", [(6, 3, 2, 16), (6, 16)])
def test_running_statistics_are_the_textbooks_and_leave_out_rows_that_fill_up(shape):
    module = Normalised("batch")
    variables = jax.jit(module.init)(jax.random.key(0), np.zeros(shape, np.float32))
    axes, keep = tuple(range(len(shape) - 1)), np.asarray([1, 1, 0, 1, 1, 0], bool)
    scale, bias = draw(1, 16), draw(2, 16)
    clear = {"norm": {"scale": np.float32(scale), "bias": np.float32(bias)}}
    variables = {**variables, "clear": clear}
    mean, var = np.zeros(16), np.ones(16)
    apply = jax.jit(
        lambda variables, x: module.apply(variables, x, True, keep, mutable=["batch_stats"])
    )
    for step in range(6):
        x = 2 + 3 * draw(10 + step, *shape)
        x[~keep] = 1e3  # what fills up a batch
        y, changed = apply(variables, np.float32(x))
        variables = {**variables, **changed}
        of_batch = x[keep].mean(axis=axes), x[keep].var(axis=axes)
        mean, var = 0.9 * mean + 0.1 * of_batch[0], 0.9 * var + 0.1 * of_batch[1]
        expected = scale * (x[keep] - of_batch[0]) / np.sqrt(of_batch[1] + 1e-5) + bias
        assert_near(np.asarray(y)[keep], expected, 1e-5)
    statistics = variables["batch_stats"]["norm"]["statistics"]
    assert_near(dict(statistics), {"mean": mean, "var": var}, 1e-5)
    predicted = jax.jit(module.apply)(variables, np.float32(x))
    assert_near(predicted, scale * (x - mean) / np.sqrt(var + 1e-5) + bias, 1e-5)
    # Statistics of all rows would be far from these.
    assert np.abs(x.mean(axis=axes) - mean).min() > 100


@pytest.mark.parametrize(("shape", "groups"), [((5, 3, 2, 16), 8), ((5, 16), 1)])
def test_group_norm_standardises_groups_of_channels_of_one_sample(shape, groups):
    module, x = Normalised("group"), 2 + 3 * draw(0, *shape)
    scale, bias = draw(1, 16), draw(2, 16)
    weights = {"norm": {"scale": np.float32(scale), "bias": np.float32(bias)}}
    y = jax.jit(module.apply)({"params": weights}, np.float32(x))
    parts = x.reshape(5, -1, groups, 16 // groups)
    centred = parts - parts.mean(axis=(1, 3), keepdims=True)
    standard = centred / np.sqrt(parts.var(axis=(1, 3), keepdims=True) + 1e-6)
    assert_near(y, scale * standard.reshape(shape) + bias, 1e-5)


# ---------------------------------------------------------------- networks


class PlainCnn3(nn.Module):
    """The authors' network with its six batch norms in plain Flax."""

    @nn.compact
    def __call__(self, x, train):
        def norm(x, i):
            return nn.BatchNorm(not train, momentum=0.9, name=f"norm_{i}")(x)

        for i, width in enumerate((32, 64, 128)):
            x = nn.Conv(width, (3, 3), padding="VALID", name=f"conv_{i}")(x)
            x = norm(nn.relu(nn.max_pool(x, (2, 2), strides=(2, 2))), i)
        x = x.reshape(len(x), -1)
        for i, width in enumerate((128, 64, 32)):
            x = norm(nn.relu(nn.Dense(width, name=f"hidden_{i}")(x)), 3 + i)
        return nn.Dense(10, name="output")(x)


class PlainBlock(nn.Module):
    """The basic block of He et al. (2016), Fig. 5 (left)."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, train):
        def layer(x, size, stride, name):
            edge = (size // 2, size // 2)
            x = nn.Conv(
                *(self.features, (size, size), (stride, stride), (edge, edge)),
                use_bias=False,
                name=f"conv_{name}",
            )(x)
            return nn.BatchNorm(not train, momentum=0.9, name=f"norm_{name}")(x)

        y = layer(nn.relu(layer(x, 3, self.stride, 0)), 3, 1, 1)
        if x.shape[-1] != self.features or self.stride > 1:
            x = layer(x, 1, self.stride, "shortcut")
        return nn.relu(x + y)


class PlainResNet18(nn.Module):
    """ResNet-18 with a 3x3 stem, of width 8, in plain Flax."""

    @nn.compact
    def __call__(self, x, train):
        edge = ((1, 1), (1, 1))
        x = nn.Conv(8, (3, 3), padding=edge, use_bias=False, name="conv")(x)
        x = nn.relu(nn.BatchNorm(not train, momentum=0.9, name="norm")(x))
        for stage, first in enumerate((1, 2, 2, 2)):
            for i, stride in enumerate((first, 1)):
                x = PlainBlock(8 * 2**stage, stride, name=f"stage_{stage}_block_{i}")(x, train)
        return nn.Dense(10, name="output")(x.mean(axis=(1, 2)))


def merged(one, other):
    """Two nested dictionaries in one."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one
    both = {name: merged(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}


def in_plain_flax(tree):
    """Scales and biases among the other parameters, statistics as of one ``nn.BatchNorm``."""

    def flat(tree):
        if set(tree) == {"statistics"}:
            return tree["statistics"]
        return {name: flat(value) for name, value in tree.items()}

    params = merged(tree["params"], tree["clear"])
    return {"params": params} | (
        {"batch_stats": flat(tree["batch_stats"])} if len(tree) > 2 else {}
    )


LABELS = np.asarray([3, 7, 3])


def loss_of(outputs):
    return -jnp.mean(jax.nn.log_softmax(outputs[:3])[jnp.arange(3), LABELS])


def random_variables(module, x):
    """Of no special values, float64."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    rng = np.random.default_rng(3)

    def fill(path, leaf):
        if path[-1].key in ("scale", "var"):
            return rng.uniform(0.5, 1.5, leaf.shape)
        spread = 0.1 if len(leaf.shape) == 1 else np.prod(leaf.shape[:-1]) ** -0.5
        return spread * rng.standard_normal(leaf.shape)

    return jax.tree_util.tree_map_with_path(fill, dict(shapes))


@functools.cache
def networks(kind):
    """(images, variables, what plain Flax makes of them)."""
    plain, model, size = {
        "cnn3": (PlainCnn3(), Cnn3(norm="batch"), (22, 24)),
        "resnet18": (PlainResNet18(), ResNet18(width=8, norm="batch"), (9, 6)),
    }[kind]
    x = draw(4, 3, *size, 3)
    variables = random_variables(model.module(10), x)

    def loss(params, rest):
        y, changed = plain.apply({"params": params, **rest}, x, True, mutable=["batch_stats"])
        return loss_of(y), (y, changed)

    start = in_plain_flax(variables)
    params = start.pop("params")
    gradient, (y, changed) = jax.jit(jax.grad(loss, has_aux=True))(params, start)
    return x, variables, jax.device_get((y, gradient, changed["batch_stats"]))


@pytest.mark.parametrize(
    ("kind", "form"),
    [("cnn3", "products"), ("resnet18", "direct")],
)
def test_a_step_of_the_network_is_that_of_plain_flax(kind, form):
    """Outputs, gradients of all weights and running statistics; two rows fill up the batch."""
    with jax.enable_x64(True):
        x, variables, (y, gradient, statistics) = networks(kind)
        model = {"cnn3": Cnn3(norm="batch"), "resnet18": ResNet18(width=8, norm="batch")}[kind]
        network = linen_network(model.replace(convolution=form).module(10), draws=False)
        padded = np.concatenate([x, 50 + x[:2]])
        mask = np.asarray([True] * 3 + [False] * 2)

        def loss(trained):
            outputs, changed = network.train({**variables, **trained}, padded, mask, None)
            return loss_of(outputs), (outputs, changed)

        trained = {name: variables[name] for name in ("params", "clear")}
        found, (outputs, changed) = jax.jit(jax.grad(loss, has_aux=True))(trained)
        assert outputs.dtype == np.float64
        assert_near(outputs[:3], y, 1e-10)
        actual = in_plain_flax(jax.device_get({**found, **changed}))
        assert_near(actual, {"params": gradient, "batch_stats": statistics}, 1e-10)
