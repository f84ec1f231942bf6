"""Simulated engines of one instance: tokens determined by all before them, real limits, injected failures."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import EngineGarbledError, EngineUnavailableError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import ModelId, TokenIds
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.sampling import Sampling
from qlm.simulator.emulation.emulator import Hang
from qlm.simulator.engine.token_chain import TokenChain, digests
from simulation.hang import EngineHang
from simulation.machine import Machine
from simulation.virtual_loop import VirtualLoop

MEAN_OUTPUT_TOKENS: Final = 16.0
"""Average length of an answer that no limit ends."""

TOKEN_S: Final = 0.03
PROMPT_S: Final = 0.03
SPEED: Final = EngineSpeed(iteration_s=TOKEN_S + PROMPT_S)
"""Longest durations, as agents know them."""

CHUNK_TOKENS: Final = 8
"""Most tokens in one chunk."""

ABORT_S: Final = 0.02
"""Longest time until an aborted generation stops; tokens generated until then are delivered."""

SUBMIT_S: Final = 0.0005
"""Time until a submitted request reaches the engine."""

STARTED_S: Final = 1.0
WOKEN_S: Final = 0.2


@dataclass(slots=True, eq=False)
class _Generation:
    call: EngineCall
    chain: TokenChain
    tokens: int
    blocks: int = 0
    made: int = 0
    leaving: bool = False
    stopped: bool = False
    stalled: bool = False
    waiter: "asyncio.Future[None] | None" = field(default=None)


class SimulatedEngine:
    """A `qlm.domain.ports.engine.Engine` of one model on a machine; it serves while it is up and awake."""

    def __init__(
        self,
        loop: VirtualLoop,
        model: ModelId,
        machine: Machine,
        capacity: EngineCapacity,
        chance: Random,
        hang: EngineHang,
    ) -> None:
        self.model = model
        self._hang = hang
        self._loop = loop
        self._machine = machine
        self._capacity = capacity
        self._chance = chance
        self._up = False
        self._awake = False
        self._running: dict[str, _Generation] = {}
        self._death: asyncio.Future[str] | None = None

    # the process

    async def start(self) -> None:
        """Start the process.

        Raises:
            EngineUnavailableError: The start fails.
        """
        self._hang.restarted()
        await asyncio.sleep(STARTED_S * self._machine.slowness)
        if self._machine.fails("start"):
            raise EngineUnavailableError("the engine did not start")
        self._up = self._awake = True
        self._death = asyncio.get_running_loop().create_future()
        self._machine.changed(self.model, awake=True, asleep=False)

    async def stop(self) -> None:
        """Stop, with all generations."""
        self._go_down()

    async def wait_failed(self) -> str:
        """Wait until the engine dies by itself; return the cause."""
        assert self._death is not None, "an engine that was never started cannot die"
        return await asyncio.shield(self._death)

    def die(self) -> None:
        """Die at once, as by kill -9."""
        death = self._death
        self._go_down()
        if death is not None and not death.done():
            death.set_result("the engine process died")

    @property
    def up(self) -> bool:
        """True if the process runs."""
        return self._up

    def _go_down(self) -> None:
        self._up = self._awake = False
        self._machine.changed(self.model, awake=False, asleep=False)
        for generation in self._running.values():
            _wake(generation)

    # the port

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        """Generate tokens until the end, an abort, or the death of the engine."""
        self._check_serving()
        generation = _Generation(call, chain_after(call.prompt_ids), len(call.prompt_ids))
        self._running[call.call_id] = generation
        try:
            # Neither a slow engine nor an abort lets it overtake one that was submitted before.
            await self._loop.pause(SUBMIT_S)
            self._check_serving()
            staying = [each for each in self._running.values() if not each.leaving]
            blocks = sum(self._capacity.blocks(each.tokens) for each in staying)
            self._machine.started(call.call_id, len(staying), self._capacity.seqs_max, blocks)
            await self._stand_still(generation, admitted=False)
            await self._pause(generation, PROMPT_S)
            while True:
                self._check_serving()
                chunk = await self._step(generation)
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            self._running.pop(call.call_id, None)
            self._machine.free(generation.blocks)
            self._note_stall(generation, stalled=False)

    async def abort(self, call_ids: Sequence[str]) -> None:
        """Stop generations; each delivers its tokens up to then."""
        self._check_serving()
        asked = [self._running[call_id] for call_id in call_ids if call_id in self._running]
        for generation in asked:
            generation.leaving = True
        if self._hang.deaf:
            return
        await asyncio.sleep(ABORT_S * self._chance.random())
        for generation in asked:
            generation.stopped = True
            _wake(generation)

    async def capacity(self) -> EngineCapacity:
        """Return the limits."""
        self._check_serving()
        return self._capacity

    async def healthy(self) -> bool:
        """Return whether the engine answers."""
        return self._up and self._awake

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator; at level 1 the weights stay in host memory."""
        self._check_serving()
        await asyncio.sleep(WOKEN_S / 2)
        self._check_serving()
        self._awake = False
        self._machine.changed(self.model, awake=False, asleep=level == 1)
        for generation in self._running.values():
            _wake(generation)

    async def wake(self) -> None:
        """Wake from sleep.

        Raises:
            EngineUnavailableError: The wake fails.
        """
        await asyncio.sleep(WOKEN_S * self._machine.slowness)
        if not self._up or self._machine.fails("wake"):
            raise EngineUnavailableError("the engine did not wake")
        self._awake = True
        self._machine.changed(self.model, awake=True, asleep=False)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    # generating

    async def _step(self, generation: _Generation) -> EngineChunk:
        """Generate the next chunk; a shorter one if the generation is stopped meanwhile."""
        wanted = self._chance.randint(1, CHUNK_TOKENS)
        whole = await self._pause(generation, wanted * TOKEN_S)
        self._check_serving()
        await self._stand_still(generation, admitted=True)
        if self._hang.mode is Hang.GARBAGE:
            raise EngineGarbledError("the engine sent what cannot be read")
        while not self._grow(generation, wanted):
            await self._pause(generation, TOKEN_S)
            self._check_serving()
            if generation.stopped:
                return EngineChunk(token_ids=(), finish="abort")
        token_ids, finish = self._make(generation, wanted if whole else self._chance.randint(0, wanted))
        if finish is None and generation.stopped:
            finish = "abort"
        return EngineChunk(token_ids=token_ids, finish=finish)

    def _make(self, generation: _Generation, count: int) -> tuple[TokenIds, str | None]:
        sampling = generation.call.sampling
        made: list[int] = []
        finish = None
        while len(made) < count and finish is None:
            made.append(generation.chain.next_id())
            generation.made += 1
            if ends(sampling, made[-1]):
                finish = "stop"
            elif generation.made >= sampling.max_tokens:
                finish = "length"
        generation.tokens += len(made)
        return tuple(made), finish

    def _grow(self, generation: _Generation, tokens: int) -> bool:
        """Allocate KV blocks for further tokens; False if too few are free."""
        needed = self._capacity.blocks(generation.tokens + tokens) - generation.blocks
        if not self._machine.take(needed):
            self._preempt_for(generation)
            if not self._machine.take(needed):
                return False
        generation.blocks += needed
        return True

    def _preempt_for(self, generation: _Generation) -> None:
        """Preempt the newest other generation, as vLLM does; it recomputes its tokens later."""
        for other in reversed(self._running.values()):
            if other is generation:
                return
            if other.blocks:
                self._machine.free(other.blocks)
                other.blocks = 0
                return

    async def _pause(self, generation: _Generation, seconds: float) -> bool:
        """Wait; return False if the generation was stopped before the time was over."""
        if not generation.stopped:
            slowness = self._machine.slowness * self._hang.slowness()
            generation.waiter = self._loop.pause(seconds * slowness)
            await generation.waiter
        return not generation.stopped

    async def _stand_still(self, generation: _Generation, *, admitted: bool) -> None:
        """Wait while the engine hangs for a generation; an abort ends that, unless the engine is deaf."""
        call_id = generation.call.call_id
        while self._hang.holds(call_id, admitted=admitted) and not generation.stopped:
            self._note_stall(generation, stalled=True)
            generation.waiter = self._hang.over()
            await generation.waiter
            self._check_serving()
        self._note_stall(generation, stalled=False)

    def _note_stall(self, generation: _Generation, *, stalled: bool) -> None:
        if generation.stalled is not stalled:
            note = self._machine.stalled if stalled else self._machine.stall_over
            note(generation.call.call_id)
            generation.stalled = stalled

    def _check_serving(self) -> None:
        if not (self._up and self._awake):
            raise EngineUnavailableError("the engine does not answer")


