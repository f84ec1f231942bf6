"""Measurement of a live engine: durations of its iterations, with prompts, decodes and both.

Some requests decode all the time. Each of their tokens ends an iteration, so the time between two tokens is
one iteration, without network latency. A prompt that arrives is computed in the iteration whose end brings
its first token; a prompt longer than the token budget, in the last ones up to that. Prompts that are to share
an iteration arrive while a long one keeps the engine busy.

An engine that schedules ahead delivers the token before a prompt late (`timing.without_delay`). There the
iteration before the prompt must have been one of decodes only: then the one before that took no longer than
usual. Prompts right behind a long one have no such iteration before them and no delay: the long one hides it.
"""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from qlm.cli.profiling.grid import DROPPED_TOKENS, Cell, Grid, answer_tokens
from qlm.cli.profiling.stream import Stream
from qlm.cli.profiling.timing import (
    iterations_until,
    lone_prompt,
    prompts_behind,
    steady_ms,
    token_at,
)
from qlm.domain.ports.engine import Engine, EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.points import FitPoint

_ORDINARY_IDS: Final = range(10, 200)
"""Token ids that almost every vocabulary has; lower ids are often special tokens."""
_SAMPLES: Final = 3
"""Measurements of prompts at a time, since each of them is a single iteration."""
_TRIES: Final = 2
"""Further tries at a time."""
_METRONOMES: Final = 5
"""Decoding streams whose times are compared; their median counts."""
_LEAD_SHARE: Final = 0.15
"""The long request starts earlier than the measured ones by this share of its own duration."""

DISTURBED: Final = 2.0
"""A measurement longer than this multiple of the median is left out: something else had the machine."""

_LONE_TOKENS: Final = (16, 32, 64)
"""Prompt tokens of lone requests: short, so that little of their time is the iteration."""

Key = tuple[int, int, int, int, int]
"""Prompts, tokens of each in the iteration, tokens before them, decodes, and prompt tokens of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured points.

    Attributes:
        points: Mean times.
        lone_ms: Mean time to the first token of a lone request, by its prompt tokens.
        skipped: Descriptions of points that could not be measured.
    """

    points: tuple[FitPoint, ...]
    lone_ms: Mapping[int, float]
    skipped: tuple[str, ...]


