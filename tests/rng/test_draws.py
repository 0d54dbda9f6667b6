"""Blocks of random numbers: threefry's own words, the laws made of them, and whose they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pause_jax.rng import draws
from tests.reference import threefry

KEY = jax.random.key(3)
# Below it a test of Kolmogorov and Smirnov is taken for a failure.
RARE = 1e-4

bits = jax.jit(draws.bits, static_argnums=1)
bits_of = jax.jit(draws.bits_of, static_argnums=2)
LAWS = {
    "laplace": jax.jit(draws.laplace, static_argnums=1),
    "norm": jax.jit(draws.normal, static_argnums=1),
}
FROM_WORDS = {"laplace": jax.jit(draws.laplace_from), "norm": jax.jit(draws.normal_from)}


@pytest.mark.parametrize(
    ("key", "pair", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_oracle_matches_known_threefry_answers(key, pair, words):
    assert tuple(map(int, threefry.encrypted(key, *pair))) == words


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_words_match_the_oracle(count):
    numbers = np.array([0, 5, 2, 59_999])
    ours = np.asarray(bits_of(KEY, numbers, count))
    assert ours.dtype == np.uint32
    for row, number in zip(ours, numbers, strict=True):
        np.testing.assert_array_equal(row, threefry.words(KEY, int(number), count))
    np.testing.assert_array_equal(bits(KEY, (count,)), threefry.words(KEY, 0, count))


def test_words_do_not_depend_on_other_draws():
    together, alone = np.asarray(bits_of(KEY, np.arange(9), 10)), bits_of(KEY, np.array([4]), 33)
    np.testing.assert_array_equal(together[4], np.asarray(alone)[0, :10])
    pair = jax.random.split(KEY)
    of_both = np.asarray(jax.vmap(lambda key: bits_of(key, np.arange(9), 10))(pair))
    for row, key in zip(of_both, pair, strict=True):
        np.testing.assert_array_equal(row, bits_of(key, np.arange(9), 10))


def test_jax_draws_from_same_key_do_not_collide():
    ours = np.asarray(bits_of(KEY, np.arange(40), 80)).reshape(-1, 2)
    folds = jax.vmap(lambda number: jax.random.fold_in(KEY, number))(np.arange(400))
    folded, split = map(jax.random.key_data, (folds, jax.random.split(KEY, 400)))

    def distinct(*pairs):
        return len(np.unique(np.concatenate(pairs), axis=0))

    # A split draws as a fold does.
    assert distinct(ours, folded, split) == len(ours) + 400
    mixed = jax.random.bits(KEY, (400,))
    assert not np.isin(mixed, ours[:, 0] ^ ours[:, 1]).any()
    # Negative control: without the 1 added, client 0 would draw the keys of the others.
    np.testing.assert_array_equal(
        np.stack(
            threefry.encrypted(tuple(map(int, jax.random.key_data(KEY))), 0, np.arange(400))
        ).T,
        folded,
    )


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_key_types_can_draw(impl):
    key = jax.random.key(0, impl=impl)
    words = bits_of(key, np.arange(4), 6)
    assert words.shape == (4, 6)
    assert len(np.unique(words)) == 24
    assert LAWS["laplace"](key, (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("law", LAWS)
def test_noise_follows_its_law(law):
    drawn = np.asarray(LAWS[law](KEY, (400, 500))).ravel()
    assert stats.kstest(drawn, law).pvalue > RARE
    # Places that share a pair of words, and signs beside magnitudes.
    for one, other in ((drawn[::2], drawn[1::2]), (np.sign(drawn), np.abs(drawn))):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / len(one) ** 0.5
    beyond = getattr(stats, law).isf(1e-3 / 2)
    assert abs((np.abs(drawn) > beyond).mean() - 1e-3) < 4.5 * (1e-3 / drawn.size) ** 0.5
    # Negative control: a scale of 1.03.
    assert stats.kstest(1.03 * drawn, law).pvalue < RARE


@pytest.mark.parametrize("law", LAWS)
def test_every_word_is_finite_noise_and_half_of_them_are_negative(law):
    ends = np.array([0, 1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1], np.uint32)
    ladder = np.arange(0, 2**32, 2**22 - 1, dtype=np.uint32)
    noise = np.asarray(FROM_WORDS[law](np.concatenate([ends, ladder])))
    assert np.isfinite(noise).all()
    extreme = {"laplace": -np.log(0.5 / 2**31), "norm": stats.norm.isf(2.0**-25)}[law]
    np.testing.assert_allclose(np.abs(noise[: len(ends)]).max(), extreme, rtol=1e-3)
    assert abs((noise[len(ends) :] < 0).mean() - 0.5) < 0.001


def test_noise_matches_the_oracle():
    np.testing.assert_allclose(
        LAWS["laplace"](KEY, (3, 5)), threefry.laplace(KEY, (3, 5)), rtol=1e-5, atol=1e-6
    )
    normal = FROM_WORDS["norm"](bits_of(KEY, np.array([7]), 300))
    np.testing.assert_allclose(normal, [threefry.normal(KEY, 7, 300)], rtol=1e-4, atol=1e-6)


def test_numbers_below_a_bound_are_uniform():
    words = bits(KEY, (60_000,))
    drawn = np.asarray(jax.jit(draws.below)(words, 7))
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > RARE
    assert set(drawn) == set(range(7))
    # Negative control: as many of the low three bits, cut at the end.
    cut = np.minimum(np.asarray(words) % 8, 6)
    assert stats.chisquare(np.bincount(cut, minlength=7)).pvalue < RARE


def test_noise_dtype_can_be_chosen():
    for draw in (draws.laplace, draws.normal):
        noise = jax.eval_shape(lambda key, draw=draw: draw(key, (2,), jnp.bfloat16), KEY)
        assert noise.dtype == jnp.bfloat16