class SimulatedUnit:
    """Process of one engine, as `agents.engines.model_host` supervises it."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine: Final = engine

    async def start(self) -> None:
        await self.engine.start()

    async def stop(self) -> None:
        await self.engine.stop()

    def hangs(self) -> None:
        """Do nothing: it stops at once in any case."""

    async def close(self) -> None:
        await self.engine.stop()

    async def wait_failed(self) -> str:
        """Wait until the engine dies by itself; return the cause."""
        return await self.engine.wait_failed()

    async def prefetch(self) -> bool:
        """Return False: there are no files to prefetch."""
        return False

    async def drop_prefetched(self) -> None:
        """Do nothing: nothing was prefetched."""


def chain_after(token_ids: TokenIds) -> TokenChain:
    """Return the token chain that follows these ids; other ids give other tokens."""
    return TokenChain(digests(token_ids, len(token_ids) + 1)[-1], token_ids, MEAN_OUTPUT_TOKENS)


def ends(sampling: Sampling, token_id: int) -> bool:
    """Return whether a token ends an answer, by the request's stop ids or the engine's own EOS."""
    return sampling.ends_with(token_id) or (token_id == EOS_ID and not sampling.ignore_eos)


def _wake(generation: _Generation) -> None:
    if generation.waiter is not None and not generation.waiter.done():
        generation.waiter.set_result(None)