class Prober:
    """Times iterations of one engine that serves no other client."""

    def __init__(
        self,
        engine: Engine,
        *,
        batched_tokens_max: int,
        context_tokens: int,
        async_scheduling: bool,
        clock_ns: Callable[[], int],
        rng: random.Random,
    ) -> None:
        """Prepare.

        Args:
            engine: Engine to measure.
            batched_tokens_max: Largest number of tokens in one iteration.
            context_tokens: Largest number of prompt plus output tokens.
            async_scheduling: It puts the next iteration together before the present one ends.
            clock_ns: A monotonic clock.
            rng: Source of prompts. It must differ from run to run, or the prefix cache contains them.
        """
        self._engine = engine
        self._batched_tokens_max = batched_tokens_max
        self._context_tokens = context_tokens
        self._async_scheduling = async_scheduling
        self._clock_ns = clock_ns
        self._rng = rng
        self._lead_s = 0.0

    async def warm_up(self) -> None:
        """Trigger the compilations of the engine's first requests, and time the long request."""
        for tokens in (16, self._blocker_tokens(1), self._blocker_tokens(1)):
            start_ns = self._clock_ns()
            self._lead_s = _LEAD_SHARE * (await self.first_token_ns(tokens) - start_ns) / 1e9

    async def lone_ms(self, tokens: int) -> float:
        """Time the first token of a request to an idle engine, its way there and back included."""
        start_ns = self._clock_ns()
        return (await self.first_token_ns(tokens) - start_ns) / 1e6

    @asynccontextmanager
    async def decoding(self, cell: Cell, decode_tokens: int) -> AsyncIterator[list[Stream]]:
        """Keep the requests of a cell decoding; all have got tokens when this begins."""
        tokens = answer_tokens(cell, decode_tokens, self._batched_tokens_max)
        calls = [self._call(cell.context, tokens) for _ in range(cell.decodes)]
        streams = [Stream(self._engine, call, self._clock_ns) for call in calls]
        try:
            await asyncio.gather(*(stream.until(DROPPED_TOKENS + 1) for stream in streams))
            yield streams
        finally:
            await asyncio.gather(*(stream.stop() for stream in streams))

    async def decode_point(self, cell: Cell, streams: Sequence[Stream], tokens: int) -> FitPoint | None:
        """Time iterations that decode alone; None if the streams overlapped too little."""
        # A server may admit the requests of a batch over many iterations: the first are nearer to their end.
        await asyncio.gather(*(s.until(min(s.received + tokens, s.tokens_max)) for s in streams))
        steady = steady_ms([stream.arrivals for stream in streams], DROPPED_TOKENS)
        if steady is None:
            return None
        return FitPoint(0, 0, 0, cell.decodes, cell.context + steady[1], steady[0])

    async def prompt_points(
        self, cell: Cell, streams: Sequence[Stream], prompts: tuple[int, int], decode_ms: float
    ) -> list[dict[Key, FitPoint]]:
        """Time the iterations that compute these prompts, a few times; none if each try split them."""
        found: list[dict[Key, FitPoint]] = []
        long = prompts[0] * prompts[1] > self._batched_tokens_max - cell.decodes
        wanted = 1 if long else _SAMPLES
        for _try in range(wanted + _TRIES):
            if points := await self._try_prompts(cell, streams, *prompts, decode_ms):
                found.append(points)
            if len(found) == wanted:
                break
        return found

    async def _try_prompts(
        self, cell: Cell, streams: Sequence[Stream], number: int, tokens: int, decode_ms: float
    ) -> dict[Key, FitPoint]:
        firsts, blocked_ns = await self._together(cell, number, tokens, decode_ms)
        if any(stream.received == stream.tokens_max for stream in streams):
            return {}  # the engine was so slow to answer that requests of the batch have ended
        await asyncio.gather(*(stream.until(stream.received + 1) for stream in streams[:_METRONOMES]))
        each = self._batched_tokens_max - cell.decodes
        count = -(-number * tokens // each)
        before = 2 if self._async_scheduling else 1
        metronomes = [stream.arrivals for stream in streams[:_METRONOMES]]
        timed = [
            [iterations_until(arrivals, at_ns, count, before) for at_ns in (min(firsts), max(firsts))]
            for arrivals in metronomes
        ]
        known = [first for first, last in timed if first is not None and first == last]
        if len(known) < len(timed):
            return {}
        columns = zip(*(one for one, _ in known), strict=True)
        times = [statistics.median(column) for column in columns]
        if blocked_ns is None:
            share = (tokens - (count - 1) * each) / each
            computed = lone_prompt(
                times, decode_ms, async_scheduling=self._async_scheduling, last_share=share
            )
        else:
            later = token_at(metronomes[0], min(firsts)) - token_at(metronomes[0], blocked_ns)
            computed = prompts_behind(
                times, decode_ms, async_scheduling=self._async_scheduling, iterations_later=later
            )
        if computed is None:
            return {}
        context = cell.context + known[0][1] - count
        found = {}
        for at in _thinned(count):
            new = tokens if count == 1 else min(each, tokens - at * each)
            key = (number, new, at * each, cell.decodes, cell.context)
            found[key] = FitPoint(number, new, at * each, cell.decodes, context + at, computed[at])
        return found

    async def _together(
        self, cell: Cell, number: int, tokens: int, decode_ms: float
    ) -> tuple[list[int], int | None]:
        """Submit prompts at once, several of them behind a long one.

        Returns:
            Times of their first tokens, and that of the long one.
        """
        if number == 1:
            return [await self.first_token_ns(tokens)], None
        blocker = asyncio.ensure_future(self.first_token_ns(self._blocker_tokens(cell.decodes)))
        # Scheduled ahead, the long one begins two iterations after its arrival at the latest.
        await asyncio.sleep(self._lead_s + (2 * decode_ms / 1e3 if self._async_scheduling else 0))
        try:
            firsts = list(await asyncio.gather(*(self.first_token_ns(tokens) for _ in range(number))))
        finally:
            blocked_ns = await blocker
        return firsts, blocked_ns

    def _blocker_tokens(self, decodes: int) -> int:
        return min(self._batched_tokens_max - decodes, self._context_tokens - 2)

    async def first_token_ns(self, prompt_tokens: int) -> int:
        """Send a prompt for one token, and return the time of that token once the request has ended."""
        stream = Stream(self._engine, self._call(prompt_tokens, 1), self._clock_ns)
        await stream.until(1)
        await stream.end()
        return stream.arrivals[0][0]

    def _call(self, prompt_tokens: int, max_tokens: int) -> EngineCall:
        return EngineCall(
            call_id=f"profile-{self._rng.getrandbits(64):016x}",
            prompt_ids=tuple(self._rng.choices(_ORDINARY_IDS, k=prompt_tokens)),
            sampling=Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        )


def _thinned(count: int) -> list[int]:
    """Return the numbers of chunks to keep: at doubling positions, and the last."""
    kept = [0, *(2**n for n in range(count.bit_length()) if 2**n < count)]
    return sorted({*kept, count - 1})


async def _nothing() -> None:
    return


async def measure(
    prober: Prober,
    grid: Grid,
    on_point: Callable[[str], None],
    on_pass: Callable[[], Awaitable[None]] = _nothing,
) -> Measured:
    """Measure all points of a grid, and repeat that `grid.repeats` times.

    A temporary disturbance of the machine then affects one measurement of many points, instead of all
    measurements of a few points.

    Args:
        prober: Prober of the engine.
        grid: Points to measure.
        on_point: Called with a description before each measurement.
        on_pass: Called after each of the repetitions.
    """
    await prober.warm_up()
    found: dict[Key, list[FitPoint]] = {}
    lost: dict[str, bool] = {}
    lone: dict[int, list[float]] = {}
    for _ in range(grid.repeats):
        for tokens in _LONE_TOKENS:
            lone.setdefault(tokens, []).append(await prober.lone_ms(tokens))
        for cell in grid.cells:
            async for what, samples in _measure_cell(prober, grid, cell, on_point):
                lost[what] = lost.get(what, True) and not samples
                for key, point in (item for points in samples for item in points.items()):
                    found.setdefault(key, []).append(point)
        await on_pass()
    return Measured(
        points=tuple(map(mean_point, found.values())),
        lone_ms={tokens: mean_ms(times) for tokens, times in lone.items()},
        skipped=tuple(what for what, never in lost.items() if never),
    )


async def _measure_cell(
    prober: Prober, grid: Grid, cell: Cell, on_point: Callable[[str], None]
) -> AsyncIterator[tuple[str, list[dict[Key, FitPoint]]]]:
    what = f"decode {cell.decodes} x {cell.context}"
    on_point(what)
    async with prober.decoding(cell, grid.decode_tokens) as streams:
        alone = await prober.decode_point(cell, streams, grid.decode_tokens)
        key = (0, 0, 0, cell.decodes, cell.context)
        yield f"{what}: hardly ever together", [] if alone is None else [{key: alone}]
        for prompts in cell.prompts:
            number, tokens = prompts
            what = f"prefill {number} x {tokens} beside {cell.decodes} x {cell.context}"
            on_point(what)
            points = [] if alone is None else await prober.prompt_points(cell, streams, prompts, alone.ms)
            yield f"{what}: never in the expected iterations; is --max-num-batched-tokens right?", points


def mean_point(points: Sequence[FitPoint]) -> FitPoint:
    """Return the mean of measurements of one point, without disturbed ones.

    What an engine serves per second follows from the mean: single iterations are longer than their median by
    more than they are shorter (of prompts of 64 to 256 tokens on a CPU, the mean was 1 to 10 % longer).
    """
    most_ms = DISTURBED * statistics.median(each.ms for each in points)
    columns: Iterator[Sequence[float]] = zip(*(each for each in points if each.ms <= most_ms), strict=True)
    return FitPoint(*map(statistics.fmean, columns))


def mean_ms(times_ms: Sequence[float]) -> float:
    """Return the mean of times, without disturbed ones."""
    most_ms = DISTURBED * statistics.median(times_ms)
    return statistics.fmean(each for each in times_ms if each <= most_ms)


async def measure_swap(engine: Engine, clock_ns: Callable[[], int]) -> dict[str, float]:
    """Time sleep and wake of the engine at both levels; running requests are aborted.

    Returns:
        Durations in seconds, by key of the profile.
    """

    async def timed(work: Awaitable[None]) -> float:
        start_ns = clock_ns()
        await work
        return (clock_ns() - start_ns) / 1e9

    times = {"unload_s": await timed(engine.sleep(1)), "swap_warm_s": await timed(engine.wake())}
    await engine.sleep(2)
    return times | {"swap_reload_s": await timed(engine.wake())}
