"""In which order an epoch visits its windows or examples: a keyed bijection, computed at any position, never stored.

A Feistel network permutes the numbers of `bits` bits, the fewest that hold `count`; a result outside [0, count) is
walked on along its cycle until it falls inside, which leaves a bijection of [0, count). The two sides of the network
may differ in width, so that the walk takes fewer than two steps on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sexpgpu.randomness import Purpose, key_of, philox

Positions = NDArray[np.int64]

ROUNDS = 8
# Odd multipliers of a 64-bit mixer (Stafford's variant 13, as in splitmix64).
MIX_FIRST = np.uint64(0xBF58476D1CE4E5B9)
MIX_SECOND = np.uint64(0x94D049BB133111EB)


def order(seed: int, epoch: int, index: ArrayLike, count: int, purpose: Purpose = "order") -> Positions:
    """Which of `count` windows or examples stands at each index of the epoch."""
    positions = np.asarray(index, np.int64)
    assert count >= 1 and np.all((positions >= 0) & (positions < count)), (positions, count)
    bits = (count - 1).bit_length()
    if bits == 0:
        return np.zeros_like(positions)
    keys = round_keys(seed, epoch, purpose)
    found = feistel(positions.astype(np.uint64).ravel(), bits, keys)
    while np.any(outside := found >= np.uint64(count)):
        found[outside] = feistel(found[outside], bits, keys)
    return found.astype(np.int64).reshape(positions.shape)


def offset(seed: int, epoch: int, seq: int) -> int:
    """How many tokens all windows of an epoch are shifted by: 0 in the first, a keyed number below `seq` in others."""
    if epoch == 0:
        return 0
    low, high = key_of(seed, "", epoch, "offset")
    return (low | high << 32) % seq


def round_keys(seed: int, epoch: int, purpose: Purpose) -> NDArray[np.uint64]:
    """One 64-bit key a round."""
    words = philox(key_of(seed, "", epoch, purpose), np.arange(ROUNDS), 0, 0, 0)
    return words[0].astype(np.uint64) | words[1].astype(np.uint64) << np.uint64(32)


def feistel(numbers: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The permutation of the numbers below 2^bits; each round changes one side by a hash of the other."""
    right_bits = np.uint64((bits + 1) // 2)
    left_mask = np.uint64((1 << bits // 2) - 1)
    right_mask = np.uint64((1 << (bits + 1) // 2) - 1)
    left, right = numbers >> right_bits, numbers & right_mask
    for number, key in enumerate(keys):
        if number % 2:
            left = left ^ (mixed(right, key) & left_mask)
        else:
            right = right ^ (mixed(left, key) & right_mask)
    return left << right_bits | right


def mixed(side: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    value = side + key
    value = (value ^ (value >> np.uint64(30))) * MIX_FIRST
    value = (value ^ (value >> np.uint64(27))) * MIX_SECOND
    return value ^ (value >> np.uint64(31))
