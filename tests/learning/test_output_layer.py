"""Where the output layer stands in a flat update."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pause_jax.learning import Cnn2, Gru, Linear, Mlp
from pause_jax.learning.learner import LearnerState, output_layer


def state_of(params):
    return LearnerState(None, {"params": params}, None, None)


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (Linear(), np.zeros((1, 4), np.float32)),
        (Mlp(hidden=(3, 2)), np.zeros((1, 4), np.float32)),
        (Cnn2(), np.zeros((1, 8, 8, 1), np.float32)),
        (Gru(embedding=2, hidden=3), np.zeros((1, 5), np.int32)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_positions_are_the_bias_and_incoming_weights_of_each_output(model, sample):
    shapes = jax.eval_shape(model.network(7).init, jax.random.key(0), sample)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.random(leaf.shape, np.float32), shapes)
    places = output_layer(state_of(params))
    assert places is not None
    flat = np.asarray(jax.jit(lambda params: ravel_pytree(params)[0])(params))
    last = params["output"]
    np.testing.assert_array_equal(flat[places[:, 0]], last["bias"])
    np.testing.assert_array_equal(flat[places[:, 1:]], last["kernel"].T)
    assert places.shape == (7, 1 + last["kernel"].shape[0])


def affine(inputs=2, outputs=3):
    return {"kernel": np.zeros((inputs, outputs)), "bias": np.zeros(outputs)}


@pytest.mark.parametrize(
    ("params", "first"),
    [
        ({"Dense_0": affine()}, 0),
        ({"norm": {"scale": np.zeros(5)}, "zoo": affine()}, 5),
        ({"Dense_0": affine(), "Dense_1": affine()}, None),
        ({"a": {"output": affine()}, "b": affine()}, 0),
        ({"output": {"kernel": np.zeros((2, 3))}}, None),
        ({"output": {"kernel": np.zeros((3, 3, 2, 3)), "bias": np.zeros(3)}}, None),
    ],
)
def test_output_layer_is_the_one_named_output_or_the_only_one(params, first):
    places = output_layer(state_of(params))
    if first is None or places is None:
        assert places is first
    else:
        np.testing.assert_array_equal(places[:, 0], first + np.arange(3))


def test_output_layer_is_none_without_a_model():
    nobody: Any = None
    assert output_layer(LearnerState(nobody, None, None, nobody)) is None
