"""Training a part of a model: the output layer, leaves by a pattern, low-rank changes."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from pause_jax import Asynchronous, ConfigError, config_file, simulate
from pause_jax.analysis.ledger import ledger
from pause_jax.bandit import Selection
from pause_jax.learning import (
    FedAdam,
    FlaxModel,
    Gru,
    Head,
    Linear,
    Lora,
    Matching,
    Mlp,
    TrainedPart,
)
from pause_jax.learning.learner import output_layer, update_size
from pause_jax.learning.server import averaged, no_updates
from pause_jax.privacy import PerCoordinateLaplace
from pause_jax.testing import check_learner
from tests.support.learners import DATA, KEY, MODEL, built, config, learning, updates_of

pytestmark = pytest.mark.slow

LORA = Lora(rank=2, scale=0.5)
RNG = np.random.default_rng(0)


# --- what stays as it is


NOISY = {
    "head": {"trained": "head", "server": FedAdam(rate=0.1)},
    "pattern": {"trained": "hidden_0/", "optimizer": "adam", "keep_optimizer_state": True},
    "lora": {"trained": LORA},
}


@functools.cache
def noisy_run(name):
    return simulate(config(50, PerCoordinateLaplace(), **NOISY[name]), KEY, DATA)


@pytest.mark.parametrize("name", NOISY)
def test_frozen_weights_stay_bit_equal_for_50_noisy_rounds(name):
    _, before = built(**NOISY[name])
    after: Any = noisy_run(name).variables
    jax.tree.map(np.testing.assert_array_equal, before.model["frozen"], after["frozen"])
    moved = jax.tree.map(
        lambda old, new: np.all(old != new), before.model["params"], after["params"]
    )
    assert all(jax.tree.leaves(moved))


@pytest.mark.nightly
@pytest.mark.parametrize("clock", [None, Asynchronous(concurrency=2, buffer=1)])
def test_frozen_weights_stay_bit_equal_with_late_updates(clock):
    late = {"stale_updates": "next", "deadline": 0.2} if clock is None else {"clock": clock}
    _, before = built("head")
    after: Any = simulate(config(6, trained="head").replace(**late), KEY, DATA).variables
    jax.tree.map(np.testing.assert_array_equal, before.model["frozen"], after["frozen"])
    assert np.any(before.model["params"]["output"]["bias"] != after["params"]["output"]["bias"])


def test_clients_share_one_copy_of_the_frozen_weights():
    def shapes(trained):
        learner, state = built(trained)
        selection = Selection(jnp.arange(3), jnp.full(3, 1 / 3))
        train = jax.make_jaxpr(lambda s: learner.train(KEY, s, selection, lambda x: x))
        return set(re.findall(r"f32\[([\d,]+)\]", str(train(state))))

    assert "3,5,4" in shapes("all")  # hidden_0/kernel of three clients
    assert "3,5,4" not in shapes("head")
    _, state = built("head")
    assert no_updates(state, 7).keys() == {"params"}


# --- what is trained, sent and counted


@pytest.mark.parametrize(
    ("trained", "size"),
    [
        ("all", 5 * 4 + 4 + 4 * 3 + 3),
        ("head", 4 * 3 + 3),
        ("bias$", 4 + 3),
        (LORA, 2 * (5 + 4) + 2 * (4 + 3)),
        (Lora(rank=1, targets="output"), 4 + 3),
    ],
)
def test_update_size_counts_the_trained_part_alone(trained, size):
    assert update_size(built(trained)[1]) == size


@pytest.mark.parametrize(("name", "size"), [("head", 15), ("pattern", 24), ("lora", 32)])
def test_traffic_and_ledger_are_those_of_the_trained_part(name, size):
    result = noisy_run(name)
    assert result.num_parameters == size
    assert result.unnoised == ()
    np.testing.assert_array_equal(result.downloaded, 2 * 4 * size)
    np.testing.assert_array_equal(result.uploaded, 2 * 4 * size)
    book = ledger(result)
    np.testing.assert_allclose(book.whole_update, size * book.spent)


def test_head_moves_as_in_full_training_with_the_rest_masked():
    def masked(rate):
        labels = {"hidden_0": "frozen", "output": "trained"}
        parts = {"frozen": optax.set_to_zero(), "trained": optax.sgd(rate, momentum=0.9)}
        return optax.multi_transform(parts, {"params": labels})

    def momentum(rate):
        return optax.sgd(rate, momentum=0.9)

    whole = updates_of(steps=3, optimizer=masked)
    np.testing.assert_array_equal(whole[:, :24], 0)
    head = updates_of("head", steps=3, optimizer=momentum)
    np.testing.assert_allclose(head, whole[:, 24:], rtol=1e-5, atol=1e-7)


def test_lora_predicts_as_in_the_paper():
    learner, state = built(LORA)
    evaluate = jax.jit(learner.evaluate)
    factors = jax.tree.map(lambda x: RNG.standard_normal(x.shape, np.float32), state.model)
    state = state._replace(variables={**state.model, "params": factors["params"]})
    frozen = state.model["frozen"]

    def layer(x, name):
        kernel, bias = frozen[name]["kernel"], frozen[name]["bias"]
        change = state.model["params"][name]["kernel"]
        return x @ np.asarray(kernel) + 0.5 * (x @ change["a"]) @ change["b"] + np.asarray(bias)

    outputs = layer(np.maximum(layer(np.asarray(DATA.x_test), "hidden_0"), 0), "output")
    accuracy = np.mean(outputs.argmax(1) == np.asarray(DATA.y_test))
    np.testing.assert_allclose(evaluate(state)["test_accuracy"], accuracy)
    shifted = outputs - outputs.max(1, keepdims=True)
    loss = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(shifted)), DATA.y_test]
    np.testing.assert_allclose(evaluate(state)["test_loss"], loss.mean(), rtol=1e-5)


def test_lora_starts_as_the_model_that_the_key_draws():
    _, whole = built()
    _, state = built(LORA)
    merged = learning(trained=LORA).trained.whole(state.model)
    jax.tree.map(np.testing.assert_array_equal, merged, whole.model)
    a = state.model["params"]["hidden_0"]["kernel"]["a"]
    assert a.shape == (5, 2)
    assert np.all(np.asarray(state.model["params"]["hidden_0"]["kernel"]["b"]) == 0)
    drawn = Lora(rank=50).split(KEY, {"kernel": jnp.zeros((400, 50))})[0]["kernel"]["a"]
    np.testing.assert_allclose(jnp.std(drawn), 400**-0.5, rtol=0.02)


@pytest.mark.parametrize("equal", ["neither", "a", "b"])
def test_average_of_lora_factors_is_that_of_their_products_only_if_one_is_equal(equal):
    _, state = built(Lora(rank=2, targets="hidden_0"))
    a, b = RNG.standard_normal((2, 5, 2)), RNG.standard_normal((2, 2, 4))
    a, b = (x[:1].repeat(2, 0) if equal == name else x for name, x in (("a", a), ("b", b)))
    start = state.model["params"]["hidden_0"]["kernel"]
    moves = [
        jnp.concatenate([(a[k] - start["a"]).ravel(), (b[k] - start["b"]).ravel()]) for k in (0, 1)
    ]
    weights = jnp.asarray([0.25, 0.75])
    after, _ = averaged(None, state, {"params": jnp.stack(moves)}, weights)
    mean = after["params"]["hidden_0"]["kernel"]
    products = 0.25 * a[0] @ b[0] + 0.75 * a[1] @ b[1]
    apart = np.abs(mean["a"] @ mean["b"] - products).max()
    assert apart < 1e-5 if equal != "neither" else apart > 0.1


def test_output_layer_of_a_policy_is_within_the_trained_head():
    _, state = built("head")
    np.testing.assert_array_equal(
        output_layer(state),
        np.concatenate([np.arange(3)[:, None], 3 + np.arange(12).reshape(4, 3).T], 1),
    )
    assert output_layer(built(LORA)[1]) is None


def test_a_learner_of_a_part_keeps_the_contract():
    check_learner(learning(trained=LORA, max_steps=2))


# --- any model


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.LayerNorm()(nn.Dense(6)(x)))
        return nn.Dense(3, name="output")(x)


class Nnx(nnx.Module):
    def __init__(self, *, rngs):
        self.blocks = nnx.List([nnx.Linear(5, 6, rngs=rngs)])
        self.output = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.output(nnx.relu(self.blocks[0](x)))


@pytest.mark.nightly
@pytest.mark.parametrize("module", [Linen, Nnx])
def test_a_part_of_a_custom_model_is_trained(module):
    model = FlaxModel.of(module)
    assert update_size(built("head", model=model)[1]) == 6 * 3 + 3
    assert update_size(built(Lora(rank=1), model=model)[1]) == (5 + 6) + (6 + 3)
    whole, head = updates_of(model=model), updates_of("head", model=model)
    np.testing.assert_allclose(head, whole[:, -21:], rtol=1e-5, atol=1e-7)


def test_lora_adapts_the_gates_of_a_recurrent_network():
    params = jax.eval_shape(Gru(embedding=2, hidden=3).network(7).init, KEY, np.zeros((1, 5), int))
    assert len(Lora(rank=1).leaves(params["params"])) == 7  # 6 of the gates, and the output's


# --- config


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("all", TrainedPart()),
        ("head", Head()),
        ("lora", Lora()),
        ("hidden", Matching(pattern="hidden")),
    ],
)
def test_a_text_names_a_part_or_is_a_pattern(text, part):
    named = config(trained=text)
    assert named.learning.trained == part
    assert config_file.loads(config_file.dumps(named)).learning.trained == part


def test_the_command_line_sets_a_part():
    changes = ["learning.trained=lora", "learning.trained.rank=2", "learning.trained.scale=0.5"]
    assert config_file.changed(config(), changes).learning.trained == LORA
    assert config_file.changed(config(), ["learning.trained=head"]).learning.trained == Head()


class WithStatistics(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(x))


@pytest.mark.parametrize(
    ("trained", "model", "words"),
    [
        ("conv", MODEL, "pattern = 'conv': must match one of hidden_0/bias, hidden_0/kernel"),
        ("zoo", Mlp(hidden=(4, 4, 4)), "hidden_2/bias and 3 more."),
        ("(", MODEL, "pattern = '(': must be a regular expression"),
        (
            "head",
            FlaxModel.of(nn.Sequential([nn.Dense(4), nn.Dense(3)])),
            "head: the model must have a unique output layer",
        ),
        ("head", FlaxModel.of(WithStatistics()), "has the collection batch_stats, whose updates"),
        (Lora(rank=4), MODEL, "rank = 4: must be <= 3, the smaller dimension of output/kernel."),
        (Lora(targets="bias"), Linear(), "targets = 'bias': must match one of output/kernel."),
        (Lora(targets="["), Linear(), "targets = '[': must be a regular expression"),
        (Lora(rank=0), MODEL, "rank = 0: must be a whole number, >= 1"),
        (3, MODEL, "learning.trained = 3: must be a config object"),
    ],
)
def test_a_part_that_does_not_fit_the_model_is_refused(trained, model, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        simulate(config(trained=trained, model=model), KEY, DATA)
