"""What the table of devices chooses."""

import jax
import jax.numpy as jnp
import pytest

from pause_jax.learning import device_choice
from pause_jax.learning.convolution import convolution
from pause_jax.learning.device_choice import CHOICES, ELSEWHERE


def test_a_device_that_is_not_in_the_table_has_a_row(monkeypatch):
    for name, expected in (*CHOICES.items(), ("new", ELSEWHERE)):
        monkeypatch.setattr(jax, "default_backend", lambda name=name: name)
        assert device_choice.device_choice() == expected
    # Memory that an accelerator has to spare is no cache of a CPU.
    assert CHOICES["gpu"].kept == ELSEWHERE.kept > CHOICES["cpu"].kept


@pytest.mark.parametrize(
    ("shape", "strides", "padding", "expected"),
    [
        ((20, 15, 15, 32), (1, 1), "VALID", "products"),  # cnn3, a step
        ((10, 30, 30, 32), (1, 1), "VALID", "products"),  # cnn2, a step
        ((500, 15, 15, 32), (1, 1), "VALID", "xla"),  # an evaluation
        ((20, 32, 32, 32), (1, 1), "SAME", "xla"),  # ResNet-18
        ((20, 32, 32, 32), (2, 2), "VALID", "xla"),
    ],
)
def test_a_gpu_convolves_by_products_where_that_was_measured(
    monkeypatch, shape, strides, padding, expected
):
    def program(backend):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        return str(
            jax.make_jaxpr(
                lambda x, kernel: convolution("auto")(
                    x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )(jnp.zeros(shape), jnp.zeros((3, 3, shape[-1], 64)))
        )

    assert ("conv_general_dilated" in program("gpu")) == (expected == "xla")
    assert "conv_general_dilated" in program("new")
