"""Shared values and waits of the store contract."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from qlm.domain.fleet import CachedPrompts, InstanceStatus, OpenAnswers, ServedWork, StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import GatewayId, GroupId, InstanceId, ModelId, RequestId, SessionId
from qlm.domain.lease import AgentProcess, Epoch, Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.operations import Operation, OperationCount, OperationStats, SwapCharge
from qlm.domain.output import OutputSlice
from qlm.domain.ports.store import Store
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss
from qlm.store.core.limits import StoreLimits

T = TypeVar("T")

LENGTHS_WINDOW: Final = 5

LIMITS: Final = StoreLimits(results_max=4, events_max=8, lengths_window=LENGTHS_WINDOW, events_waiting_max=3)
"""Small limits, so that tests reach them."""

WAIT_MAX_S: Final = 10.0
ARRIVAL_NS: Final = 1_700_000_000_000_000_001
"""Not representable as a double, so that a store that computes with doubles fails."""

CHAT: Final = RequestClass(ModelId("llama"), "deadline-10s", target_ms=10_000.0)
BATCH: Final = RequestClass(ModelId("mistral"), "batch")
A: Final = Holder(InstanceId("a"), SessionId("a1"))
A_AGAIN: Final = Holder(InstanceId("a"), SessionId("a2"))
"""Second session of A's agent."""
B: Final = Holder(InstanceId("b"), SessionId("b1"))
PROCESS: Final = AgentProcess(
    host="node-7", pid=4711, start_ticks=12_345, boot_id="boot", pid_namespace="pid:[1]", began_ns=ARRIVAL_NS
)
GATEWAY: Final = GatewayId("gateway-1")
OTHER_GATEWAY: Final = GatewayId("gateway-2")
G1, G2, G3 = GroupId("g1"), GroupId("g2"), GroupId("g3")


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test.

    Attributes:
        store: Fresh and empty, with `LIMITS`.
        emptied: Makes it lose all it holds, and returns the store to use from then on.
    """

    store: Store
    emptied: Callable[[], Awaitable[Store]]


def metadata(n: int, *, cls: RequestClass = CHAT, drop: bool = False) -> RequestMetadata:
    """Return the n-th request to arrive, one nanosecond after the other."""
    slo = BatchSlo() if cls.target_ms is None else DeadlineSlo(deadline_ms=cls.target_ms)
    return RequestMetadata(
        id=RequestId(f"r{n:04d}"),
        cls=cls,
        tenant="tenant",
        slo=slo,
        on_miss=OnMiss.DROP if drop else OnMiss.SERVE,
        arrival_ns=ARRIVAL_NS + n,
        prompt_tokens=10 + n,
        prompt_tail=(1, 2, 3),
        sampling=Sampling(max_tokens=100, stop_token_ids=(7,), logit_bias=((5, 0.5),)),
        answer=Answer(kind=AnswerKind.CHAT, stop=("é\n",)),
    )


def status(holder: Holder, *, active: ModelId | None = None, running: int = 0) -> InstanceStatus:
    """Return the status that an agent reports."""
    return InstanceStatus(
        holder=holder,
        accelerator="A10",
        models=(ModelId("llama"), ModelId("mistral")),
        active_model=active,
        running=running,
        parked=3,
        staged=(StagedWork(cls=CHAT, fresh=2, evicted=1, evicted_tokens=70),),
        answers=(OpenAnswers(cls=CHAT, counts=((3, 2, 8), (9, 1, 11))),),
        prompts=(CachedPrompts(cls=CHAT, prompts=2.5, hits=1.5, prompt_tokens=800.0, cached_tokens=300.25),),
        operations=OperationStats(
            counts=(OperationCount(Operation.MODEL_SWAP_WARM, ModelId("llama"), 2, 3.5),),
            swap_lost=(SwapCharge("qlm.class.llama.batch.all", 2, 3.5),),
            swaps_thrashed=1,
            ended=7,
            observed_s=60.0,
        ),
        work=ServedWork(busy_s=1.5, ended=2, withdrawn_tokens=9, token_steps=12.5),
        process=PROCESS,
    )


async def alive(store: Store, *holders: Holder, replaces: SessionId | None = None) -> None:
    """Send heartbeats that last longer than any check and must be taken."""
    for holder in holders:
        refusal = await store.heartbeat(status(holder), 3600.0, replaces)
        assert refusal is None, refusal


async def enqueued(store: Store, *numbers: int, watcher: GatewayId | None = None) -> None:
    """Enqueue requests of the class CHAT."""
    for n in numbers:
        await store.enqueue(metadata(n), watcher)


async def leased(
    store: Store, n: int, holder: Holder, group: GroupId | None = None, *, cls: RequestClass = CHAT
) -> Epoch:
    """Lease a request, which must be granted, and return the epoch."""
    answer = await store.lease(metadata(n, cls=cls), holder, group)
    assert isinstance(answer, Granted), answer
    return answer.lease.epoch


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It did not come true; says which.
    """
    give_up = time.monotonic() + WAIT_MAX_S
    while not await condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {WAIT_MAX_S:g} s for {what}")
        await asyncio.sleep(0.005)


async def first_of(announced: AsyncIterator[T]) -> T:
    """Open a subscription, return its first item and close it."""
    opened = cast("AsyncGenerator[T, None]", announced)
    async with aclosing(opened):
        return await anext(opened)


@asynccontextmanager
async def listening(announced: AsyncIterator[T]) -> AsyncIterator[list[T]]:
    """Collect the items of a subscription, from when it is live and without its first item."""
    received: list[T] = []
    live = asyncio.Event()

    async def listen() -> None:
        async for item in announced:
            if live.is_set():
                received.append(item)
            live.set()

    task = asyncio.create_task(listen())
    try:
        await asyncio.wait_for(live.wait(), WAIT_MAX_S)
        yield received
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def each_slice(batches: AsyncIterator[Sequence[OutputSlice]]) -> AsyncIterator[OutputSlice | None]:
    """Flatten announced output; None stands for an empty batch, which means that the subscription is live."""
    async for batch in batches:
        if not batch:
            yield None
        for part in batch:
            yield part


async def receives(received: Sequence[object], expected: Sequence[object]) -> None:
    """Wait until a listener has received just what was expected, in order."""

    async def complete() -> bool:
        return len(received) >= len(expected)

    with suppress(TimeoutError):
        await until(complete, "announcements")
    assert list(received) == list(expected), (received, expected)
