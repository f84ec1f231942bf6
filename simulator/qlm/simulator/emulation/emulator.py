"""Emulated engine in real time: waits for the duration of each iteration, then delivers its tokens."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Final

from qlm.domain.errors import QlmError
from qlm.domain.ports.engine import EngineCall
from qlm.simulator.engine.generation import ABORT
from qlm.simulator.engine.model import Emission, EngineModel
from qlm.simulator.engine.residency import ResidentEngine

_NS_PER_S: Final = 1_000_000_000
_TIMER_NS: Final = 500_000
"""Shortest sleep: half the resolution of the event loop's timers."""
_LAG_MAX_NS: Final = 250_000_000
"""Delay above which the emulator stops catching up, and counts the delay as lag."""


class EmulatorClosedError(QlmError):
    """The emulated engine stopped during a request."""


class Hang(StrEnum):
    """Ways in which an emulated engine hangs while its health probe answers."""

    NONE = "none"
    NO_ADMISSION = "no_admission"
    """Requests in the batch go on; later ones are never admitted."""
    NO_TOKENS = "no_tokens"
    """No iteration ends any more."""
    ONE_STUCK = "one_stuck"
    """The oldest request gets no token; the others do."""
    SLOW = "slow"
    """Iterations take ten times as long."""
    GARBAGE = "garbage"
    """Streams carry what no client can read."""
    HALF_CLOSED = "half_closed"
    """The engine computes, and nothing it says arrives."""


SLOW_FACTOR: Final = 10


class TokenStream:
    """Ordered output of one request, read by one task."""

    __slots__ = ("_arrived", "_waiter", "call_id", "external_id")

    def __init__(self, external_id: str, call_id: str) -> None:
        self.external_id = external_id
        self.call_id = call_id
        self._arrived: list[Emission | None] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, emission: Emission | None) -> None:
        """Add an emission; None means that the engine has stopped."""
        self._arrived.append(emission)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> list[Emission]:
        """Wait for emissions and return all that have arrived.

        Raises:
            EmulatorClosedError: The engine has stopped.
        """
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        emissions, self._arrived = self._arrived, []
        if None in emissions:
            raise EmulatorClosedError("the emulated engine has stopped")
        return [emission for emission in emissions if emission is not None]


