"""A policy that holds another one: its field has a name that no other config has."""

import jax
import numpy as np
import pytest

from pause_jax import config_file, policies, sweep
from pause_jax.analysis.ledger import ledger
from pause_jax.bandit.search import Annealing
from pause_jax.base.struct import node, number
from pause_jax.policies import Pause, Policy, PolicyConfig, Random
from tests.support.runs import BANDIT

pytestmark = pytest.mark.slow


class Mixed(PolicyConfig):
    """One policy, and once in a while another."""

    name = "mixed"
    summary = "a policy with a fallback"

    share: float = number(default=0.5, at_least=0, at_most=1)
    first: PolicyConfig = node(factory=Pause, of=PolicyConfig)
    fallback: PolicyConfig = node(factory=Random, of=PolicyConfig)

    def build(self, context):
        both = self.first.build(context), self.fallback.build(context)

        def select(key, states, round, available):
            luck, *rest = jax.random.split(key, 3)
            chosen = [
                policy.select(each, state, round, available)
                for policy, each, state in zip(both, rest, states, strict=True)
            ]
            other = jax.random.bernoulli(luck, self.share)
            return jax.tree.map(lambda a, b: jax.numpy.where(other, b, a), *chosen)

        def update(states, selection, observation):
            return tuple(
                policy.update(state, selection, observation)
                for policy, state in zip(both, states, strict=True)
            )

        return Policy(lambda: tuple(policy.init() for policy in both), select, update)


def test_nested_policy_round_trips_through_toml():
    mine = Mixed(share=0.25, first=Pause(search=Annealing(chains=3)), fallback=Mixed(share=1.0))
    config = BANDIT.replace(policy=mine)
    assert config_file.loads(config_file.dumps(config)) == config
    text = 'learning = "none"\n[policy]\nname = "mixed"\nfallback = "sa_pause"\n'
    loaded = config_file.loads(text).policy
    assert isinstance(loaded, Mixed)
    assert loaded.fallback == policies.named("sa_pause")
    changed = config_file.changed(config, ["policy.fallback.fallback=oort", "policy.share=1"])
    assert isinstance(changed.policy, Mixed)
    assert isinstance(changed.policy.fallback, Mixed)
    assert changed.policy.fallback.fallback == policies.Oort()


def test_nested_policy_sweeps_and_has_a_ledger():
    configs = {
        f"share {share:g}": BANDIT.replace(policy=Mixed(share=share), track_regret=False)
        for share in (0.0, 1.0)
    }
    record = ("counts", "queried", "spent")
    data = sweep(configs, jax.random.key(0), record=record, progress=False)
    np.testing.assert_array_equal(data["policy.share"], [0, 1])
    for name in configs:
        book, counts = ledger(data.sel(config=name, seed=0)), data.counts.sel(config=name, seed=0)
        np.testing.assert_array_equal(book.participations, counts)
        assert book.spent.max() > 0
