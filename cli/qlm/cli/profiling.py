"""Measure a live engine: how long iterations take that compute prompts, and iterations that decode.

A prompt iteration is timed between two first tokens. One long request keeps the engine busy while the
requests to be timed arrive; when it ends, the engine takes all of them into its next iteration, so the time
from its token to theirs is that iteration and holds no way over the network. A decode iteration is the
time between tokens while all requests of a batch run, read off their streams.
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
from qlm.rct_estimator.profile_points import FitPoint

_ORDINARY_IDS: Final = range(10, 200)
"""Token ids that hardly any vocabulary lacks; below them special tokens are common."""
_DROPPED_TOKENS: Final = 4
"""First tokens of an answer that are not counted: others of the batch may still be in their prompt."""
_WINDOW_TOKENS_MIN: Final = 8
_SPREAD_MAX: Final = 0.3
"""First tokens further apart than this share of the iteration did not come from one iteration."""
_TRIES_PER_REPEAT: Final = 4
_KV_SHARE_MAX: Final = 0.9
_LEAD_SHARE: Final = 0.15
"""The long request is ahead of the others by this share of the time it takes."""

_LEFT_TOKENS: Final = 64
"""Tokens of context left beside the longest prompt, and the shortest prompt worth a measurement."""
_LENGTH_MIN: Final = 16
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
_QUICK_BATCHES: Final = (1, 4, 16)
_PARTS: Final = (32, 16, 8, 4, 2, 1)
"""Prompts are these parts of the longest one."""
_QUICK_PARTS: Final = (16, 4, 1)
_CONTEXTS: Final = (128, 512, 2048)
_QUICK_CONTEXTS: Final = (128, 1024)

_REPEATS: Final = 5
_QUICK_REPEATS: Final = 3
"""Odd, so that the median is one of them. A machine that others share runs faster and slower for seconds on
end, by 20 %: three measurements of a point were 10 % off too often."""

Arrivals = Sequence[tuple[int, int]]
"""Of one stream: when a chunk came, in ns, and the tokens received by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What to measure.

    Attributes:
        prefill: Pairs of batch and prompt tokens, each within one iteration.
        decode: Pairs of batch and prompt tokens before the tokens that are timed.
        repeats: Measurements of each, far apart in time, of which the median counts.
        decode_tokens: Tokens per request that are timed.
        batched_tokens_max: Tokens that one iteration of the engine computes at most.
    """

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    repeats: int
    decode_tokens: int
    batched_tokens_max: int

    @property
    def measurements(self) -> int:
        """Measurements in all."""
        return self.repeats * (len(self.prefill) + len(self.decode))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured.

    Attributes:
        prefill: Medians, by batch and prompt tokens.
        decode: Medians, by batch and mean context tokens.
        skipped: What could not be measured, in words.
    """

    prefill: tuple[FitPoint, ...]
    decode: tuple[FitPoint, ...]
    skipped: tuple[str, ...]


