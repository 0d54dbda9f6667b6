"""The named keys of a run: whoever draws, draws with a key of its own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax.rng import keys
from tests.reference import round_keys

ROUNDS, CLIENTS = range(1, 7), jnp.arange(6)


def distinct(drawn: list[jax.Array]) -> bool:
    data = np.concatenate([np.atleast_2d(jax.random.key_data(key)) for key in drawn])
    return len(np.unique(data, axis=0)) == len(data)


def test_no_two_draws_of_a_run_share_a_key():
    run = keys.streams(jax.random.key(0))
    drawn = [run.data, run.model, run.inputs]
    together = keys.of_rounds(run, jnp.asarray(ROUNDS), rare=True)
    for i, _ in enumerate(ROUNDS):
        own = keys.of_round(run, *(data[i] for data in together))
        drawn += [own.latency, own.availability, own.availability_trace, own.dropout]
        drawn += [keys.of_clients(key, CLIENTS) for key in (own.training, own.privacy, own.answers)]
        drawn += [own.policy, *keys.question_and_choice(own.policy)]
    assert distinct(drawn)
    assert not distinct([*drawn, drawn[-1]])


def test_a_run_without_rare_draws_has_the_same_other_keys():
    run, rounds = keys.streams(jax.random.key(0)), jnp.asarray(ROUNDS)
    (few,), (every, _) = (
        keys.of_rounds(run, rounds, rare=False),
        keys.of_rounds(run, rounds, rare=True),
    )
    np.testing.assert_array_equal(few, every)
    own = keys.of_round(run, few[0])
    assert own.latency is not None
    assert [own.availability_trace, own.dropout, own.answers] == 3 * [None]


def test_runs_share_no_stream():
    runs = [keys.streams(key) for key in jax.random.split(jax.random.key(0), 5)]
    assert distinct(list(itertools.chain(*runs)))


def test_the_keys_of_many_rounds_are_those_of_each():
    run, rounds = keys.streams(jax.random.key(3)), jnp.arange(1, 8)
    together = keys.of_rounds(run, rounds, rare=True)
    for i, t in enumerate(rounds):
        alone = keys.RoundKeys(
            latency=round_keys.latency(run.world, t),
            availability=round_keys.availability(run.world, t),
            policy=keys.choice(run.policy, t),
            training=round_keys.cohort(run.training, t),
            privacy=round_keys.cohort(run.privacy, t),
            availability_trace=round_keys.availability_trace(run.world, t),
            dropout=round_keys.dropout(run.world, t),
            answers=round_keys.answers(run.training, t),
        )
        for ours, theirs in zip(
            keys.of_round(run, *(data[i] for data in together)), alone, strict=True
        ):
            np.testing.assert_array_equal(*map(jax.random.key_data, (ours, theirs)))
