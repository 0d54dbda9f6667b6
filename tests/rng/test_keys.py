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
    drawn = [run.data, *jax.random.split(run.data), run.model, run.inputs]
    for t in ROUNDS:
        of_round = keys.of_round(run, t)
        shared = (of_round.training, of_round.privacy, of_round.answers)
        drawn += [of_round.latency, of_round.availability, of_round.policy]
        drawn += [of_round.availability_trace, of_round.dropout]
        drawn += [keys.of_clients(key, CLIENTS) for key in shared]
        drawn += [*keys.question_and_choice(of_round.policy)]
    assert distinct(drawn)
    assert not distinct([*drawn, drawn[-1]])


def test_runs_share_no_stream():
    runs = [keys.streams(key) for key in jax.random.split(jax.random.key(0), 5)]
    assert distinct(list(itertools.chain(*runs)))


def test_round_keys_match_separate_folds():
    run = keys.streams(jax.random.key(3))
    for t in (1, 2, 7):
        expected = keys.RoundKeys(
            latency=round_keys.latency(run.world, t),
            availability=round_keys.availability(run.world, t),
            policy=keys.choice(run.policy, t),
            training=round_keys.cohort(run.training, t),
            privacy=round_keys.cohort(run.privacy, t),
            availability_trace=round_keys.availability_trace(run.world, t),
            dropout=round_keys.dropout(run.world, t),
            answers=round_keys.answers(run.training, t),
        )
        for one, other in zip(keys.of_round(run, t), expected, strict=True):
            np.testing.assert_array_equal(*map(jax.random.key_data, (one, other)))
