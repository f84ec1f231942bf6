"""Measurement of a live engine: durations of prefill and decode iterations.

A prefill iteration is timed between two first tokens. One long request keeps the engine busy while the
measured requests arrive. When it ends, the engine computes all of their prompts in its next iteration. The
time from its token to theirs is that iteration, without network latency. A decode iteration is the time
between tokens while all requests of a batch run, taken from their streams.
"""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import Engine, EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.points import FitPoint

_ORDINARY_IDS: Final = range(10, 200)
"""Token ids that almost every vocabulary has; lower ids are often special tokens."""
_DROPPED_TOKENS: Final = 4
"""First tokens of an answer that are not timed: other requests of the batch may still be in prefill."""
_WINDOW_TOKENS_MIN: Final = 8
_SPREAD_MAX: Final = 0.3
"""First tokens further apart than this share of an iteration's time come from different iterations."""
_TRIES_PER_REPEAT: Final = 4
_KV_SHARE_MAX: Final = 0.9
_LEAD_SHARE: Final = 0.15
"""The long request starts earlier than the measured ones by this share of its own duration."""

_LEFT_TOKENS: Final = 64
"""Tokens of context kept free beside the longest prompt; also the smallest longest prompt accepted."""
_LENGTH_MIN: Final = 16
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
_QUICK_BATCHES: Final = (1, 4, 16)
_PARTS: Final = (32, 16, 8, 4, 2, 1)
"""Prompt lengths are the longest one divided by these."""
_QUICK_PARTS: Final = (16, 4, 1)
_CONTEXTS: Final = (128, 512, 2048)
_QUICK_CONTEXTS: Final = (128, 1024)

_REPEATS: Final = 5
_QUICK_REPEATS: Final = 3
"""Odd, so that the median is one of the measurements. The speed of a shared machine varies by 20 % for
seconds at a time; the median of three measurements was 10 % off too often."""

