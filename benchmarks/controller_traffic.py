"""Traffic for the controller: instances with full batches, and requests that arrive as fast as they end."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from benchmarks.planner_live import HOST_MEMORY_BYTES
from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus, ServedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, Slo
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.profiles.profile import Profile
from qlm.store.embedded.memory import MemoryStore

OBJECTIVES: Final[tuple[tuple[Slo, float, float], ...]] = (
    (DeadlineSlo(deadline_ms=30_000.0), 0.05, 20.0),
    (DeadlineSlo(deadline_ms=3_600_000.0), 0.45, 3000.0),
    (BatchSlo(), 0.5, 3000.0),
)
"""Objective, share of what waits and arrives, and age of the oldest that waits at first, in seconds."""

TOKENS: Final = (1,) * 300
"""An answer."""

LEASED_MAX: Final = 64
"""Requests leased together by an instance, at most."""


class MovedClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * 10**9

    def now_ns(self) -> int:
        return self.now


@dataclass(slots=True)
class FullInstance:
    """An instance with a full batch.

    Attributes:
        status: Its last report.
        rate_rps: Requests that end there per second.
        debt: Part of a request that has ended beyond those counted.
    """

    status: InstanceStatus
    rate_rps: float
    debt: float = 0.0


@dataclass(slots=True)
class Traffic:
    """Requests that arrive and end, and instances that report.

    Attributes:
        waiting: Waiting requests of each class, first come first.
        arrived: Part of a request that has arrived beyond those counted.
    """

    store: MemoryStore
    clock: MovedClock
    instances: Sequence[FullInstance]
    classes: Sequence[tuple[RequestClass, Slo, float, float]]
    rng: np.random.Generator
    waiting: dict[RequestClass, deque[RequestMetadata]] = field(default_factory=dict)
    arrived: float = 0.0
    reported_ns: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def fill(self, requests: int) -> None:
        """Let requests wait since before."""
        now_ns = self.clock.now
        for cls, slo, share, age_s in self.classes:
            count = round(share * requests)
            for at in range(count):
                await self._arrive(cls, slo, now_ns - round(age_s * 1e9 * (1 - at / count)))

    async def pass_time(self, seconds: float) -> None:
        """Let time pass: as many requests arrive as end."""
        self.clock.now += round(seconds * 1e9)
        if self.clock.now - self.reported_ns >= 10**9:
            passed_s = min(10.0, (self.clock.now - self.reported_ns) / 1e9)
            self.reported_ns = self.clock.now
            for each in self.instances:
                await self._report(each, passed_s)
        ended = 0
        for each in self.instances:
            each.debt += each.rate_rps * seconds
            ended += await self._serve(each)
        self.arrived += seconds * sum(each.rate_rps for each in self.instances)
        shares = np.array([share for _, _, share, _ in self.classes])
        chosen = self.rng.choice(len(self.classes), size=int(self.arrived), p=shares / shares.sum())
        self.arrived -= len(chosen)
        for at in chosen:
            cls, slo, _, _ = self.classes[at]
            await self._arrive(cls, slo, self.clock.now)

    async def _arrive(self, cls: RequestClass, slo: Slo, arrival_ns: int) -> None:
        number = next(self.numbers)
        metadata = RequestMetadata(
            id=RequestId(f"r{number:09d}"),
            cls=cls,
            tenant="bench",
            slo=slo,
            arrival_ns=arrival_ns,
            prompt_tokens=100 + 37 * number % 400,
            sampling=Sampling(max_tokens=1000),
            answer=Answer(kind=AnswerKind.COMPLETION),
            detached=True,
        )
        self.waiting.setdefault(cls, deque()).append(metadata)
        await self.store.enqueue(metadata)

    async def _report(self, each: FullInstance, passed_s: float) -> None:
        status = each.status
        running = status.running
        ended = round(each.rate_rps * passed_s)
        work = replace(
            status.work,
            busy_s=status.work.busy_s + passed_s,
            request_s=status.work.request_s + passed_s * running,
            prompt_tokens=status.work.prompt_tokens + 300 * ended,
            output_tokens=status.work.output_tokens + len(TOKENS) * ended,
            ended=status.work.ended + ended,
        )
        assert status.capacity is not None
        running = max(1, status.capacity.seqs_max - int(self.rng.integers(0, 4)))
        each.status = replace(status, work=work, running=running)
        await self.store.heartbeat(each.status, 10.0)

    async def _serve(self, each: FullInstance) -> int:
        """Serve requests of the first group of the loaded model that has any."""
        if each.debt < 1.0:
            return 0
        queue = await self.store.virtual_queue(each.status.id)
        for group in queue.groups:
            waiting = self.waiting.get(group.cls, deque())
            if group.cls.model != each.status.active_model or not group.remaining or not waiting:
                continue
            served = min(LEASED_MAX, int(each.debt), group.remaining, len(waiting))
            for _ in range(served):
                metadata = waiting.popleft()
                answer = await self.store.lease(metadata, each.status.holder, group.id)
                if isinstance(answer, Granted):
                    entry = LogEntry(
                        id=metadata.id,
                        epoch=answer.lease.epoch,
                        offset=0,
                        token_ids=TOKENS,
                        outcome=Outcome.STOP,
                    )
                    await self.store.append([entry])
            each.debt -= served
            return served
        each.debt = 0.0
        return 0


def full_instances(
    count: int, names: Sequence[ModelId], profiles: dict[tuple[ModelId, str], Profile]
) -> Iterator[FullInstance]:
    """Half A10, half A100; each serves one of the models that its kind can serve."""
    for at in range(count):
        accelerator = ("A10", "A100")[at % 2]
        models = tuple(name for name in names if (name, accelerator) in profiles)
        active = models[at % len(models)]
        profile = profiles[(active, accelerator)]
        capacity = EngineCapacity(
            kv_tokens=profile.kv_tokens,
            block_tokens=profile.block_tokens,
            seqs_max=profile.seqs_max,
            context_tokens=profile.context_tokens,
            batched_tokens_max=profile.batched_tokens_max,
        )
        status = InstanceStatus(
            holder=Holder(InstanceId(f"{accelerator.lower()}-{at:03d}"), SessionId("bench")),
            accelerator=accelerator,
            models=models,
            active_model=active,
            engines=((active, EngineState.AWAKE),),
            capacity=capacity,
            running=profile.seqs_max,
            kv_used_tokens=profile.kv_tokens // 2,
            work=ServedWork(),
        )
        yield FullInstance(status, rate_rps=1.0 + at % 2)


def fleet_of(names: Sequence[ModelId], profiles: dict[tuple[ModelId, str], Profile]) -> Fleet:
    kinds = {}
    for accelerator in ("A10", "A100"):
        models = {
            name: ModelCost(
                weights_bytes=p.weights_bytes,
                swap_warm_s=p.swap_warm_s,
                swap_cold_s=p.swap_cold_s,
                unload_s=p.unload_s,
            )
            for name in names
            if (p := profiles.get((name, accelerator))) is not None
        }
        kinds[accelerator] = Kind(host_memory_bytes=HOST_MEMORY_BYTES, models=models)
    return Fleet(kinds=kinds, profiles=profiles)
