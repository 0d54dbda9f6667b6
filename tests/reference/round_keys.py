"""The keys of one round, one by one: what ``pause_jax.rng.keys.of_round`` computes at once."""

import jax


def latency(world, round):
    return jax.random.fold_in(world, 2 * round)


def local_work(world, round):
    return jax.random.fold_in(latency(world, round), 2**32 - 1)


def availability(world, round):
    return jax.random.fold_in(world, 2 * round + 1)


def availability_trace(world, round):
    return jax.random.fold_in(jax.random.fold_in(world, 0), round)


def dropout(world, round):
    return jax.random.fold_in(jax.random.fold_in(world, 1), round)


def cohort(stream, round):
    """Of ``training`` or ``privacy``, to be folded by client."""
    return jax.random.fold_in(stream, round)


def answers(training, round):
    """To be folded by client."""
    return jax.random.fold_in(jax.random.fold_in(training, 0), round)
