"""A gateway on loopback with a real store and broker, and an agent that answers by a script."""

import asyncio
import contextlib
import inspect
import itertools
import time
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import orjson
import uvicorn
from starlette.applications import Starlette

from qlm.agents.engines.vllm.prompt import read_prompt
from qlm.agents.engines.vllm.stream import read_logprobs
from qlm.broker.codec import decode_request
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.topology import DEAD
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.fleet import InstanceStatus, ModelSpec
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.formats.token_logprobs import Piece, piece_of_prompt
from qlm.domain.ids import ControllerId, GatewayId, InstanceId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.notices import CancelAsked
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.ports.tracing import Tracer
from qlm.domain.request import Request
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.configured import NOTHING_CONFIGURED, Configured
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.app import admin_app_of, create_app
from qlm.gateway.http.connections.listener import Connections
from qlm.gateway.http.server import create_server
from qlm.gateway.render.rendering import RenderTiers
from qlm.gateway.sessions.gateway import GatewayParts
from qlm.gateway.webhooks.endpoints import Webhooks
from qlm.simulator.emulation.vllm_logprobs import generate_logprobs, prompt_logprobs
from qlm.store.embedded.memory import MemoryStore
from support.described import Watched

MODELS = (
    ModelSpec(id=ModelId("emulated"), tokenizer="byte", context_tokens=4096),
    ModelSpec(id=ModelId("small"), tokenizer="byte", context_tokens=64),
)

T = TypeVar("T")


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


def text_then_end(text: str) -> Sequence[int]:
    """Tokens of an answer of an emulated model."""
    return [*text.encode(), EOS_ID]


