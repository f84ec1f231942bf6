"""Coefficients as a vector, and what is believed of them before a log is seen.

An accelerator that reads its memory faster than the start profile says does so for weights and KV cache
alike, and one that computes faster does so for all numbers of tokens. So two factors, of memory and of
computing, may move freely, the coefficients of each group follow theirs, and those of the host stay where the
start has them. What a log shows outweighs all of this; what it leaves open moves with what it shows.
"""

from math import sqrt
from typing import Final

import numpy as np

from qlm.rct_estimator.profiles.columns import OTHERS
from qlm.rct_estimator.profiles.iteration import FloatArray, IterationTime
from qlm.rct_estimator.profiles.profile import Profile

KNOTS: Final = (1.0, 32.0, 64.0, 128.0, 192.0, 256.0, 512.0, 1024.0, 2048.0)
"""Tokens at which the linear term may change its slope; beyond the last it is a line."""
_END: Final = 4096.0
_SLOPES: Final = len(KNOTS)

FLOOR: Final = 0
RISES: Final = slice(1, 1 + _SLOPES)
"""Rises of the slope of the linear term at the knots."""
KV, MIXED, SEQUENCE, SQUARE, ADMISSION = range(1 + _SLOPES, 1 + _SLOPES + len(OTHERS))
REQUEST: Final = 1 + _SLOPES + len(OTHERS)
MEMORY: Final = REQUEST + 1
COMPUTE: Final = REQUEST + 2
SIZE: Final = REQUEST + 3
"""Length of a vector: floor, rises, OTHERS, time outside of iterations, and the two factors."""

_WITHIN: Final = 0.005
"""Error of a log, as a share, that outweighs a coefficient that leaves its group by its own size."""
_FACTORS: Final = 0.0015
"""The same for a factor that leaves 1, and for two factors that differ."""
_OUTSIDE: Final = 0.001
"""The same for the time of a server per request, in and outside of iterations: no accelerator implies it."""
_SLOPE_SHARE: Final = 0.2
"""Least size of a slope, as a share of the steepest one: slopes near the floor are small and uncertain."""
_USUAL_KNEE: Final = 128.0
_USUAL_SLOPE: Final = 4e-3
"""Slope after the knee as a share of the floor, per token, for a start without slopes: about that of shipped
profiles."""
_USUAL_KV: Final = 7e-6
"""The same for a start without `kv_ms`, per token of context."""
_FLOOR_MIN: Final = 0.01
"""Least floor, as a share of that of the start."""
_FALL_MAX: Final = 4.0
"""Most that a slope may fall at a knot where that of the start falls, in falls of the start."""
_DIGITS: Final = 6


def vector(profile: Profile, memory: float = 1.0, compute: float = 1.0) -> FloatArray:
    """Return the coefficients of a profile with its groups multiplied by two factors, shape (SIZE,).

    What a profile leaves out without which no engine computes, slopes and `kv_ms`, is as usual for its floor.
    """
    at = profile.iteration
    x = np.zeros(SIZE)
    floor = at.linear(KNOTS[0])
    x[FLOOR] = at.host_ms + memory * floor
    x[RISES] = compute * np.diff(_slopes(at), prepend=0.0)
    x[KV] = memory * (at.kv_ms or _USUAL_KV * floor)
    x[MIXED] = memory * at.kv_beside_prompts_ms or x[KV]
    x[SEQUENCE], x[SQUARE], x[ADMISSION] = at.sequence_ms, compute * at.square_ms, at.admission_ms
    x[REQUEST], x[MEMORY], x[COMPUTE] = profile.request_ms, memory, compute
    return x


def iteration_of(x: FloatArray) -> IterationTime:
    """Return the coefficients of a vector, rounded to six digits."""
    heights = x[FLOOR] + np.concatenate([[0.0], np.cumsum(np.cumsum(x[RISES]) * np.diff([*KNOTS, _END]))])
    heights = np.maximum.accumulate([_rounded(each) for each in heights.tolist()])
    others = dict(zip(OTHERS, map(_rounded, x[KV:REQUEST].tolist()), strict=True))
    table = tuple(zip((*KNOTS, _END), heights.tolist(), strict=True))
    return IterationTime(host_ms=0.0, linear_ms=table, **others)


