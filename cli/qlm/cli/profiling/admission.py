"""Engine time per request beyond its tokens, from short requests one after the other beside decodes.

The iteration that computes a prompt is timed by itself. But an engine spends time on a request before that
iteration, when it reads the request, and after it, when it forgets the request. So here all time counts: that
of every iteration while short requests come and go, against the iterations just before and after. What their
tokens do not explain, by the fit, is the time per request.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from qlm.cli.profiling.grid import Cell
from qlm.cli.profiling.measure import Prober
from qlm.cli.profiling.stream import Stream
from qlm.cli.profiling.timing import Arrivals
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.fit import Fitted, judge
from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of

_CLIENTS: Final = (1, 2, 4)
"""Short requests under way at a time."""
_REQUESTS: Final = 8
"""Short requests of a window; a multiple of each of _CLIENTS. Few, since the engine's speed drifts."""
_TURNS: Final = 3
"""Windows at each number of clients, by turns, with new decodes in each turn."""
_PROMPT_TOKENS: Final = 16
_QUIET_TOKENS: Final = 8
"""Iterations without short requests that are timed before and after a window."""
_DECODES: Final = 4
"""Few and short texts: an error of `kv_mixed_ms` in the fit then costs little."""
_TOKENS_MAX: Final = 512
"""Tokens of a decode at most; it is stopped when the last window of a turn is over."""
_WINDOW_TOKENS: Final = 2 * _QUIET_TOKENS + 4 * _REQUESTS
"""Tokens of the decodes for which a window is begun."""
_WINDOWS_MIN: Final = 3
_ERRORS_MIN: Final = 2.0
"""Standard errors that the mean must be away from zero to be identified."""
_NOTHING_SHARE: Final = 0.01
"""Share of an iteration below which the time per request counts as none."""


