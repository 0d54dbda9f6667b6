"""Canaries: programs that a compiler which must not be used computes wrongly."""

import jax
import jax.numpy as jnp
import pytest

from pause_jax.base.compilation import compiler_options
from tests.support import canaries
from tests.support.command import python

pytestmark = pytest.mark.slow

OURS = "import sys, pause_jax; from tests.support import canaries; sys.exit(canaries.main([]))"
LATE = "import jax; jax.random.key(0); import pause_jax"
# Those that pause_jax sets something for; both were seen to be wrong without it.
by_0_10 = pytest.mark.skipif(
    jax.__version__ not in ("0.10.0", "0.10.1"), reason="what JAX 0.10.0 and 0.10.1 have wrong"
)


@pytest.mark.parametrize("name", canaries.CANARIES)
def test_the_compiler_is_right_as_tests_compile(name):
    canary = canaries.CANARIES[name]()
    assert canaries.error(canary) <= canary.tolerance


@pytest.mark.parametrize("runs", ["small", pytest.param("large", marks=pytest.mark.nightly)])
def test_the_compiler_is_right_as_users_compile(runs, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    options = compiler_options(runs) or {}
    done = python("-c", OURS, XLA_FLAGS=" ".join(f"--{k}={v}" for k, v in options.items()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": ok\n") == len(canaries.CANARIES)


def test_a_canary_sees_one_wrong_row_and_one_that_is_not_a_number():
    canary = canaries.CANARIES["max_one_vmap"]()
    for wrong in (7.0, jnp.nan):
        spoilt = canary._replace(
            program=lambda *inputs, wrong=wrong: canary.program(*inputs).at[-1].add(wrong)
        )
        assert not canaries.error(spoilt) <= canary.tolerance


@by_0_10
def test_without_what_pause_jax_sets_it_is_wrong():
    names = ("max_one_vmap", "mean_one_vmap", "max_few")
    done = python("-m", "tests.support.canaries", *names, XLA_FLAGS="")
    assert done.returncode == 1
    assert done.stdout.count("WRONG") == 2
    assert "max_few: ok" in done.stdout


@by_0_10
def test_an_import_that_is_too_late_says_so():
    assert "Import pause_jax first" in python("-c", LATE, XLA_FLAGS="").stderr
