"""One root seed gives every random generator, by purpose, round and client."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def seed_of(root: int, purpose: str, round: int = 0, client: str = "") -> int:
    """A 63-bit seed that depends on all four and on nothing else.

    >>> seed_of(0, "batches", 1, "a") == seed_of(0, "batches", 1, "a")
    True
    >>> len({seed_of(0, "batches", r, c) for r in range(9) for c in "abc"})
    27
    """
    key = f"{root}\0{purpose}\0{round}\0{client}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1


def numpy_rng(root: int, purpose: str, round: int = 0, client: str = "") -> np.random.Generator:
    """A NumPy generator for one purpose, round and client."""
    return np.random.default_rng(seed_of(root, purpose, round, client))
