"""Generations in progress on the awake engine: one task each, whose tokens and end become events."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from qlm.agents.core.events import Event, GenerationEnded, Progress
from qlm.agents.core.request import TrackedRequest
from qlm.agents.engines.http.statuses import BLAMELESS, StatusError
from qlm.agents.engines.model_host import EngineHost
from qlm.agents.shell.tracing import GenerationSpan, begin_generation
from qlm.domain.errors import (
    EngineGarbledError,
    EngineRefusedError,
    EngineUnavailableError,
    MediaLostError,
    QlmError,
    StoreDataError,
    StoreUnavailableError,
)
from qlm.domain.formats.media import media_digest
from qlm.domain.ids import InstanceId, RequestId, TokenIds
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.engine import Engine, EngineCall, EngineChunk, MediaEngine, PushEngine
from qlm.domain.ports.media import MediaReader
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.loop_lateness import LoopLateness
from qlm.domain.shell.tasks import end_tasks

log = logging.getLogger("qlm.agents")

WATCHED_MIN: Final = 16
"""Generations from which on the lateness of the loop is read; tokens of fewer are written at once."""

_MEDIA_RETRY_S: Final = 0.5
_PREPARING_S: Final = 1.0
"""Interval at which a call whose media are prepared is reported: less than an engine may be silent."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

OnSubmitted = Callable[[TrackedRequest, InstanceId, int], None]
"""Receives a request whose generation starts, its instance, and the time in ns."""


