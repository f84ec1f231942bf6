"""Processor time of the controller's loop under a long queue: `make bench ARGS="loop"`.

A hundred instances with full batches, and 400 000 waiting requests of 12 models in interactive, deadline and
batch classes. The controller's own loop runs on a store in memory: each turn reads the view, learns,
regroups, builds and solves the planning problem, and applies and publishes what has changed. Between turns
the clock is moved by what the loop waits, requests arrive and end, and instances report. The figure is the
processor time of the turns over the time that passed. The store's share of it is that of a server in
production.
"""

import argparse
import asyncio
import cProfile
import itertools
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.planner_live import BASES, HOST_MEMORY_BYTES, PROFILES
from benchmarks.planner_timing import peak_memory_gb, quantiles
from benchmarks.setups import machine, save
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.pace import pause_s
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus, ServedWork
from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import InstanceId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, Slo
from qlm.planner.policy.replanning import Replanner
from qlm.planner.problem import Kind, ModelCost
from qlm.planner.warm_up import warm_up_fast
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

NODES: Final = 64
"""Requests leased together by an instance, at most."""


class MovedClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * 10**9

    def now_ns(self) -> int:
        return self.now


@dataclass(slots=True)
class Node:
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
    nodes: Sequence[Node]
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
            for node in self.nodes:
                await self._report(node, passed_s)
        ended = 0
        for node in self.nodes:
            node.debt += node.rate_rps * seconds
            ended += await self._serve(node)
        self.arrived += seconds * sum(node.rate_rps for node in self.nodes)
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

    async def _report(self, node: Node, passed_s: float) -> None:
        status = node.status
        running = status.running
        ended = round(node.rate_rps * passed_s)
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
        node.status = replace(status, work=work, running=running)
        await self.store.heartbeat(node.status, 10.0)

    async def _serve(self, node: Node) -> int:
        """Serve requests of the first group of the loaded model that has any."""
        if node.debt < 1.0:
            return 0
        queue = await self.store.virtual_queue(node.status.id)
        for group in queue.groups:
            waiting = self.waiting.get(group.cls, deque())
            if group.cls.model != node.status.active_model or not group.remaining or not waiting:
                continue
            served = min(NODES, int(node.debt), group.remaining, len(waiting))
            for _ in range(served):
                metadata = waiting.popleft()
                answer = await self.store.lease(metadata, node.status.holder, group.id)
                if isinstance(answer, Granted):
                    entry = LogEntry(
                        id=metadata.id,
                        epoch=answer.lease.epoch,
                        offset=0,
                        token_ids=TOKENS,
                        outcome=Outcome.STOP,
                    )
                    await self.store.append([entry])
            node.debt -= served
            return served
        node.debt = 0.0
        return 0


@dataclass(frozen=True, slots=True)
class LoopShare:
    """Processor time of turns over the time that passed.

    Attributes:
        turns_s: Processor time of each turn.
        loop_s: Processor time of all, with that of a planner that goes on between turns.
        passed_s: Time that passed.
        groups: Groups of the last problem.
        kinds: Kinds of the last problem.
    """

    turns_s: Sequence[float]
    loop_s: float
    passed_s: float
    groups: int
    kinds: int

    @property
    def share(self) -> float:
        """Share of a core."""
        return self.loop_s / self.passed_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=loop", description=__doc__)
    parser.add_argument("--waiting", type=int, default=400_000)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--group", type=int, default=250, help="largest group: 250 makes 1 600 groups")
    parser.add_argument("--seconds", type=float, default=20.0, help="time that is to pass")
    parser.add_argument("--profile", type=Path, help="write where the main thread's time goes, for pstats")
    parser.add_argument("--out", type=Path, default=Path("build/bench-loop.json"))
    options = parser.parse_args(arguments)
    print(f"machine: {machine()}\n", flush=True)
    warm_up_fast()
    profiler = cProfile.Profile(time.process_time) if options.profile else None
    share = asyncio.run(
        measure(options.waiting, options.instances, options.group, options.seconds, profiler=profiler)
    )
    median_s, most_s = quantiles(share.turns_s, (0.5, 1.0))
    print(f"{options.waiting} waiting in {share.groups} groups, ", end="")
    print(f"{options.instances} instances of {share.kinds} kinds")
    print(f"{len(share.turns_s)} turns in {share.passed_s:.1f} s: median {1000 * median_s:.1f} ms, ", end="")
    print(f"longest {1000 * most_s:.1f} ms of the processor; {share.share:.1%} of a core")
    if profiler is not None:
        profiler.dump_stats(options.profile)
    result: dict[str, Any] = {
        "machine": machine(),
        "turns_s": list(share.turns_s),
        "passed_s": share.passed_s,
        "share": share.share,
        "peak_memory_gb": peak_memory_gb(),
    }
    save(options.out, result)
    return 0


