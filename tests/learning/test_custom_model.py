"""Modules of one's own, linen or nnx, and what clients and server do with them."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from pause_jax import ConfigError, Learning, SimConfig, config_file, simulate, sweep
from pause_jax.base.struct import number
from pause_jax.config import validate
from pause_jax.learning import (
    Characters,
    Dataset,
    FedAdam,
    FedAvgM,
    FedYogi,
    Files,
    FlaxModel,
    Gru,
    Iid,
    Linear,
    LinearRegression,
    Natural,
    StepDecay,
    Task,
)
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from pause_jax.testing import check_learner
from tests.support.learners import DATA, FEATURES, KEY, LABELS, config, updates_of

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def base(**changes) -> SimConfig:
    return config(40, **{"model": Linear(), "max_steps": 5, "batch_size": 5, **changes})


RECORD = ("clients", "train_loss", "test_loss", "test_accuracy")


def run(config, data=DATA):
    return simulate(config, KEY, data, record=RECORD)


class LinenNet(nn.Module):
    width: int = 8
    rate: float = 0.0

    @nn.compact
    def __call__(self, x, deterministic):
        x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(3)(nn.Dropout(self.rate)(x, deterministic=deterministic))


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x, training, mask=None):
        x = nn.BatchNorm(use_running_average=not training)(
            nn.Dense(6)(x), mask=None if mask is None else mask[:, None]
        )
        return nn.Dense(3)(x)


class NnxNet(nnx.Module):
    def __init__(self, width: int = 8, rate: float = 0.0, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(5, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs)])
        self.out = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        x = self.drop(nnx.relu(self.norm(self.hidden(x))))
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.out(x)


class NnxPlain(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


# Models of which several tests look at runs: each is compiled once.
LINEN = FlaxModel.of(LinenNet, width=4, rate=0.5)
LINEN_NORM = FlaxModel.of(LinenNorm())
NNX = FlaxModel.of(functools.partial(NnxNet, 8), rate=0.5)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (LINEN_NORM, {"batch_stats/BatchNorm_0/mean", "batch_stats/BatchNorm_0/var"}),
        (NNX, {"others/norm/mean", "others/norm/var"}),
        (LINEN, set()),
    ],
)
def test_custom_module_learns_and_reports_its_running_statistics(model, names):
    config = base(model=model)
    result = run(config)
    assert result.test_accuracy[-1] > 0.7
    np.testing.assert_array_equal(result.test_loss, run(config).test_loss)
    assert set(result.unnoised) == names
    assert result.variables is not None
    count = sum(leaf.size for leaf in jax.tree.leaves(result.variables["params"]))
    assert result.num_parameters == count
    moved = result.variables.get("others", result.variables.get("batch_stats", {}))
    assert all(np.any(np.asarray(leaf) % 1 != 0) for leaf in jax.tree.leaves(moved))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "more"),
    [
        pytest.param(
            LINEN,
            {"server": FedYogi(rate=0.1), "schedule": StepDecay(every=3)},
            marks=pytest.mark.nightly,
        ),
        (NNX, {}),
    ],
)
def test_custom_module_keeps_the_learner_contract(model, more, tmp_path):
    np.savez(tmp_path / "data.npz", x=FEATURES, y=LABELS)
    data = Files(path=str(tmp_path / "data.npz"))
    check_learner(Learning(data=data, partition=Iid(), model=model, max_steps=2, **more))


@pytest.mark.parametrize("source", [NnxPlain, nn.Sequential([nn.Dense(3)])])
def test_linen_and_nnx_modules_compute_the_same_in_training_and_evaluation(source):
    # An affine layer of ones.
    network, x = FlaxModel.of(source).network(3), FEATURES[:4]
    variables = jax.tree.map(np.ones_like, network.init(KEY, x))
    assert set(variables) == {"params"}
    trained, rest = network.train(variables, x, np.ones(4, bool), None)
    assert rest == {}
    for outputs in (trained, network.predict(variables, x)):
        np.testing.assert_allclose(outputs, x.sum(1, keepdims=True) + np.ones(3), 1e-5)


@pytest.mark.parametrize("source", [LinenNet, NnxNet])
def test_dropout_is_drawn_only_in_training_by_the_key(source):
    network = FlaxModel.of(source, rate=0.5).network(3)
    init, train, predict = map(jax.jit, network[:3])
    variables, mask = init(KEY, FEATURES[:1]), np.ones(len(FEATURES), bool)
    one, same, other = (
        np.asarray(train(variables, FEATURES, mask, jax.random.key(seed))[0]) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    expected = predict(variables, FEATURES)
    np.testing.assert_array_equal(predict(variables, FEATURES), expected)
    assert not np.allclose(expected, one)


def test_steps_of_a_client_drop_different_units():
    # All samples alike and nothing learnt: only the dropout differs between rounds.
    alike = Dataset.of(np.ones((200, 5), np.float32), np.zeros(200, int), num_classes=3)
    losses = run(base(model=LINEN, learning_rate=1e-30), alike).train_loss
    assert len(set(np.asarray(losses).tolist())) > 10


class BadInTraining(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        if train:
            raise ValueError("only in training")
        return nn.Dense(3)(x)


class WithoutParameters(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x[:, :3]


class TwoOutputs(nn.Module):
    @nn.compact
    def __call__(self, x):
        return {"out": nn.Dense(3)(x)}


class Unhashable(nn.Module):
    widths: Any = ()

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FlaxModel.of(3), "must be a linen module, or a class or function"),
        (lambda: FlaxModel.of(NnxPlain(rngs=nnx.Rngs(0))), "must be given a class or function"),
        (lambda: FlaxModel.of(LinenNet, widht=3), "could not be created .*widht"),
        (lambda: FlaxModel.of(NnxNet, widht=3), "could not be created .*widht"),
        (lambda: FlaxModel.of(dict), "returned dict, but must return a linen module"),
        (lambda: FlaxModel.of(Unhashable, widths=[1]), "Pass tuples instead of lists"),
        (
            lambda: FlaxModel.of("nowhere:Net"),
            "'nowhere' is not loaded, and config files cannot import",
        ),
        (lambda: FlaxModel.of(f"{__name__}:Nothing"), "test_custom_model' has no 'Nothing'"),
    ],
)
def test_invalid_module_is_refused(make, words):
    with pytest.raises(ConfigError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FlaxModel.of(nn.Dense(2)), r"outputs of shape \(1, 2\) .* classification needs \(1, 3\)"),
        (FlaxModel.of(nn.Dense(1)), r"outputs of shape \(1, 1\) .* needs \(1, 3\)"),
        (FlaxModel.of(BadInTraining), "cannot be applied .*only in training"),
        (FlaxModel.of(nn.Conv(3, (3, 3, 3))), r"flax: cannot be applied to inputs of shape \(5,\)"),
        (Gru(), "gru: cannot be applied"),
        (FlaxModel.of(WithoutParameters()), r"learning.model = flax: has no parameters"),
        (FlaxModel.of(nn.Sequential([WithoutParameters()])), "flax: has no parameters"),
        (FlaxModel.of(TwoOutputs()), r"returned dict, but must return one array"),
        (
            FlaxModel.of(lambda rngs: nnx.Linear(64, 3, rngs=rngs)),
            r"expects 64 features, but receives 5 from .* shape \(5,\)\. Use .* such as mlp\.$",
        ),
    ],
)
def test_model_that_does_not_fit_the_data_is_refused(model, words):
    with pytest.raises(ConfigError, match=words):
        run(base(model=model))


def test_config_file_names_an_importable_module():
    config = base(model=LINEN)
    text = config_file.dumps(config)
    assert f'source = "{__name__}:LinenNet"' in text
    back = config_file.loads(text)
    assert back.learning.model.arguments == (("rate", 0.5), ("width", 4))
    one, other = (run(each) for each in (config, back))
    np.testing.assert_array_equal(one.test_loss, other.test_loss)
    local = config_file.dumps(base(model=FlaxModel.of(lambda rngs: NnxNet(4, rngs=rngs))))
    with pytest.raises(ConfigError, match=r"has no .*<lambda>"):
        run(config_file.loads(local))


def make_net(width: int) -> LinenNet:
    return LinenNet(width=width)


def make_sgd(rate):
    return optax.sgd(rate)


def test_functions_of_a_config_file_are_passed_in_python():
    config = base(model=FlaxModel.of(make_net, width=4), optimizer=make_sgd)
    back = config_file.loads(config_file.dumps(config))
    functions = {"learning.model.source": make_net, "learning.optimizer": make_sgd}
    for path in functions:
        others = {each: function for each, function in functions.items() if each != path}
        with pytest.raises(ConfigError, match=rf"{path} = .*Pass other objects in Python"):
            validate(back.override(others))
    assert back.override(functions) == config


def test_sweep_accepts_custom_modules():
    config = base(model=NNX)
    swept = sweep(config, jax.random.split(KEY, 2), data=DATA, record=RECORD, progress=False)
    single = simulate(config, jax.random.split(KEY, 2)[1], DATA, record=RECORD)
    np.testing.assert_allclose(swept.test_loss[0, 1], single.test_loss, rtol=1e-2)


# ---------------------------------------------------------------- tasks


class Ordinal(Task):
    """Labels in order: the distance counts."""

    name = "ordinal"
    metrics = ("test_distance",)

    def outputs(self, data):
        return (1,)

    def loss(self, outputs, targets):
        return jnp.square(outputs[:, 0] - targets)

    def scores(self, outputs, targets):
        return {"test_distance": jnp.abs(jnp.round(outputs[:, 0]) - targets)}


@pytest.mark.nightly
def test_custom_task_is_learnt_with_recorded_metrics():
    config = base(task=Ordinal(), learning_rate=0.05)
    result = jax.device_get(simulate(config, KEY, DATA))
    assert result.test_distance[-1] < 0.6
    assert np.isnan(result.test_accuracy).all()
    predict = jax.jit(config.learning.model.network(1).predict)
    outputs = np.asarray(predict(result.variables, DATA.x_test))[:, 0]
    distance = np.abs(np.round(outputs) - np.asarray(DATA.y_test)).mean()
    np.testing.assert_allclose(result.test_distance[-1], distance, rtol=1e-5)
    swept = sweep({"own": config, "plain": base()}, KEY[None], data=DATA, progress=False)
    np.testing.assert_allclose(swept.test_distance[0, 0, -1], distance, rtol=1e-4)
    assert np.isnan(swept.test_distance[1]).all()
    assert np.isfinite(swept.test_accuracy[1]).all()
    assert config_file.loads(config_file.dumps(config)).learning.task == Ordinal()


NUMBERS = Dataset.of(FEATURES, 1e3 + FEATURES[:, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"loss": lambda s, o, t: (o - t) ** 2},
            r"loss (returned float32 of shape \(8, 8\)|or scores)",
        ),
        ({"loss": lambda s, o, t: jnp.mean(o[:, 0] - t)}, r"loss returned float32 of shape \(\)"),
        ({"loss": lambda s, o, t: jnp.argmax(o, 1)}, r"loss returned int32 of shape \(8,\)"),
        ({"loss": lambda s, o, t: o[:, 0] - jnp.ones(999)}, r"loss or scores failed"),
        ({"scores": lambda s, o, t: {}}, r"scores returned \[\], but metrics lists \['test_dist"),
        (
            {"scores": lambda s, o, t: {"test_distance": o}},
            r"test_distance returned float32 of shape",
        ),
        # [B, 1] and [B] broadcast to [B, B], whose mean has the right shape. (Without [None]
        # in a program that lets ranks be promoted, as JAX does by default.)
        ({"loss": lambda s, o, t: jnp.mean((o - t[None]) ** 2, axis=1)}, "loss of a sample is"),
        ({"loss": lambda s, o, t: o[:, 0] - jnp.mean(t)}, "loss of a sample is"),
        (
            {"scores": lambda s, o, t: {"test_distance": jnp.mean(o > t[None], axis=1)}},
            "test_distance of a sample is",
        ),
        ({"loss": lambda s, o, t: jnp.ones(2) * t}, "for 8 samples or for one"),
    ],
)
def test_task_without_one_number_per_sample_or_that_mixes_samples_is_refused(changes, words):
    wrong = type("Wrong", (Ordinal,), {"name": "wrong_task", **changes})
    base(task=Ordinal()).learning.load(3, NUMBERS)
    with pytest.raises(ConfigError, match=f"learning.task = wrong_task: .*{words}") as error:
        base(task=wrong()).learning.load(3, NUMBERS)
    assert "\n" not in str(error.value)


def test_loss_that_mixes_samples_is_refused_in_a_trace_and_by_the_contract():
    class Mixed(Ordinal):
        power: float = number(default=2.0)

        def loss(self, outputs, targets):
            return jnp.mean(jnp.abs(outputs - targets.reshape(1, -1)) ** self.power, axis=1)

    def run(data, power):
        return simulate(base(task=Mixed(power=power)), KEY, data).test_loss

    with pytest.raises(ConfigError, match="ordinal: loss of a sample"):
        jax.jit(run)(NUMBERS, 2.0)
    with pytest.raises(ConfigError, match="ordinal: loss of a sample"):
        check_learner(Learning(data=LinearRegression(num_samples=40), task=Mixed()))


def test_task_is_checked_again_for_other_targets():
    class Plain(Task):
        def outputs(self, data):
            return (1,)

        def loss(self, outputs, targets):
            beside = targets[None] if targets.ndim == 1 else targets
            return jnp.mean((outputs - beside) ** 2, axis=1)

    base(task=Plain()).learning.load(3, Dataset.of(FEATURES, FEATURES[:, :1]))
    with pytest.raises(ConfigError, match="Plain: loss of a sample"):
        base(task=Plain()).learning.load(3, NUMBERS)


@pytest.mark.parametrize("given", [1, (), (0,), (1.5,), None, "a"])
def test_outputs_must_be_a_shape(given):
    wrong = type("Wrong", (Ordinal,), {"outputs": lambda self, data: given})
    with pytest.raises(ConfigError, match=r"outputs returned .* tuple of positive integers"):
        simulate(base(task=wrong()), KEY, NUMBERS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config", "the name 'config' must be unused"),
        ("seed", "the name 'seed' must be unused"),
        ("test_loss", "metric name 'test_loss' is reserved"),
        ("clock", "metric 'clock' has the name of a built-in"),
    ],
)
def test_metric_with_a_reserved_name_is_refused(name, words):
    scores = {"metrics": (name,), "scores": lambda s, o, t: {name: o[:, 0]}}
    taken = base(task=type("Taken", (Ordinal,), {"name": "taken", **scores})())
    with pytest.raises(ConfigError, match=words):
        simulate(taken, KEY, DATA)
    with pytest.raises(ConfigError, match=words):
        sweep(taken, KEY, data=DATA, progress=False)


@pytest.mark.nightly
def test_characters_are_learnt_by_natural_clients():
    config = SimConfig(
        num_clients=20, num_selected=3, num_rounds=6, eval_every=6, track_regret=False,
        policy=Random(), privacy=NoPrivacy(),
        learning=Learning(
            data=Characters(length=12), partition=Natural(), model=Gru(hidden=16),
            learning_rate=0.05, max_steps=20,
        ),
    )  # fmt: skip
    data = config.learning.load(20)
    result = simulate(config, KEY, record=("test_loss", "test_accuracy"))
    letters = np.bincount(np.asarray(data.y_train).ravel())
    always_the_commonest = letters.max() / letters.sum()
    assert result.test_accuracy[-1] > 1.3 * always_the_commonest
    assert result.test_loss[-1] < np.log(data.num_classes) - 1


# ---------------------------------------------------------------- optimisers


def test_named_and_custom_optimisers_train_alike():
    named = updates_of(steps=2, optimizer="rmsprop", learning_rate=0.01)
    for own in (lambda rate: optax.rmsprop(rate), optax.rmsprop(0.01)):
        found = updates_of(steps=2, optimizer=own, learning_rate=0.01)
        np.testing.assert_allclose(found, named, rtol=1e-5, atol=1e-7)
    assert not np.allclose(named, updates_of(steps=2))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("adagard", "must be an optax optimiser .*Did you mean 'adagrad'"),
        ("lbfgs", "must be an optax optimiser"),
        (3, "not int"),
        (lambda: optax.sgd(0.1), "must be callable with only the learning rate"),
        (lambda rate: None, "not NoneType"),
        ("nowhere:make", "'nowhere' is not loaded"),
        ("optax:sgd", "'optax:sgd': must be an optax.GradientTransformation"),
    ],
)
def test_invalid_optimiser_is_refused(optimizer, words):
    with pytest.raises(ConfigError, match=words):
        validate(base(optimizer=optimizer))


def test_fixed_rate_refuses_a_schedule():
    config = base(optimizer=optax.sgd(0.1))
    validate(config)
    decaying = config.override({"learning.schedule": config_file.parse_value(
        config, "learning.schedule", "cosine")})  # fmt: skip
    with pytest.raises(
        ConfigError, match="cannot change the fixed rate of a GradientTransformation"
    ):
        validate(decaying)


def slow_server(config, updates):
    """The server's rules by optax's formulas, step by step in NumPy."""
    w = m = v = 0.0
    for t, update in enumerate(updates, start=1):
        g = -update
        if isinstance(config, FedAvgM):
            m = g + config.momentum * m
            w -= config.rate * m
            continue
        m = config.b1 * m + (1 - config.b1) * g
        if isinstance(config, FedYogi):
            v = v - (1 - config.b2) * np.sign(v - g**2) * g**2
        else:
            v = config.b2 * v + (1 - config.b2) * g**2
        w -= config.rate * (m / (1 - config.b1**t)) / (np.sqrt(v / (1 - config.b2**t)) + config.tau)
    return w


@pytest.mark.parametrize(
    "server", [FedAvgM(rate=0.5), FedAdam(rate=0.1), FedYogi(rate=0.1), FedAdam(b1=0.5, tau=0.1)]
)
def test_server_optimisers_match_their_formulas(server):
    from pause_jax.learning.optimizer import server_step

    transformation = server.transformation()
    step = jax.jit(functools.partial(server_step, transformation))
    params, updates = jnp.zeros(()), RNG.standard_normal(6)
    state = transformation.init(params)
    for update in updates:
        before = params, state
        params, state = step(params, state, np.float32(update), np.True_)
        kept = step(*before, np.float32(update), np.False_)
        jax.tree.map(np.testing.assert_array_equal, kept, before)
    np.testing.assert_allclose(params, slow_server(server, updates), rtol=1e-3)


def test_server_without_momentum_is_fedavg():
    plain, same = (run(base(**words)) for words in ({}, {"server": FedAvgM(momentum=0.0)}))
    np.testing.assert_allclose(plain.test_loss, same.test_loss, rtol=1e-5)
    np.testing.assert_array_equal(plain.clients, same.clients)