class Generations:
    """Runs generations for one agent.

    Args:
        post: Receives tokens and ends as events, those of one call together.
        spawn: Starts a task that ends with the agent.
        media: The media of prompts.

    Attributes:
        closing: The agent is ending: generations cancelled from now on post no event.
    """

    def __init__(
        self,
        instance: InstanceId,
        host: EngineHost,
        clock: Clock,
        post: Callable[[*tuple[Event, ...]], None],
        spawn: Spawn,
        on_submitted: OnSubmitted | None,
        tracer: Tracer | None,
        faults: FaultLog,
        media: MediaReader,
    ) -> None:
        self.closing = False
        self._media = media
        self._instance = instance
        self._host = host
        self._clock = clock
        self._post = post
        self._spawn = spawn
        self._on_submitted = on_submitted
        self._tracer = tracer
        self._faults = faults
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._preparing: set[str] = set()
        self._engine: Engine | None = None
        self._pushing: PushEngine | None = None
        self._lateness = LoopLateness()
        self._turn: list[tuple[str, TokenIds]] = []
        self._turn_logprobs: list[tuple[str, bytes]] = []
        self._turn_prompts: list[tuple[str, bytes]] = []

    def start(self, call: EngineCall, tracked: TrackedRequest | None) -> None:
        """Start a generation; `tracked` is None if its request has left the agent since the submission."""
        span = None
        if tracked is not None and self._on_submitted is not None:
            self._on_submitted(tracked, self._instance, self._clock.now_ns())
        if tracked is not None and self._tracer is not None:
            span = begin_generation(self._tracer, tracked, call, self._instance, self._clock.now_ns())
            call = span.call
        self._tasks[call.call_id] = self._spawn(self._run(call, span, tracked))
        self._lateness.watch(on=len(self._tasks) >= WATCHED_MIN)

    async def abort(self, call_ids: tuple[str, ...], *, cut: bool = False) -> None:
        """Abort on the engine; if it cannot be reached, or to `cut` them, cancel the local streams."""
        if cut:
            await end_tasks([self._tasks[call_id] for call_id in call_ids if call_id in self._tasks])
            return
        # The engine does not know yet what is being prepared for it.
        unsent = [call_id for call_id in call_ids if call_id in self._preparing]
        await end_tasks([self._tasks[call_id] for call_id in unsent if call_id in self._tasks])
        call_ids = tuple(call_id for call_id in call_ids if call_id not in unsent)
        engine = self._host.engine()
        if engine is not None and call_ids:
            try:
                await engine.abort(call_ids)
            except Exception as error:
                self._faults.note(log, error, "%s: abort failed", self._instance)
            else:
                return
        await end_tasks([self._tasks[call_id] for call_id in call_ids if call_id in self._tasks])

    async def _run(
        self, call: EngineCall, span: GenerationSpan | None, tracked: TrackedRequest | None
    ) -> None:
        finish, detail, cached_tokens, blameless = "abort", "", None, False
        try:
            engine = self._host.engine()
            if engine is None:
                raise EngineUnavailableError("no engine is awake")
            collect = self._collect if span is None else partial(self._take, span)
            last = await self._last_chunk(engine, call, partial(collect, call.call_id), tracked)
            if last is not None:
                # It says what the engine did not compute.
                finish, cached_tokens = last.finish or finish, last.cached_tokens
        except (MediaLostError, EngineRefusedError, EngineUnavailableError) as error:
            finish, detail = _finish_of(error), str(error)
            blameless = isinstance(error, StatusError) and error.status in BLAMELESS
        except asyncio.CancelledError:
            if self.closing:
                raise
            # Cancelled by `abort`: closing the connection aborts the generation on the engine.
        finally:
            self._tasks.pop(call.call_id, None)
            self._lateness.watch(on=len(self._tasks) >= WATCHED_MIN)
            if span is not None:
                span.end(finish, detail, self._clock.now_ns())
        ended = GenerationEnded(
            call_id=call.call_id,
            finish=finish,
            detail=detail,
            cached_tokens=cached_tokens,
            blameless=blameless,
        )
        if not self.closing:
            self._turn_ends(ended)

    async def _prepare(self, engine: Engine, call: EngineCall, id: RequestId) -> None:
        """Give an engine the media of a call before it gets the call; meanwhile the call counts as moving.

        Raises:
            MediaLostError: The store has them no more, or those of another request.
            EngineRefusedError: The engine cannot read them.
            EngineUnavailableError: It died or cannot be reached.
        """
        if not isinstance(engine, MediaEngine):
            raise EngineRefusedError("the engine takes no images, sound or video")
        self._preparing.add(call.call_id)
        work = asyncio.ensure_future(self._prepared(engine, call, id))
        try:
            while not (await asyncio.wait([work], timeout=_PREPARING_S))[0]:
                self._post(Progress(chunks=(), preparing=(call.call_id,)))
            work.result()
        finally:
            self._preparing.discard(call.call_id)
            await end_tasks([work])

    async def _prepared(self, engine: MediaEngine, call: EngineCall, id: RequestId) -> None:
        while True:
            try:
                data = await self._media.media(id)
                break
            except StoreUnavailableError as error:  # it is waited for, as by all that agents write
                self._faults.note(log, error, "%s: media cannot be read", self._instance)
                await asyncio.sleep(_MEDIA_RETRY_S)
            except StoreDataError as error:
                raise MediaLostError(f"the store has damaged media of this request: {error}") from error
        if data is None or media_digest(data) != call.sampling.media:
            raise MediaLostError("the store has the media of this request no more; send it again")
        await engine.prepare(call, data)

    def _take(self, span: GenerationSpan, call_id: str, chunk: EngineChunk) -> None:
        if chunk.token_ids:
            span.generated(len(chunk.token_ids), self._clock.now_ns())
        self._collect(call_id, chunk)

    def _collect(self, call_id: str, chunk: EngineChunk) -> None:
        """Post tokens together with all others of this turn of the loop."""
        if not self._turn and not self._turn_prompts:
            asyncio.get_running_loop().call_soon(self._end_turn)
        if chunk.token_ids:
            self._turn.append((call_id, chunk.token_ids))
        if chunk.prompt_logprobs:
            self._turn_prompts.append((call_id, chunk.prompt_logprobs))
        if chunk.logprobs:
            self._turn_logprobs.append((call_id, chunk.logprobs))

    def _end_turn(self) -> None:
        try:
            self._turn_ends()
        except Exception as error:  # a defect of the agent: it must end, as for an error in its tasks
            self._spawn(_fail(error))

    def _turn_ends(self, *ended: GenerationEnded) -> None:
        """Post the tokens of this turn, with an end after them: the last tokens are written with it."""
        if self.closing:
            return
        chunks, self._turn = self._turn, []
        if chunks or self._turn_prompts:
            logprobs, prompts = tuple(self._turn_logprobs), tuple(self._turn_prompts)
            self._turn_logprobs.clear()
            self._turn_prompts.clear()
            late_ns = round(self._lateness.mean_s * 1e9)
            progress = Progress(
                chunks=tuple(chunks), logprobs=logprobs, prompt_logprobs=prompts, late_ns=late_ns
            )
            self._post(progress, *ended)
        elif ended:
            self._post(*ended)

    def _pushing_one(self, engine: Engine) -> PushEngine | None:
        """Return the engine if it pushes; the check looks at every attribute, so it is made once."""
        if engine is not self._engine:
            self._engine, self._pushing = engine, engine if isinstance(engine, PushEngine) else None
        return self._pushing

    async def _last_chunk(
        self,
        engine: Engine,
        call: EngineCall,
        take: Callable[[EngineChunk], None],
        tracked: TrackedRequest | None,
    ) -> EngineChunk | None:
        """Generate, and return the last chunk, whose tokens were taken too.

        An error of the client costs this call only.
        """
        try:
            if call.sampling.media:
                if tracked is None:
                    return None
                await self._prepare(engine, call, tracked.id)
            if (pushing := self._pushing_one(engine)) is not None:
                last = await pushing.push(call, take)
                if last is not None and last.token_ids:
                    take(last)
                return last
            last = None
            async for last in engine.generate(call):
                if last.token_ids or last.prompt_logprobs:
                    take(last)
            return last
        except (MediaLostError, EngineRefusedError, EngineUnavailableError):
            raise
        except Exception as error:
            self._faults.note(log, error, "%s: a generation failed", self._instance)
            raise EngineGarbledError(f"the generation failed: {error!r}") from error
        finally:
            if call.sampling.media and isinstance(engine, MediaEngine):
                engine.forget(call.call_id)  # a call aborted as soon as it was prepared is never pushed


async def _fail(error: Exception) -> None:
    raise error


def _finish_of(error: QlmError) -> str:
    match error:
        case MediaLostError():
            return "media_lost"
        case EngineRefusedError():
            return "refused"
        case EngineGarbledError():
            return "garbled"
        case StatusError():
            return "declined"
    return "lost"
