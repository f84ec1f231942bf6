"""Random generators by purpose, from one seed."""

import zlib

import numpy as np

from qlm.domain.errors import InvalidValueError


class Seeds:
    """Random generators of one simulation.

    Each purpose has its own stream of numbers: drawing more for one, or adding one, changes no other.
    """

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise InvalidValueError("seed", seed, "0 or more")
        self.seed = seed

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator of a purpose (`arrivals`, `lengths`, ...), from its beginning."""
        return np.random.Generator(np.random.PCG64([self.seed, zlib.crc32(purpose.encode())]))
