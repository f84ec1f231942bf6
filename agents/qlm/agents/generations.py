"""The generations under way on the awake engine: each a task whose end is an event for the protocol."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from qlm.agents.events import Event, GenerationEnded, Progress
from qlm.agents.held import Held
from qlm.agents.hosting import EngineHost
from qlm.agents.tracing import GenerationSpan, begin_generation
from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.ids import InstanceId
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.engine import EngineCall
from qlm.domain.ports.tracing import Tracer

if TYPE_CHECKING:  # a simulation needs no metrics, nor their package
    from qlm.agents.metrics import AgentMetrics

log = logging.getLogger("qlm.agents")

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Generations:
    """Runs generations for one agent.

    Args:
        instance: Of the agent.
        host: Its engines.
        clock: The time.
        post: Takes what happens.
        spawn: Makes a task that ends with the agent.
        metrics: What is told of them; None: nothing.
        tracer: Where their spans go; None: they have none.

    Attributes:
        closing: The agent ends: whoever is cancelled now does not tell of it.
    """

    def __init__(
        self,
        instance: InstanceId,
        host: EngineHost,
        clock: Clock,
        post: Callable[[Event], None],
        spawn: Spawn,
        metrics: "AgentMetrics | None",
        tracer: Tracer | None,
    ) -> None:
        self.closing = False
        self._instance = instance
        self._host = host
        self._clock = clock
        self._post = post
        self._spawn = spawn
        self._metrics = metrics
        self._tracer = tracer
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, call: EngineCall, held: Held | None) -> None:
        """Start what the protocol has submitted of a request, which it may have let go of since."""
        span = None
        if held is not None and self._metrics is not None:
            self._metrics.submitted(held, self._instance, self._clock.now_ns())
        if held is not None and self._tracer is not None:
            span = begin_generation(self._tracer, held, call, self._instance, self._clock.now_ns())
            call = span.call
        self._tasks[call.call_id] = self._spawn(self._run(call, span))

    async def abort(self, call_ids: tuple[str, ...]) -> None:
        """Ask the engine to stop; one that does not hear is not listened to any longer."""
        engine = self._host.engine()
        if engine is not None:
            try:
                await engine.abort(call_ids)
            except (EngineUnavailableError, EngineRefusedError) as error:
                log.warning("%s: abort failed: %s", self._instance, error)
            else:
                return
        for call_id in call_ids:
            if (generation := self._tasks.get(call_id)) is not None:
                generation.cancel()

    async def _run(self, call: EngineCall, span: GenerationSpan | None) -> None:
        finish, detail = "abort", ""
        try:
            engine = self._host.engine()
            if engine is None:
                raise EngineUnavailableError("no engine is awake")
            async for chunk in engine.generate(call):
                if chunk.token_ids:
                    if span is not None:
                        span.generated(len(chunk.token_ids), self._clock.now_ns())
                    self._post(Progress(chunks=((call.call_id, chunk.token_ids),)))
                finish = chunk.finish or finish
        except EngineRefusedError as error:
            finish, detail = "refused", str(error)
        except EngineUnavailableError as error:
            finish, detail = "lost", str(error)
        except asyncio.CancelledError:
            if self.closing:
                raise
            # Not listened to any longer: closing the connection is the abort.
        finally:
            self._tasks.pop(call.call_id, None)
            if span is not None:
                span.end(finish, detail, self._clock.now_ns())
        self._post(GenerationEnded(call_id=call.call_id, finish=finish, detail=detail))