class Window(NamedTuple):
    """Iterations during which short requests came and went.

    Attributes:
        decodes: Requests that decoded all the time.
        context: Context of each of them, tokens.
        prompt_tokens: Tokens of each short prompt.
        prompts: Short prompts of each iteration that computed any.
        iterations: All iterations of the window.
        ms: Their time in total.
        quiet_ms: Mean time of an iteration before and after the window.
    """

    decodes: int
    context: float
    prompt_tokens: int
    prompts: tuple[int, ...]
    iterations: int
    ms: float
    quiet_ms: float

    def unexplained_ms(self, iteration: IterationTime) -> float:
        """Return the time per short request that these coefficients do not explain.

        Iterations without short requests show the factor by which the engine is slower now than in the fit.
        """
        quiet_ms = self._predicted_ms(iteration, 0)
        extra_ms = sum(self._predicted_ms(iteration, prompts) - quiet_ms for prompts in self.prompts)
        extra_ms *= self.quiet_ms / quiet_ms
        return (self.ms - self.iterations * self.quiet_ms - extra_ms) / sum(self.prompts)

    def _predicted_ms(self, iteration: IterationTime, prompts: int) -> float:
        return iteration.ms(
            tokens=self.decodes + prompts * self.prompt_tokens,
            context_tokens=self.decodes * self.context,
            sequences=self.decodes + prompts,
            pairs=prompts * pairs_of(self.prompt_tokens),
            admitted=prompts,
            mixed=prompts > 0,
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """Result: the fit with the time per request, and a line if the windows leave it open."""

    fitted: Fitted
    line: str | None = None


def window_cell(capacity: EngineCapacity) -> Cell:
    """Return the decodes beside which short requests run: a few, and no more than leave slots for them."""
    return Cell(max(1, min(_DECODES, capacity.seqs_max - max(_CLIENTS))), _PROMPT_TOKENS)


async def measure_windows(prober: Prober, capacity: EngineCapacity) -> list[Window]:
    """Measure windows at each number of clients for which the engine has slots, as far as the texts last."""
    cell, found = window_cell(capacity), list[Window]()
    room = int(0.8 * capacity.kv_tokens) // (cell.decodes + max(_CLIENTS))
    tokens = min(_TOKENS_MAX, capacity.context_tokens, room) - 2 * _PROMPT_TOKENS
    if tokens < _WINDOW_TOKENS:
        return []
    clients_of_turn = [n for n in _CLIENTS if cell.decodes + n <= capacity.seqs_max]
    for _ in range(_TURNS):
        async with prober.decoding(cell, tokens) as streams:
            for clients in clients_of_turn:
                if streams[0].received + _WINDOW_TOKENS > tokens:
                    break
                firsts, bounds = await _play(prober, streams[0], clients)
                if (window := _window(cell, streams[0].arrivals, firsts, bounds)) is not None:
                    found.append(window)
    return found


async def _play(prober: Prober, stream: Stream, clients: int) -> tuple[list[int], tuple[int, int, int, int]]:
    """Send the short requests; return times of their tokens, and tokens of the stream at the four bounds."""
    firsts: list[int] = []

    async def client() -> None:
        for _ in range(_REQUESTS // clients):
            firsts.append(await prober.first_token_ns(_PROMPT_TOKENS))

    async def more(tokens: int) -> int:
        await stream.until(min(stream.received + tokens, stream.tokens_max))
        return stream.received

    quiet = stream.received
    begin = await more(_QUIET_TOKENS)
    await asyncio.gather(*(client() for _ in range(clients)))
    end = await more(1)
    return firsts, (quiet, begin, end, await more(_QUIET_TOKENS))


def _window(
    cell: Cell, arrivals: Arrivals, firsts_ns: Sequence[int], bounds: tuple[int, int, int, int]
) -> Window | None:
    """Return the window between the inner bounds; None if the stream ended within it."""
    known = {count: ns for ns, count in arrivals}
    if len(set(bounds)) < len(bounds) or not all(bound in known for bound in bounds):
        return None
    quiet, begin, end, after = (known[bound] for bound in bounds)
    inner = [(ns, count) for ns, count in arrivals if bounds[1] <= count <= bounds[2]]
    prompts = Counter(min(inner, key=lambda one: abs(one[0] - first_ns))[1] for first_ns in firsts_ns)
    quiet_tokens = bounds[1] - bounds[0] + bounds[3] - bounds[2]
    return Window(
        decodes=cell.decodes,
        context=cell.context + (bounds[1] + bounds[2]) / 2,
        prompt_tokens=_PROMPT_TOKENS,
        prompts=tuple(prompts.values()),
        iterations=bounds[2] - bounds[1],
        ms=(end - begin) / 1e6,
        quiet_ms=(begin - quiet + after - end) / 1e6 / quiet_tokens,
    )


def with_admission(fitted: Fitted, windows: Sequence[Window]) -> Admission:
    """Add the time per request that the windows show beyond the fit; nothing if they do not agree on one."""
    each_ms = [window.unexplained_ms(fitted.iteration) for window in windows]
    if len(each_ms) < _WINDOWS_MIN:
        return _unidentified(fitted, f"{len(each_ms)} windows of short requests, {_WINDOWS_MIN} needed")
    middle_ms = statistics.median(each_ms)
    spread_ms = 1.4826 * statistics.median(abs(ms - middle_ms) for ms in each_ms)
    error_ms = 1.2533 * spread_ms / len(each_ms) ** 0.5  # of a median of normal values
    if abs(middle_ms) + error_ms <= _NOTHING_SHARE * statistics.median(one.quiet_ms for one in windows):
        return Admission(fitted)
    if middle_ms <= _ERRORS_MIN * error_ms:
        return _unidentified(fitted, f"{middle_ms:.2g} ms, give or take {error_ms:.2g} ms")
    total_ms = float(f"{fitted.iteration.admission_ms + middle_ms:.3g}")
    iteration = replace(fitted.iteration, admission_ms=total_ms)
    fit = judge(iteration, fitted.fit.points, fitted.fit.unidentified)
    return Admission(replace(fitted, iteration=iteration, fit=fit))


def _unidentified(fitted: Fitted, why: str) -> Admission:
    return Admission(fitted, f"not identified: time per request beyond its iteration ({why})")
