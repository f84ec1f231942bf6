"""Mean time of an iteration in steady state, with decodes and a random number of chunks of prompts.

The linear term is convex, so the mean over iterations is more than the time of the mean iteration: the number
of chunks and the lengths of prompts count with their variances. Requests start at random, so the chunks in
one iteration are Poisson distributed; their tokens are taken as log-normal with the mean and variance that
follow.
"""

from functools import lru_cache
from itertools import pairwise
from math import erf, exp, log, log1p, sqrt
from typing import Final, NamedTuple

from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.workload import Workload

_NO_SPREAD: Final = 1e-6
"""Standard deviations of the logarithm below this count as none."""

_FAR: Final = 4.5
"""Standard deviations of the logarithm beyond which no tokens count: their share is less than 1e-5."""

_HALF_ROOT: Final = sqrt(0.5)
_QUARTER_ROOT: Final = sqrt(0.5) / 2

_NO_TOKENS: Final = 1e-9
"""Mean tokens of prompts below this count as none."""

_Hinges = tuple[float, tuple[tuple[float, float], ...]]
"""Floor of a table, and its points with the change of the slope there."""


class Load(NamedTuple):
    """What one iteration computes in steady state.

    Attributes:
        decodes: Mean number of decodes.
        chunks: Mean number of chunks of prompts.
        chunk_tokens: Mean tokens of a chunk.
        chunk_var: Variance of that, tokens squared.
        chunk_pairs: Mean pairs of tokens that a chunk compares.
        backlog: Share of iterations whose token budget is full, because prompts queue for it.
        first_share: Share of chunks that are the first of their prompt.
    """

    decodes: float
    chunks: float
    chunk_tokens: float
    chunk_var: float
    chunk_pairs: float
    backlog: float
    first_share: float = 1.0


def load_of(profile: Profile, workload: Workload, *, ends: float, chunks: float, decodes: float) -> Load:
    """Return the load of an iteration.

    Args:
        profile: Profile of the engine.
        workload: Requests in the batch.
        ends: Requests that start, and end, per iteration.
        chunks: Iterations for one prompt.
        decodes: Decodes per iteration.
    """
    prompt = max(1.0, workload.computed_share * workload.prompt_tokens)
    room = max(1.0, profile.batched_tokens_max - decodes)
    tokens = prompt / chunks
    used = min(1.0, ends * prompt / room)
    return Load(
        decodes=decodes,
        chunks=ends * chunks,
        chunk_tokens=tokens,
        # No chunk is larger than the budget, which bounds the variance for its mean.
        chunk_var=min(workload.computed_var, max(0.0, tokens * (room - tokens))),
        chunk_pairs=workload.prompt_pairs / chunks,
        backlog=used**BACKLOG_POWER,
        first_share=1 / chunks,
    )


BACKLOG_POWER: Final = 4
"""Share of iterations with a full budget by the used share of it, to this power."""


class MeanTimes(NamedTuple):
    """Mean times of iterations, seconds.

    Attributes:
        decode_s: Without prompts, with one decode at least.
        mean_s: Of all iterations; those that would compute nothing take no time.
        own_s: Of those that compute a given chunk: the others in it are as many as in any iteration.
        single_s: With one chunk of mean size.
    """

    decode_s: float
    mean_s: float
    own_s: float
    single_s: float


def mean_times(of: IterationTime, load: Load, context_tokens: float) -> MeanTimes:
    """Return the mean times of iterations under a load, for decodes of that context."""
    decodes, chunks, tokens = load.decodes, load.chunks, load.chunk_tokens
    some = 1 - exp(-chunks)
    # Moments of the prompt tokens: of iterations with any, and of one chunk among others.
    square = chunks * (load.chunk_var + tokens**2)
    any_tokens = chunks * tokens / some if some else tokens
    any_var = max(0.0, (square + (chunks * tokens) ** 2) / some - any_tokens**2) if some else load.chunk_var
    own_tokens, own_var = tokens + chunks * tokens, load.chunk_var + square
    table = _hinges(of.linear_ms)
    any_ms = _linear_mean(table, decodes, any_tokens, any_var)
    own_ms = _linear_mean(table, decodes, own_tokens, own_var)
    each_ms = of.sequence_ms + of.square_ms * load.chunk_pairs + of.admission_ms * load.first_share
    mixed_ms = of.host_ms + of.sequence_ms * decodes + of.kv_beside_prompts_ms * decodes * context_tokens
    at_least_one = max(1.0, decodes)
    decode_ms = of.ms(
        tokens=at_least_one, context_tokens=at_least_one * context_tokens, sequences=at_least_one, mixed=False
    )
    random_ms = some * (mixed_ms + any_ms) + (1 - some) * min(1.0, decodes) * decode_ms
    full_ms = mixed_ms + of.linear(decodes + chunks * tokens)
    mean_ms = random_ms + load.backlog * (full_ms - random_ms) + chunks * each_ms
    single_ms = mixed_ms + of.linear(decodes + tokens) + each_ms
    among_ms = mixed_ms + own_ms + (1 + chunks) * each_ms
    return MeanTimes(
        decode_s=decode_ms / 1000,
        mean_s=max(min(1.0, decodes) * decode_ms, mean_ms) / 1000,
        own_s=(among_ms + load.backlog * (mean_ms - among_ms)) / 1000,
        single_s=single_ms / 1000,
    )


def _linear_mean(table: _Hinges, decodes: float, mean: float, var: float) -> float:
    """Return the mean linear time of decodes and log-normal prompt tokens, milliseconds.

    The term is its floor and a hinge at each point of the table, whose mean has a closed form: that of a call
    option (Black and Scholes).
    """
    start_ms, hinges = table
    spread = sqrt(log1p(var / mean**2)) if mean > _NO_TOKENS else 0.0
    scale = _HALF_ROOT / max(spread, _NO_SPREAD)
    far = exp(_FAR * spread)
    least, most = mean / far, mean * far
    for point, slope_ms in hinges:
        above = point - decodes
        if above <= least:
            start_ms += slope_ms * (mean - above)
        elif above > most:
            break
        elif spread < _NO_SPREAD:
            start_ms += slope_ms * (mean - above)
        else:
            at, half = log(mean / above) * scale, spread * _QUARTER_ROOT
            over = mean * (1 + erf(at + half)) - above * (1 + erf(at - half))
            start_ms += slope_ms / 2 * over
    return start_ms


@lru_cache(maxsize=256)
def _hinges(points: tuple[tuple[float, float], ...]) -> _Hinges:
    """Return the hinges of a table."""
    slopes = [0.0, *((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points))]
    changes = [
        (point[0], after - before)
        for point, (before, after) in zip(points[:-1], pairwise(slopes), strict=True)
    ]
    return points[0][1], tuple((point, change) for point, change in changes if change)