async def patient(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call of the store that finds it away, as agents do; old connections may be cut."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(0.02)


def scored(
    request: Request, ids: Sequence[int], start: int, end: int, *, prompts: bool = True
) -> LogExtensions:
    """Return the log probabilities of some tokens of an answer as an emulated engine makes them up.

    With the first tokens, those of the prompt.
    """
    pieces = list[Piece]()
    if prompts and not start and (of_prompt := request.extensions.prompt_logprobs) is not None:
        listed = prompt_logprobs(request.prompt_ids, of_prompt)
        answer = {"choices": [{"finish_reason": "length"}], "prompt_logprobs": listed}
        packed = read_prompt(orjson.dumps(answer), request.prompt_ids, of_prompt)
        assert packed is not None
        pieces.append(piece_of_prompt(request.prompt_tokens, packed))
    if (top := request.extensions.logprobs) is None:
        return LogExtensions(logprobs_at=tuple(pieces)) if pieces else NO_LOG_EXTENSIONS
    choice = {
        "token_ids": ids[start:end],
        "logprobs": generate_logprobs((*request.prompt_ids, *ids[:start]), ids[start:end], top),
    }
    pieces.append((start, b64encode(read_logprobs(choice, top)).decode()))
    return LogExtensions(logprobs_at=tuple(pieces))


@dataclass(slots=True)
class ScriptedAgent:
    """Leases whatever is queued and writes an answer to its log, a few tokens at a time.

    Attributes:
        answer: Tokens that a request gets; cut at its max_tokens.
        chunk: Tokens per append.
        pause_at: Output tokens after which an answer waits for `go`; None: no pause.
        go: Lets waiting answers go on.
        fail_with: Outcome and detail with which answers end, after their tokens.
        leased: Requests taken so far.
        ended: How requests ended, as far as this agent ended them.
        rests: It takes nothing until `working` is set.
        deaf: It goes on with requests that it is asked to end.
        cached_tokens: Prompt tokens that it found in its prefix cache.
        scores_prompts: It knows the log probabilities of prompts.
    """

    broker: Broker
    store: Store
    answer: Callable[[Request], Sequence[int]] = lambda request: text_then_end("Hello, world!")
    chunk: int = 3
    pause_at: int | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    working: asyncio.Event = field(default_factory=asyncio.Event)
    fail_with: tuple[Outcome, str] | None = None
    leased: list[Request] = field(default_factory=list)
    ended: dict[RequestId, Outcome] = field(default_factory=dict)
    holder: Holder = field(default=Holder(InstanceId("gpu-0"), SessionId("s1")))
    rests: bool = False
    deaf: bool = False
    cached_tokens: int | None = None
    scores_prompts: bool = True
    _cancels: dict[RequestId, Outcome] = field(default_factory=dict)

    async def run(self) -> None:
        self.working.set()
        await self.store.heartbeat(self._status(), ttl_s=3600)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            while True:
                self.rests = not self.working.is_set()
                await self.working.wait()
                self.rests = False
                for queue in set(await self.broker.queues()) - {DEAD}:
                    for delivery in await self.broker.get(queue, 16):
                        group.create_task(self._serve(delivery))
                await asyncio.sleep(0.002)

    async def rest(self) -> None:
        """Take nothing more until `working` is set."""
        await self.working.wait()  # it sets this when it begins
        self.working.clear()
        await until(lambda: self.rests)

    async def _listen(self) -> None:
        async for notice in self.store.notices(self.holder.instance):
            if isinstance(notice, CancelAsked):
                self._cancels[notice.id] = notice.outcome

    async def _serve(self, delivery: Delivery) -> None:
        request = decode_request(delivery.body)
        lease = await patient(lambda: self.store.lease(request.metadata(), self.holder, None))
        if isinstance(lease, Granted):
            self.leased.append(request)
            await self._write(request, lease)
        await self.broker.ack(delivery)

    async def _write(self, request: Request, granted: Granted) -> None:
        ids = list(self.answer(request))[: request.sampling.max_tokens]
        at = 0
        while at < len(ids):
            while self.pause_at is not None and at >= self.pause_at and not self.go.is_set():
                if self._asked(request):
                    break
                await asyncio.sleep(0.002)
            if self._asked(request):
                break
            step = min(self.chunk, len(ids) - at)
            if self.pause_at is not None and at < self.pause_at:
                step = min(step, self.pause_at - at)
            entry = LogEntry(
                id=request.id,
                epoch=granted.lease.epoch,
                offset=at,
                token_ids=tuple(ids[at : at + step]),
                extensions=scored(request, ids, at, at + step, prompts=self.scores_prompts),
            )
            await patient(partial(self.store.append, [entry]))
            at += step
            await asyncio.sleep(0)
        outcome, detail = self._end(request, ids)
        last = LogEntry(
            id=request.id,
            epoch=granted.lease.epoch,
            offset=at,
            outcome=outcome,
            detail=detail,
            extensions=NO_LOG_EXTENSIONS
            if self.cached_tokens is None
            else LogExtensions(cached_tokens=self.cached_tokens),
        )
        await patient(partial(self.store.append, [last]))
        self.ended[request.id] = outcome

    def _asked(self, request: Request) -> Outcome | None:
        return None if self.deaf else self._cancels.get(request.id)

    def _end(self, request: Request, ids: Sequence[int]) -> tuple[Outcome, str]:
        if (asked := self._asked(request)) is not None:
            return asked, ""
        if self.fail_with is not None:
            return self.fail_with
        return (Outcome.STOP if ids and ids[-1] == EOS_ID else Outcome.LENGTH), ""

    def _status(self) -> InstanceStatus:
        return InstanceStatus(holder=self.holder, accelerator="A10", models=tuple(spec.id for spec in MODELS))


@dataclass(slots=True)
class Cluster:
    """Store, broker and agent; gateways are started on it.

    Attributes:
        admin_urls: Where gateways serve operators, by the URL for clients.
        undescribed: What gateways have answered though the HTTP reference does not say so.
    """

    store: MemoryStore
    broker: Broker
    agent: ScriptedAgent
    stack: contextlib.AsyncExitStack
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    undescribed: list[str] = field(default_factory=list)
    admin_urls: dict[str, str] = field(default_factory=dict)
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    def parts(self, name: str = "gateway", **others: Any) -> GatewayParts:
        """Return the parts of a gateway of this name, with others in place of the usual ones."""
        usual = GatewayParts(
            models=MODELS,
            broker=self.broker,
            store=self.store,
            clock=SystemClock(),
            limits=self.limits,
            gateway_id=GatewayId(name),
            new_id=lambda: RequestId(uuid.uuid4().hex),
        )
        return replace(usual, **others)

    async def gateway(
        self,
        *,
        limits: GatewayLimits | None = None,
        broker: Broker | None = None,
        tracer: Tracer | None = None,
        rules: AccessRules | None = None,
        admin_rules: AccessRules | None = None,
        exposures: Sequence[str] = (),
        connections: ConnectionLimits | None = None,
        configured: Configured = NOTHING_CONFIGURED,
        render_tiers: RenderTiers = MappingProxyType({}),
        models: Sequence[ModelSpec] = MODELS,
        clock: Clock | None = None,
        storage: Storage | None = None,
        webhooks: Webhooks | None = None,
        faults: FaultLog | None = None,
    ) -> str:
        """Start a gateway; return its base URL for clients."""
        app = create_app(
            self.parts(
                f"gateway-{next(self._names)}",
                models=models,
                broker=broker or self.broker,
                clock=clock or SystemClock(),
                limits=limits or self.limits,
                tracer=tracer,
                exposures=exposures,
                configured=configured,
                render_tiers=render_tiers,
                storage=storage,
                webhooks=webhooks,
                faults=faults or FaultLog(),
            ),
            rules=rules,
            admin_url="http://127.0.0.1:8090",
        )
        limited = Connections(connections or ConnectionLimits(), app.state.gateway.metrics.refused)
        keys_required = rules is not None and rules.keys_required
        url = await self._serve(app, limited, asks_for_keys=keys_required)
        admin_app = admin_app_of(app.state.gateway, admin_rules)
        self.admin_urls[url] = await self._serve(admin_app, asks_for_keys=keys_required)
        return url

    async def _serve(
        self, app: Starlette, limited: Connections | None = None, *, asks_for_keys: bool = False
    ) -> str:
        server = create_server(app, "127.0.0.1", 0, shutdown_s=1, connections=limited)
        server.config.app = Watched(app, self.undescribed, asks_for_keys=asks_for_keys)
        return await self.stack.enter_async_context(serving(server))


@contextlib.asynccontextmanager
async def serving(server: uvicorn.Server) -> AsyncIterator[str]:
    """Run a server in this event loop."""
    # uvicorn would take over the signals of the test run.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the server ended while starting")
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def running_cluster(folder: Path, store: MemoryStore | None = None) -> AsyncIterator[Cluster]:
    """Run a store, a broker in a file, and an agent; gateways started on it end with it."""
    file = await SqliteFile.open(folder / "queue.sqlite")
    queues = await SqliteQueues.open(file)
    store = store or MemoryStore(SystemClock())
    await mark_indexed(store)
    broker = queues.broker()
    agent = ScriptedAgent(broker, store)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(file.close)
        stack.push_async_callback(queues.close)
        stack.push_async_callback(store.close)
        task = asyncio.create_task(agent.run())
        stack.push_async_callback(_end, task)
        cluster = Cluster(store, broker, agent, stack)
        yield cluster
    assert cluster.undescribed == [], f"not as docs/reference says: {cluster.undescribed}"


async def mark_indexed(store: Store) -> None:
    """Let a store be whole, as a controller does that has read the queue into it."""
    term = (await store.acquire_leadership(ControllerId("controller"), 3600)).term
    await store.mark_indexed(term)
    await store.resign(term)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until a condition, which may have to be awaited, holds.

    Raises:
        TimeoutError: It did not in time.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            answer = condition()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.005)