def prior(start: Profile) -> tuple[FloatArray, FloatArray]:
    """Return what is believed of a vector: matrix and right side, whose absolute differences are its cost.

    A cost of 1 weighs as much as all waits of a log being off by their whole length.

    Returns:
        Shapes (beliefs, SIZE) and (beliefs,).
    """
    x, scale, host = vector(start), scales(start), start.iteration.host_ms
    rows: list[tuple[dict[int, float], float, float]] = [
        ({FLOOR: 1 / x[FLOOR], MEMORY: host / x[FLOOR] - 1.0}, host / x[FLOOR], _WITHIN),
        ({KV: 1 / scale[KV], MEMORY: -x[KV] / scale[KV]}, 0.0, _WITHIN),
        ({MIXED: 1 / scale[MIXED], KV: -1 / scale[KV]}, x[MIXED] / scale[MIXED] - x[KV] / scale[KV], _WITHIN),
        ({SQUARE: 1 / scale[SQUARE], COMPUTE: -x[SQUARE] / scale[SQUARE]}, 0.0, _WITHIN),
        ({MEMORY: 1.0}, 1.0, _FACTORS),
        ({COMPUTE: 1.0}, 1.0, _FACTORS),
        ({MEMORY: 1.0, COMPUTE: -1.0}, 0.0, _FACTORS),
    ]
    rows.append(({SEQUENCE: 1 / scale[SEQUENCE]}, x[SEQUENCE] / scale[SEQUENCE], _WITHIN))
    rows += [({n: 1 / scale[n]}, x[n] / scale[n], _OUTSIDE) for n in (ADMISSION, REQUEST)]
    slopes = np.cumsum(x[RISES])
    sizes = np.maximum(slopes, _SLOPE_SHARE * slopes.max())
    for knot, size in enumerate(sizes.tolist()):
        row = dict.fromkeys(range(RISES.start, RISES.start + knot + 1), 1 / size)
        rows.append((row | {COMPUTE: -slopes[knot] / size}, 0.0, _WITHIN / sqrt(_SLOPES)))
    matrix, right = np.zeros((len(rows), SIZE)), np.zeros(len(rows))
    for number, (row, value, weight) in enumerate(rows):
        matrix[number, list(row)] = weight * np.array(list(row.values()))
        right[number] = weight * value
    return matrix, right


def least(start: Profile) -> FloatArray:
    """Return the least coefficients: some floor, and no falling slope but where that of the start falls.

    Reading weights hides computing, never the reverse, so the linear term of an engine is convex.
    """
    x = np.zeros(SIZE)
    x[FLOOR] = _FLOOR_MIN * vector(start)[FLOOR]
    x[RISES] = _FALL_MAX * np.minimum(0.0, vector(start)[RISES])
    return x


def scales(start: Profile) -> FloatArray:
    """Return the size of each coefficient: that of the start, or a small share of the floor without one."""
    x = vector(start)
    steepest = float(np.cumsum(x[RISES]).max())
    x[SEQUENCE] = max(x[SEQUENCE], x[FLOOR] * 1e-3)
    x[SQUARE] = max(x[SQUARE], steepest * 1e-5)
    x[ADMISSION] = max(x[ADMISSION], x[FLOOR] * 0.1)
    x[REQUEST] = max(x[REQUEST], x[FLOOR] * 0.5)
    return x


def _slopes(at: IterationTime) -> FloatArray:
    slopes = np.append(np.diff(at.linears(KNOTS)) / np.diff(KNOTS), at.last_slope_ms)
    if not slopes.any():
        return np.where(np.array(KNOTS) < _USUAL_KNEE, 0.0, _USUAL_SLOPE * at.linear(KNOTS[0]))
    return np.asarray(slopes)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
