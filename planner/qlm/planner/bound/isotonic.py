"""Isotonic regression: non-increasing prices nearest to given ones."""

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.compiling.compiled import compiled


@compiled()
def never_rising(values: Floats, weights: Floats) -> Floats:
    """Return the non-increasing sequence nearest to `values` in weighted least squares.

    Neighbours that rise are pooled at their mean until none do (pool adjacent violators).

    Args:
        values: (J,).
        weights: 0 or more; (J,).
    """
    size = len(values)
    mean, weight = np.empty(size), np.empty(size)
    length = np.empty(size, dtype=np.int64)
    pools = 0
    for j in range(size):
        mean[pools], weight[pools], length[pools] = values[j], max(weights[j], 1e-12), 1
        pools += 1
        while pools > 1 and mean[pools - 2] < mean[pools - 1]:
            both = weight[pools - 2] + weight[pools - 1]
            mean[pools - 2] = (
                mean[pools - 2] * weight[pools - 2] + mean[pools - 1] * weight[pools - 1]
            ) / both
            weight[pools - 2] = both
            length[pools - 2] += length[pools - 1]
            pools -= 1
    result = np.empty(size)
    at = 0
    for pool in range(pools):
        result[at : at + length[pool]] = mean[pool]
        at += length[pool]
    return result
