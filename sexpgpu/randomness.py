"""Random bits from an explicit counter: Philox-4x32-10, and the keys that every draw of sexpgpu is made with.

The law of a draw (`language.md`, "Random draws"): a key from (seed, scope path, ordinal of the random form), a counter
(element ÷ 4, scan index, global microbatch index, step), and word `element mod 4` of the block that Philox makes of
the two. So a draw depends on its place alone: never on threads, ranks, fusion, the order of evaluation or a resume.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Words = NDArray[np.uint32]
    Lanes = NDArray[np.uint64]

# Multipliers and Weyl increments of Philox-4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF

Key = tuple[int, int]
Purpose = Literal["draw", "initial", "order", "offset", "split", "builtin", "mix"]


def key_of(seed: int, path: str, ordinal: int = 0, purpose: Purpose = "draw") -> Key:
    """The two 32-bit key words of a place: the first 64 bits, little endian, of a SHA-256.

    The hashed text is `purpose seed ordinal path`: the purpose keeps a dropout of scope `a` apart from a parameter `a`.

    >>> [hex(word) for word in key_of(0, "gpt.dropout", 0)]
    ['0x3d5a42a5', '0x71116ace']
    """
    digest = hashlib.sha256(f"{purpose} {seed} {ordinal} {path}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def philox(key: Key, c0: ArrayLike, c1: ArrayLike, c2: ArrayLike, c3: ArrayLike) -> tuple[Words, Words, Words, Words]:
    """The four uint32 words of each counter; the counter words (below 2^32) broadcast against each other."""
    import numpy as np

    words = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in (c0, c1, c2, c3)))
    shape = words[0].shape
    even = np.stack([words[0].ravel(), words[2].ravel()])
    odd = np.stack([words[1].ravel(), words[3].ravel()])
    even, odd = scramble(key, even, odd, np.empty_like(even))
    w0, w1, w2, w3 = (w.reshape(shape).astype(np.uint32) for w in (even[0], odd[0], even[1], odd[1]))
    return w0, w1, w2, w3


def scramble(key: Key, even: Lanes, odd: Lanes, room: Lanes) -> tuple[Lanes, Lanes]:
    """Philox for callers that make millions: `even` holds words 0 and 2 as two rows, `odd` words 1 and 3.

    All are uint64[2 n], overwritten, and the results are views of them. Lanes have 64 bits because the products have;
    what lies above 32 bits is cleared once a round, where the next product needs it, and at the end.
    """
    import numpy as np

    multipliers = np.array(MULTIPLIERS, np.uint64)[:, None]
    mask, half = np.uint64(MASK), np.uint64(32)
    for number in range(ROUNDS):
        keys = np.array([(k + number * w) & MASK for k, w in zip(key, INCREMENTS, strict=True)], np.uint64)[:, None]
        np.multiply(even, multipliers, out=room)
        # The products cross over: words 0 and 1 come from the product of word 2, words 2 and 3 from that of word 0.
        np.right_shift(room[::-1], half, out=even)
        np.bitwise_xor(even, odd, out=even)
        np.bitwise_xor(even, keys, out=even)
        np.bitwise_and(even, mask, out=even)
        odd, room = room[::-1], odd
    np.bitwise_and(odd, mask, out=odd)
    return even, odd


def uniform_f32(bits: Words) -> NDArray[np.float32]:
    """Uniform numbers of [0, 1) from the upper 24 bits of each word: k · 2^-24, exact in float32."""
    import numpy as np

    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def words_of(key: Key, count: int, scan: int = 0, microbatch: int = 0, step: int = 0) -> Words:
    """The first `count` words of a tensor's row-major draws: element e is word e mod 4 of counter e ÷ 4."""
    import numpy as np

    blocks = philox(key, np.arange((count + 3) // 4, dtype=np.uint64), scan, microbatch, step)
    return np.stack(blocks, axis=1).ravel()[:count]
