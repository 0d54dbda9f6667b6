"""Threefry-2x32 with 20 rounds, from its paper (Salmon et al., 2011), and what is drawn with it."""

import jax
import numpy as np
from scipy import special

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA


def encrypted(key, first, second):
    """Pairs of words under a pair of key words; whole numbers of 64 bits, of which 32 are kept."""
    schedule = (*key, PARITY ^ key[0] ^ key[1])
    mask = 2**32 - 1
    first, second = np.asarray(first, np.uint64), np.asarray(second, np.uint64)
    x, y = (first + schedule[0]) & mask, (second + schedule[1]) & mask
    for round in range(20):
        turn = ROTATIONS[round % 8]
        x = (x + y) & mask
        y = ((y << turn | y >> (32 - turn)) & mask) ^ x
        if round % 4 == 3:
            step = round // 4 + 1
            x = (x + schedule[step % 3]) & mask
            y = (y + schedule[(step + 1) % 3] + step) & mask
    return x, y


def words(key, number: int, count: int) -> np.ndarray:
    """Words of a client or sample by its number; of a key by itself with number 0."""
    pair = tuple(map(int, np.asarray(jax.random.key_data(key))))
    drawn = encrypted(pair, number + 1, np.arange(-(-count // 2)))
    return np.stack(drawn, axis=-1).ravel()[:count]


def laplace(key, shape) -> np.ndarray:
    drawn = words(key, 0, int(np.prod(shape)))
    magnitude = -np.log(((drawn >> 1) + 0.5) / 2**31)
    return np.where(drawn & 1, magnitude, -magnitude).reshape(shape)


def normal(key, number: int, shape) -> np.ndarray:
    drawn = words(key, number, int(np.prod(shape))).astype(np.int64)
    drawn = np.where(drawn < 2**31, drawn, drawn - 2**32)
    # In the middle of its step; the outermost are 2^-24 from an end.
    uniform = np.clip((drawn + 0.5) / 2**31, 2**-24 - 1, 1 - 2**-24)
    return special.ndtri((uniform + 1) / 2).reshape(shape)


def order_of(lots: np.ndarray, size: int, most: int) -> np.ndarray:
    """Places of a client's samples in the order of its pass, from 1 + most words."""
    window = int(lots[0]) % size
    return (window + np.argsort(lots[1 : 1 + min(size, most)] >> 1, kind="stable")) % size