class Emulator:
    """Driver of an engine model in real time; `run` must run while requests are served.

    An iteration starts at the planned end of the one before, not when the event loop gets to it. So delays of
    the event loop do not add up.
    """

    def __init__(
        self,
        engine: EngineModel,
        residency: ResidentEngine,
        *,
        time_scale: float,
        clock_ns: Callable[[], int],
    ) -> None:
        """Wrap an engine.

        Args:
            engine: Source of tokens and durations of iterations.
            residency: Source of durations of sleep and wake.
            time_scale: Real seconds per emulated second; 0.1 is ten times faster than real time.
            clock_ns: Steady clock.
        """
        self.engine = engine
        self.lag_s = 0.0
        self._residency = residency
        self._time_scale = time_scale
        self._clock_ns = clock_ns
        self._origin_ns = clock_ns()
        self._streams: dict[str, TokenStream] = {}
        self._by_external_id: dict[str, list[TokenStream]] = {}
        self._work = asyncio.Event()
        self._moving = asyncio.Lock()
        self._calls = 0
        self.hang = Hang.NONE
        self.heard = asyncio.Event()
        self.heard.set()
        self._moves = asyncio.Event()
        self._moves.set()
        self._refused: list[EngineCall] = []
        self._stuck: str | None = None
        self._withheld: list[Emission] = []

    def set_hang(self, hang: Hang) -> None:
        """Hang in a given way from now on, or go on as if nothing had happened (`NONE`)."""
        self.hang = hang
        for gate, closed in ((self._moves, Hang.NO_TOKENS), (self.heard, Hang.HALF_CLOSED)):
            if hang is closed:
                gate.clear()
            else:
                gate.set()
        self._stuck = next(iter(self._streams), None) if hang is Hang.ONE_STUCK else None
        if hang is Hang.NONE:
            refused, self._refused = self._refused, []
            for call in refused:
                if call.call_id in self._streams:
                    self.engine.add(call, self._engine_ns(self._clock_ns()))
            withheld, self._withheld = self._withheld, []
            for emission in withheld:
                self._deliver(emission)
        self._work.set()

    @property
    def sleep_level(self) -> int:
        """1 or 2 while asleep, else 0."""
        return self._residency.sleep_level

    def submit(self, external_id: str, make_call: Callable[[str, int, float], EngineCall]) -> TokenStream:
        """Submit a request; ids of clients need not be unique, as in vLLM.

        Args:
            external_id: Its id for clients.
            make_call: Makes the call of an id, from the time of the engine's clock and its time scale.
        """
        self._calls += 1
        now_ns = self._engine_ns(self._clock_ns())
        call = make_call(f"{external_id}#{self._calls}", now_ns, self._time_scale)
        if self.hang is Hang.NO_ADMISSION:
            self._refused.append(call)
        else:
            self.engine.add(call, self._engine_ns(self._clock_ns()))
        stream = TokenStream(external_id, call.call_id)
        self._streams[call.call_id] = stream
        self._by_external_id.setdefault(external_id, []).append(stream)
        self._work.set()
        return stream

    def abort(self, external_ids: Iterable[str]) -> None:
        """Abort requests at once, without the output of the present iteration; skip unknown ids."""
        for external_id in external_ids:
            for stream in tuple(self._by_external_id.get(external_id, ())):
                self.abort_stream(stream)

    def abort_stream(self, stream: TokenStream) -> None:
        """Abort one request, unless it has ended."""
        if stream.call_id in self._streams:
            self.engine.abort(stream.call_id)
            self._forget(stream)
            stream.put(Emission(stream.call_id, (), ABORT, None, 0))

    async def run(self) -> None:
        """Serve until cancelled."""
        end_ns = self._clock_ns()
        while True:
            await self._moves.wait()
            begin_ns = self._begin_ns(end_ns)
            step = self.engine.step(self._engine_ns(begin_ns))
            if step is None:
                self._work.clear()
                await self._work.wait()
                end_ns = self._clock_ns()
                continue
            factor = SLOW_FACTOR if self.hang is Hang.SLOW else 1
            end_ns = begin_ns + round(step.duration_ns * self._time_scale * factor)
            if step.idle:
                end_ns = await self._idle_until(end_ns)
                continue
            await self._sleep_until(end_ns)
            await self._moves.wait()
            for emission in step.emissions:
                self._deliver(emission)

    async def sleep(self, level: int, *, keep: bool) -> None:
        """Go to sleep; requests are aborted, or with `keep` recomputed after the wake.

        New requests wait until the wake (measured on vLLM 0.32).
        """
        async with self._moving:
            if not keep:
                self.abort(tuple(self._by_external_id))
            self.engine.sleep()
            await self._pass(self._residency.sleep(level))

    async def wake(self, tags: Collection[str] = ()) -> None:
        """Wake: from host memory after level 1, from storage after level 2.

        Args:
            tags: `weights` only loads the weights, `kv_cache` resumes service; none does both, as in vLLM.
        """
        async with self._moving:
            await self._pass(self._residency.load_weights())
            if not tags or "kv_cache" in tags:
                self._residency.wake()
                self.engine.wake()
                self._work.set()

    def close(self) -> None:
        """Break all streams off."""
        for stream in self._streams.values():
            stream.put(None)

    def _begin_ns(self, end_ns: int) -> int:
        """Return the end of the last iteration, or now if that is too long ago."""
        behind_ns = self._clock_ns() - end_ns
        if behind_ns <= _LAG_MAX_NS:
            return end_ns
        self.lag_s += behind_ns / _NS_PER_S
        return end_ns + behind_ns

    def _engine_ns(self, real_ns: int) -> int:
        return round((real_ns - self._origin_ns) / self._time_scale)

    async def _sleep_until(self, end_ns: int) -> None:
        """Sleep, at least for one turn of the event loop, so that connections are served in any case."""
        left_ns = end_ns - self._clock_ns()
        await asyncio.sleep(left_ns / _NS_PER_S if left_ns > _TIMER_NS else 0)

    async def _idle_until(self, end_ns: int) -> int:
        """Wait until `end_ns` or for an earlier request; return the time."""
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, end_ns - self._clock_ns()) / _NS_PER_S):
                await self._work.wait()
                return min(end_ns, self._clock_ns())
        return end_ns

    async def _pass(self, duration_ns: int) -> None:
        if duration_ns:
            await asyncio.sleep(duration_ns / _NS_PER_S * self._time_scale)

    def _deliver(self, emission: Emission) -> None:
        if emission.call_id == self._stuck:
            self._withheld.append(emission)
            return
        stream = self._streams.get(emission.call_id)
        if stream is None:
            return  # aborted during the iteration: vLLM also drops these tokens
        if emission.finish is not None:
            self._forget(stream)
        stream.put(emission)

    def _forget(self, stream: TokenStream) -> None:
        del self._streams[stream.call_id]
        same = self._by_external_id[stream.external_id]
        same.remove(stream)
        if not same:
            del self._by_external_id[stream.external_id]
