"""Clip columns of numbers."""

import numpy as np

from qlm.agents.batching.view import Floats, Ints


def clipped(values: Floats, least: float, most: Floats | Ints | float) -> Floats:
    """Return the values within bounds; `most` wins where they cross. On few numbers `np.clip` is slower."""
    return np.asarray(np.minimum(np.maximum(values, least), most))
