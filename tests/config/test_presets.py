"""Presets against the papers' tables."""

import jax
import jax.numpy as jnp
import pytest

from pause_jax import presets
from pause_jax.learning import Dirichlet, Iid

# BSFL Table 3: learning rate, beta, alpha, training time; images of the data set.
BSFL_IMAGES = {
    "bsfl_fashion": (5e-5, 1.0, 2.0, 400, (28, 28, 1)),
    "bsfl_fashion_noniid": (1e-5, 1.2, 3.0, 200, (28, 28, 1)),
    "bsfl_cifar10": (9e-5, 1.0, 2.0, 400, (32, 32, 3)),
    "bsfl_cifar10_noniid": (5e-6, 1.2, 3.0, 200, (32, 32, 3)),
}


@pytest.mark.parametrize("name", BSFL_IMAGES)
def test_bsfls_image_presets_have_the_numbers_of_table_3(name):
    rate, beta, alpha, rounds, shape = BSFL_IMAGES[name]
    config = presets.PRESETS[name]()
    learning = config.learning
    assert learning is not None
    assert (learning.learning_rate, config.num_rounds) == (rate, rounds)
    assert (config.reward.beta, config.reward.alpha, config.reward.gamma) == (beta, alpha, 0.0)
    assert (config.num_clients, config.num_selected) == (500, 25)
    assert isinstance(learning.partition, Dirichlet if "noniid" in name else Iid)
    last = learning.schedule.rate(rate, jnp.asarray([1, rounds]))
    assert last.tolist() == pytest.approx([rate, rate / 8])
    module = learning.model.module(10)
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *shape)))
    assert all(0 not in leaf.shape for leaf in jax.tree.leaves(variables))
