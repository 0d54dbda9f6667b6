"""What the table of devices chooses changes programs, and no result."""

import jax
import numpy as np
import pytest

from pause_jax import presets, simulate
from pause_jax.learning import Dirichlet, Iid, device_choice
from pause_jax.learning.device_choice import CHOICES, ELSEWHERE, DeviceChoice
from pause_jax.run.arguments import execution_of


def test_a_device_that_is_not_in_the_table_has_a_row(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert device_choice.device_choice() == CHOICES["cpu"]
    monkeypatch.setattr(jax, "default_backend", lambda: "new")
    assert device_choice.device_choice() == ELSEWHERE
    # Memory that an accelerator has to spare is no cache of a CPU.
    assert ELSEWHERE.kept > CHOICES["cpu"].kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "choice", "loop"),
    [
        (Iid(), DeviceChoice(kept=2**24, unroll=4), "unroll=4"),
        (Dirichlet(), DeviceChoice(kept=2**24, fixed_steps=True), "length=6"),
    ],
)
def test_loops_of_other_forms_train_the_same_models(monkeypatch, partition, choice, loop):
    config = presets.digits_small("random").replace(num_clients=8, num_rounds=3, eval_every=3)
    config = config.override({"learning.partition": partition, "learning.max_steps": 6})

    def run():
        result = simulate(config, jax.random.key(0), record=("clients", "test_accuracy"))
        return jax.tree.leaves(result.variables), str(
            jax.make_jaxpr(lambda key: simulate(config, key))(jax.random.key(0))
        )

    expected, before = run()
    monkeypatch.setitem(CHOICES, "cpu", choice)
    assert execution_of(None)[-2:] == (choice.unroll, choice.fixed_steps)
    found, after = run()
    assert loop in after
    assert after.count(loop) > before.count(loop)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