Arrivals = Sequence[tuple[int, int]]
"""Arrival time of each chunk of one stream, ns, with the tokens received up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Points to measure.

    Attributes:
        prefill: Pairs of batch size and prompt tokens; each pair fits one iteration.
        decode: Pairs of batch size and prompt tokens.
        repeats: Measurements per point, spread over the run; their median is used.
        decode_tokens: Timed tokens per request.
        batched_tokens_max: Largest number of tokens in one iteration.
    """

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    repeats: int
    decode_tokens: int
    batched_tokens_max: int

    @property
    def measurements(self) -> int:
        """Total number of measurements."""
        return self.repeats * (len(self.prefill) + len(self.decode))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured points.

    Attributes:
        points: Median times.
        skipped: Descriptions of points that could not be measured.
    """

    points: tuple[FitPoint, ...]
    skipped: tuple[str, ...]


def choose_grid(capacity: EngineCapacity, *, quick: bool, batched_tokens_max: int) -> Grid:
    """Choose batch sizes and lengths over the whole range of the engine.

    Args:
        capacity: Limits of the engine.
        quick: Choose few points.
        batched_tokens_max: Its `--max-num-batched-tokens`.

    Raises:
        InvalidValueError: The engine is too small to be measured.
    """
    decode_tokens = 24 if quick else 64
    room = capacity.context_tokens - decode_tokens - _LEFT_TOKENS
    longest = min(room, batched_tokens_max)
    if longest < _LEFT_TOKENS:
        raise InvalidValueError("context", capacity.context_tokens, "room for prompts of 64 tokens and more")
    batches = sorted({min(b, capacity.seqs_max) for b in (_QUICK_BATCHES if quick else _BATCHES)})
    parts = _QUICK_PARTS if quick else _PARTS
    lengths = sorted({max(_LENGTH_MIN, longest // part) for part in parts})
    wanted = _QUICK_CONTEXTS if quick else _CONTEXTS
    # The longest context that fits replaces longer ones: the cost per context token is clearest there.
    contexts = sorted({min(c, room) for c in wanted})
    if len(contexts) < 2:
        contexts = [room // 4, room]

    def fits(batch: int, context: int) -> bool:
        tokens = context + _answer_tokens(batch, context, decode_tokens, batched_tokens_max)
        return tokens < capacity.context_tokens and batch * tokens <= _KV_SHARE_MAX * capacity.kv_tokens

    return Grid(
        prefill=tuple((b, n) for b in batches for n in lengths if b * n <= batched_tokens_max),
        decode=tuple((b, c) for b in batches for c in contexts if fits(b, c)),
        repeats=_QUICK_REPEATS if quick else _REPEATS,
        decode_tokens=decode_tokens,
        batched_tokens_max=batched_tokens_max,
    )


def _answer_tokens(batch: int, prompt_tokens: int, new_tokens: int, batched_tokens_max: int) -> int:
    """Return a `max_tokens` at which a batch's first request still decodes after the last one's prefill."""
    prompt_iterations = -(-batch * prompt_tokens // batched_tokens_max)
    return new_tokens + _DROPPED_TOKENS + prompt_iterations + 2


def steady_ms(streams: Sequence[Arrivals], dropped_tokens: int) -> tuple[float, float] | None:
    """Compute the time of one decode iteration from streams that ran concurrently.

    Args:
        streams: Streams of one batch; at least one.
        dropped_tokens: First tokens of each stream that are not timed.

    Returns:
        Milliseconds per token while all streams ran (median over streams), and the mean number of tokens
        generated until then; None if the streams overlapped too little.
    """
    starts = [next((ns for ns, n in stream if n > dropped_tokens), None) for stream in streams]
    if None in starts:
        return None
    start_ns = max(ns for ns in starts if ns is not None)
    end_ns = min(stream[-1][0] for stream in streams)
    paces, generated = [], []
    for stream in streams:
        window = [(ns, n) for ns, n in stream if start_ns <= ns <= end_ns]
        if len(window) < 2 or window[-1][1] - window[0][1] < _WINDOW_TOKENS_MIN:
            return None
        (first_ns, first), (last_ns, last) = window[0], window[-1]
        paces.append((last_ns - first_ns) / 1e6 / (last - first))
        generated.append((first + last) / 2)
    return statistics.median(paces), statistics.fmean(generated)


class Prober:
    """Times iterations of one engine that serves no other client."""

    def __init__(
        self,
        engine: Engine,
        *,
        batched_tokens_max: int,
        context_tokens: int,
        clock_ns: Callable[[], int],
        rng: random.Random,
    ) -> None:
        """Prepare.

        Args:
            engine: Engine to measure.
            batched_tokens_max: Largest number of tokens in one iteration.
            context_tokens: Largest number of prompt plus output tokens.
            clock_ns: A monotonic clock.
            rng: Source of prompts. It must differ from run to run, or the prefix cache contains them.
        """
        self._engine = engine
        self._batched_tokens_max = batched_tokens_max
        self._blocker_tokens = min(batched_tokens_max, context_tokens - 2)
        self._clock_ns = clock_ns
        self._rng = rng
        self._lead_s = 0.0

    async def warm_up(self) -> None:
        """Trigger the compilations of the engine's first requests, and time the long request."""
        for tokens in (64, self._blocker_tokens, self._blocker_tokens):
            start_ns = self._clock_ns()
            stream = await self._stream(tokens, 1)
            self._lead_s = _LEAD_SHARE * (stream[0][0] - start_ns) / 1e9

    async def prefill_ms(self, batch: int, tokens: int) -> float | None:
        """Time one prefill iteration of `batch` prompts; None if the engine split it in every attempt."""
        for _try in range(_TRIES_PER_REPEAT):
            blocker = asyncio.ensure_future(self._stream(self._blocker_tokens, 1))
            try:
                await asyncio.sleep(self._lead_s)
                streams = await asyncio.gather(*(self._stream(tokens, 1) for _ in range(batch)))
            finally:
                blocked = await blocker
            firsts = [stream[0][0] for stream in streams]
            took_ns = statistics.median(firsts) - blocked[0][0]
            if took_ns > 0 and max(firsts) - min(firsts) <= _SPREAD_MAX * took_ns:
                return took_ns / 1e6
        return None

    async def decode_point(self, batch: int, prompt_tokens: int, new_tokens: int) -> FitPoint | None:
        """Time decode iterations of `batch` requests; None if they overlapped too little."""
        limit = _answer_tokens(batch, prompt_tokens, new_tokens, self._batched_tokens_max)
        streams = await asyncio.gather(*(self._stream(prompt_tokens, limit) for _ in range(batch)))
        steady = steady_ms(streams, _DROPPED_TOKENS)
        return None if steady is None else FitPoint(0, 0, 0, batch, prompt_tokens + steady[1], steady[0])

    async def _stream(self, prompt_tokens: int, max_tokens: int) -> Arrivals:
        prompt = tuple(self._rng.choices(_ORDINARY_IDS, k=prompt_tokens))
        call = EngineCall(
            call_id=f"profile-{self._rng.getrandbits(64):016x}",
            prompt_ids=prompt,
            sampling=Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        )
        arrivals: list[tuple[int, int]] = []
        async for chunk in self._engine.generate(call):
            if chunk.token_ids:
                received = arrivals[-1][1] if arrivals else 0
                arrivals.append((self._clock_ns(), received + len(chunk.token_ids)))
        if not arrivals or arrivals[-1][1] != max_tokens:
            got = arrivals[-1][1] if arrivals else 0
            expected = f"{max_tokens} tokens; it ended early"
            raise InvalidValueError("answer", f"{got} tokens", expected)
        return arrivals


async def measure(prober: Prober, grid: Grid, on_point: Callable[[str], None]) -> Measured:
    """Measure all points of a grid, and repeat that `grid.repeats` times.

    A temporary disturbance of the machine then affects one measurement of many points, which the median
    drops, instead of all measurements of a few points.

    Args:
        prober: Prober of the engine.
        grid: Points to measure.
        on_point: Called with a description before each measurement.
    """
    await prober.warm_up()
    prefill: dict[tuple[int, int], list[FitPoint]] = {pair: [] for pair in grid.prefill}
    decode: dict[tuple[int, int], list[FitPoint]] = {pair: [] for pair in grid.decode}
    for _ in range(grid.repeats):
        for (batch, tokens), timed in prefill.items():
            on_point(f"prefill {batch} x {tokens}")
            if ms := await prober.prefill_ms(batch, tokens):
                timed.append(FitPoint(batch, tokens, 0, 0, 0, ms))
        for (batch, tokens), timed in decode.items():
            on_point(f"decode {batch} x {tokens}")
            if point := await prober.decode_point(batch, tokens, grid.decode_tokens):
                timed.append(point)
    lost = [f"prefill of {b} x {n} tokens: never in one iteration" for (b, n), t in prefill.items() if not t]
    lost += [f"decoding of {b} x {n} tokens: hardly ever together" for (b, n), t in decode.items() if not t]
    return Measured(
        points=tuple(_median(timed) for timed in (*prefill.values(), *decode.values()) if timed),
        skipped=tuple(lost),
    )


def _median(points: Sequence[FitPoint]) -> FitPoint:
    columns: Iterator[Sequence[float]] = zip(*points, strict=True)
    return FitPoint(*(statistics.median(column) for column in columns))


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
