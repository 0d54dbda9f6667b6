"""The library's core under other modes of JAX, in a process (tests/support/modes.py).

Two modes: 64-bit numbers, under which model, releases and whole numbers keep their kinds, and JAX's
check that no random key is used twice.
"""

import jax
import pytest

from pause_jax import ConfigError
from pause_jax.policies import Random
from tests.support import modes
from tests.support.command import python

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_every_part_runs_under_both_modes():
    env = {"JAX_NUMPY_RANK_PROMOTION": "raise", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env |= dict.fromkeys(("JAX_ENABLE_X64", "JAX_DEBUG_KEY_REUSE"), "1")
    done = python("-m", "tests.support.modes", **env)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout


def test_key_reuse_is_refused_only_in_the_mode():
    config = modes.BANDIT.replace(policy=modes.Twice(), track_regret=False)
    for policies in ((), (Random(), modes.Twice())):
        with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
            modes.traced(config, policies)
        modes.traced(config, policies)


def test_dtype_promotion_is_refused_only_in_the_mode():
    config, policies = modes.BANDIT.replace(track_regret=False), (Random(), modes.Widening())
    with jax.enable_x64(True), pytest.raises(ConfigError, match="as float64"):
        modes.traced(config, policies)
    modes.traced(config, policies)