def choose_grid(capacity: EngineCapacity, *, quick: bool, batched_tokens_max: int) -> Grid:
    """Choose batches and lengths that the engine can hold, spread over what it can do.

    Args:
        capacity: Limits of the engine.
        quick: Few points, for a first look.
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
    # The longest that fits stands for those that do not: what a token of context costs shows there best.
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
    """Tokens to ask for, so that the first of a batch still generates when the last has begun."""
    prompt_iterations = -(-batch * prompt_tokens // batched_tokens_max)
    return new_tokens + _DROPPED_TOKENS + prompt_iterations + 2


def steady_ms(streams: Sequence[Arrivals], dropped_tokens: int) -> tuple[float, float] | None:
    """Read the time of one decode iteration off streams that ran together.

    Args:
        streams: At least one.
        dropped_tokens: First tokens of each stream that do not count.

    Returns:
        Milliseconds per token while all streams ran, the median over the streams, and the mean number
        of tokens generated then; None if they hardly ran together.
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
    """Times iterations of one engine that serves nobody else."""

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
            engine: Under measurement.
            batched_tokens_max: Tokens that one iteration computes at most.
            context_tokens: Prompt plus output at most.
            clock_ns: A monotonic clock.
            rng: For prompts; must not repeat those of an earlier run, or the prefix cache knows them.
        """
        self._engine = engine
        self._batched_tokens_max = batched_tokens_max
        self._blocker_tokens = min(batched_tokens_max, context_tokens - 2)
        self._clock_ns = clock_ns
        self._rng = rng
        self._lead_s = 0.0

    async def warm_up(self) -> None:
        """Make the engine compile what it compiles on first use, and time the long request."""
        for tokens in (64, self._blocker_tokens, self._blocker_tokens):
            start_ns = self._clock_ns()
            stream = await self._stream(tokens, 1)
            self._lead_s = _LEAD_SHARE * (stream[0][0] - start_ns) / 1e9

    async def prefill_ms(self, batch: int, tokens: int) -> float | None:
        """Time one iteration that computes `batch` prompts; None if the engine split it every time."""
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
        """Time decode iterations of `batch` requests; None if they hardly ran together."""
        limit = _answer_tokens(batch, prompt_tokens, new_tokens, self._batched_tokens_max)
        streams = await asyncio.gather(*(self._stream(prompt_tokens, limit) for _ in range(batch)))
        steady = steady_ms(streams, _DROPPED_TOKENS)
        return None if steady is None else FitPoint(batch, prompt_tokens + steady[1], steady[0])

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
            expected = f"{max_tokens} tokens; somebody or something ended it early"
            raise InvalidValueError("answer", f"{got} tokens", expected)
        return arrivals


async def measure(prober: Prober, grid: Grid, on_point: Callable[[str], None]) -> Measured:
    """Measure a grid, all of it once, then all of it again.

    What disturbs the machine for a while then hits one measurement of many points, which the median drops,
    and not all measurements of a few points.

    Args:
        prober: Of the engine.
        grid: What to measure.
        on_point: Called with a description before each measurement.
    """
    await prober.warm_up()
    prefill: dict[tuple[int, int], list[FitPoint]] = {pair: [] for pair in grid.prefill}
    decode: dict[tuple[int, int], list[FitPoint]] = {pair: [] for pair in grid.decode}
    for _ in range(grid.repeats):
        for (batch, tokens), timed in prefill.items():
            on_point(f"prefill {batch} x {tokens}")
            if ms := await prober.prefill_ms(batch, tokens):
                timed.append(FitPoint(batch, tokens, ms))
        for (batch, tokens), timed in decode.items():
            on_point(f"decode {batch} x {tokens}")
            if point := await prober.decode_point(batch, tokens, grid.decode_tokens):
                timed.append(point)
    lost = [f"prefill of {b} x {n} tokens: never in one iteration" for (b, n), t in prefill.items() if not t]
    lost += [f"decoding of {b} x {n} tokens: hardly ever together" for (b, n), t in decode.items() if not t]
    return Measured(
        prefill=tuple(_median(timed) for timed in prefill.values() if timed),
        decode=tuple(_median(timed) for timed in decode.values() if timed),
        skipped=tuple(lost),
    )


def _median(points: Sequence[FitPoint]) -> FitPoint:
    columns: Iterator[Sequence[float]] = zip(*points, strict=True)
    return FitPoint(*(statistics.median(column) for column in columns))


async def measure_swap(engine: Engine, clock_ns: Callable[[], int]) -> dict[str, float]:
    """Put the engine to sleep and wake it, at both levels; whatever runs on it is aborted.

    Returns:
        Seconds, by name in a profile.
    """

    async def timed(work: Awaitable[None]) -> float:
        start_ns = clock_ns()
        await work
        return (clock_ns() - start_ns) / 1e9

    times = {"unload_s": await timed(engine.sleep(1)), "swap_warm_s": await timed(engine.wake())}
    await engine.sleep(2)
    return times | {"swap_reload_s": await timed(engine.wake())}
