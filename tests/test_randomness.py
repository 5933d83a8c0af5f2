"""Philox and the keys of draws."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from sexpgpu.randomness import key_of, philox, uniform_f32, words_of

# Random123's kat_vectors, philox4x32 10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: str
) -> None:
    assert " ".join(f"{int(word):08x}" for word in philox(key, *counter)) == words


def test_counters_broadcast_and_each_lane_is_its_own_scalar_call() -> None:
    key = key_of(7, "gpt.dropout", 1)
    together = np.stack(philox(key, np.arange(5)[:, None], 2, np.array([[3, 4]]), 9))
    assert together.shape == (4, 5, 2) and together.dtype == np.uint32
    for element in range(5):
        for column, microbatch in enumerate((3, 4)):
            alone = [int(word) for word in philox(key, element, 2, microbatch, 9)]
            assert together[:, element, column].tolist() == alone


def test_a_key_is_the_beginning_of_a_sha256_of_its_place() -> None:
    digest = hashlib.sha256(b"draw 1337 2 gpt.block.3.dropout").digest()
    low, high = key_of(1337, "gpt.block.3.dropout", 2)
    assert low | high << 32 == int.from_bytes(digest[:8], "little")


def test_every_part_of_a_place_changes_the_key() -> None:
    keys = {
        key_of(0, "a"),
        key_of(1, "a"),
        key_of(0, "b"),
        key_of(0, "a", 1),
        key_of(0, "a", 0, "initial"),
        key_of(-1, "a"),
    }
    assert len(keys) == 6


def test_words_stand_in_row_major_order_four_to_a_counter() -> None:
    key = key_of(0, "x")
    words = words_of(key, 10, scan=1, microbatch=2, step=3)
    assert words.shape == (10,)
    for element in range(10):
        assert words[element] == philox(key, element // 4, 1, 2, 3)[element % 4]


def test_uniform_numbers_have_24_bits_and_lie_below_one() -> None:
    bits = np.array([0, 255, 256, 0x80000000, 0xFFFFFFFF], np.uint32)
    expected = np.array([0, 0, 2.0**-24, 0.5, 1 - 2.0**-24], np.float32)
    values = uniform_f32(bits)
    assert values.dtype == np.float32
    assert values.tobytes() == expected.tobytes()