async def measure(
    waiting: int, instances: int, group: int, seconds: float, *, profiler: cProfile.Profile | None = None
) -> LoopShare:
    """Run the loop for a given time, after a first turn that groups what waits."""
    clock, settings = MovedClock(), ControllerSettings(group_requests_max=group, lead_ttl_s=1e6)
    names = [ModelId(f"m{at:02d}") for at in range(12)]
    profiles = {
        (name, p.accelerator): p
        for at, name in enumerate(names)
        for p in PROFILES
        if p.model == BASES[at % len(BASES)] and p.gpus == 1
    }
    store, rng = MemoryStore(clock), np.random.default_rng(1)
    nodes = list(_nodes(instances, names, profiles))
    weights = rng.dirichlet([4.0] * len(names))
    classes = [
        (request_class(name, slo, 0), slo, float(weight) * share, age_s)
        for name, weight in zip(names, weights, strict=True)
        for slo, share, age_s in OBJECTIVES
    ]
    traffic = Traffic(store, clock, nodes, classes, rng)
    for node in nodes:
        await store.heartbeat(node.status, 10.0)
    await traffic.fill(waiting)
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as folder:
        file = await SqliteFile.open(Path(folder) / "queue.db")
        queues = await SqliteQueues.open(file)
        loop = ControllerLoop(
            name=new_controller_id(),
            store=store,
            broker=queues.broker(),
            clock=clock,
            fleet=_fleet(names, profiles),
            settings=settings,
            planner=Replanner(seed=1),
            new_group_id=group_ids(),
        )
        try:
            return await _measure(loop, traffic, settings, seconds, profiler)
        finally:
            await queues.close()
            await file.close()


async def _measure(
    loop: ControllerLoop,
    traffic: Traffic,
    settings: ControllerSettings,
    seconds: float,
    profiler: cProfile.Profile | None,
) -> LoopShare:
    decision = await loop.run_once()
    await traffic.pass_time(1.0)
    begun_ns, begun_s, traffic_s, turns_s = traffic.clock.now, time.process_time(), 0.0, list[float]()
    while (traffic.clock.now - begun_ns) / 1e9 < seconds:
        if profiler is not None:
            profiler.enable()
        began_s = time.process_time()
        decision = await loop.run_once()
        turns_s.append(time.process_time() - began_s)
        if profiler is not None:
            profiler.disable()
        thread_s = time.thread_time()
        await traffic.pass_time(turns_s[-1] + pause_s(turns_s[-1], settings.min_interval_s))
        traffic_s += time.thread_time() - thread_s
    loop_s = time.process_time() - begun_s - traffic_s
    passed_s = (traffic.clock.now - begun_ns) / 1e9
    return LoopShare(turns_s, loop_s, passed_s, len(decision.problem.groups), len(decision.problem.kinds))


def _nodes(
    count: int, names: Sequence[ModelId], profiles: dict[tuple[ModelId, str], Profile]
) -> Iterator[Node]:
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
        yield Node(status, rate_rps=1.0 + at % 2)


def _fleet(names: Sequence[ModelId], profiles: dict[tuple[ModelId, str], Profile]) -> Fleet:
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


if __name__ == "__main__":
    raise SystemExit(main())
