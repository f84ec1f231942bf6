"""Cost of the live page to a gateway, and its frames per second: `python -m benchmarks live-page`.

A gateway has a plan that changes every second. Measured is the processor time of its process, without viewers
and with ten that are processes of their own. Then a headless Chromium counts the frames of the page.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.plans.page import explain_for_page
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.group import Group, request_class
from qlm.domain.ids import GatewayId, GroupId, InstanceId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.ports.published import PublishedKind
from qlm.domain.slo import DeadlineSlo
from qlm.domain.view import ClassView, ClusterView
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.http.app import admin_app_of, create_app
from qlm.gateway.http.server import create_server
from qlm.gateway.sessions.gateway import GatewayParts
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.published_plan import PLAN, PublishedPlan
from qlm.rct_estimator.normal import Normal
from qlm.store.embedded.memory import MemoryStore
from support.chromium import chromium
from support.gateway import serving

MODELS: Final = tuple(ModelId(f"model-{n}") for n in range(6))
CLASSES: Final = tuple(
    request_class(model, DeadlineSlo(deadline_ms=limit), 0)
    for model in MODELS
    for limit in (20_000, 60_000, 300_000)
)
VIEWERS: Final = 10
GROUPS_PER_INSTANCE: Final = 25

READ: Final = """
import asyncio, sys
async def read():
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    writer.write(b"GET /ui/events HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\n\\r\\n")
    while await reader.read(1 << 20):
        pass
async def main():
    await asyncio.gather(*(read() for _ in range(int(sys.argv[2]))))
asyncio.run(main())
"""
"""Program of viewers that read and drop all events."""

FRAMES: Final = """new Promise((done) => {
    let frames = 0, longest = 0, last = performance.now();
    const began = last;
    const frame = (now) => {
        frames += 1; longest = Math.max(longest, now - last); last = now;
        if (now - began < 5000) requestAnimationFrame(frame);
        else done([frames / (now - began) * 1000, longest]);
    };
    requestAnimationFrame(frame);
})"""


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=live-page", description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args(arguments)
    for groups in given.groups:
        asyncio.run(_measure(groups, given.seconds))
    return 0


async def _measure(groups: int, seconds: float) -> None:
    async with gateway_of(groups) as port:
        await asyncio.sleep(3)
        without = await _core_share(seconds)
        viewers = await asyncio.create_subprocess_exec(sys.executable, "-c", READ, str(port), str(VIEWERS))
        await asyncio.sleep(3)
        watched = await _core_share(seconds)
        viewers.kill()
        await viewers.wait()
        rate, longest_ms = await asyncio.to_thread(_frames, port)
    print(
        f"{groups} groups: {VIEWERS} viewers cost {100 * (watched - without):.2f} % of a core "
        f"(process {100 * without:.2f} % without, {100 * watched:.2f} % with); "
        f"{rate:.0f} frames per second, the longest took {longest_ms:.0f} ms",
        flush=True,
    )


async def _core_share(seconds: float) -> float:
    began_s, used_s = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used_s) / (time.perf_counter() - began_s)


def _frames(port: int) -> tuple[float, float]:
    with chromium() as page:
        page.size(1600, 1000)
        page.open(f"http://127.0.0.1:{port}/ui")
        page.until("document.getElementById('summary').innerText.includes('groups on')", 60.0)
        rate, longest_ms = page.run(FRAMES)
    return rate, longest_ms


@contextlib.asynccontextmanager
async def gateway_of(groups: int) -> AsyncIterator[int]:
    """Run a gateway whose plan of so many groups changes every second; yield its port for operators."""
    clock, store = SystemClock(), MemoryStore(SystemClock())
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        file = await SqliteFile.open(Path(folder) / "queue.sqlite")
        stack.push_async_callback(file.close)
        queues = await SqliteQueues.open(file)
        stack.push_async_callback(queues.close)
        app = create_app(
            GatewayParts(
                models=(),
                broker=queues.broker(),
                store=store,
                clock=clock,
                limits=GatewayLimits(),
                gateway_id=GatewayId("gateway"),
                new_id=lambda: RequestId(uuid.uuid4().hex),
            )
        )
        gateway = app.state.gateway
        admin = admin_app_of(gateway, None, explain_for_page)
        url = await stack.enter_async_context(serving(create_server(admin, shutdown_s=1)))
        planning = asyncio.create_task(_plan(gateway, store, groups))
        try:
            yield int(url.rpartition(":")[2])
        finally:
            gateway.hub.stopping = True
            planning.cancel()


async def _plan(gateway: Any, store: MemoryStore, number: int) -> None:
    """Publish a plan each second, from which the first requests have gone since."""
    drawn = random.Random(number)
    problem, plan = _problem(drawn, number)
    while True:
        now_ns = time.time_ns()
        published = PublishedPlan(at_ms=now_ns // 1_000_000, problem=problem, plan=plan)
        await store.publish(PublishedKind.PLAN, PLAN.encode(published))
        gateway.load.view = _view(drawn, problem)
        await asyncio.sleep(1.0)


def _problem(drawn: random.Random, number: int) -> tuple[Problem, Plan]:
    cost = ModelCost(weights_bytes=14 << 30, swap_warm_s=2.0, swap_cold_s=40.0, unload_s=0.5)
    kinds = {
        kind: Kind(host_memory_bytes=200 << 30, models=dict.fromkeys(MODELS, cost))
        for kind in ("A10", "A100")
    }
    instances = tuple(
        Instance(
            id=InstanceId(f"gpu-{n:02d}"),
            kind="A10" if n % 2 else "A100",
            loaded_model=MODELS[n % 6],
            warm_models=(MODELS[(n + 1) % 6],),
            busy=Normal(2.0, 0.1),
        )
        for n in range(max(2, number // GROUPS_PER_INSTANCE))
    )
    groups = tuple(
        PlannedGroup(
            id=GroupId(f"g-{n:06x}"),
            model=CLASSES[n % len(CLASSES)].model,
            requests=drawn.randint(1, 64),
            deadline_s=None if n % 4 == 0 else drawn.uniform(5, 200),
            time=dict.fromkeys(
                kinds, GroupTime(service=Normal(drawn.uniform(1, 8), 0.3), tail=Normal(2, 0.1))
            ),
        )
        for n in range(number)
    )
    queues: dict[InstanceId, list[GroupId]] = {each.id: [] for each in instances}
    for n, group in enumerate(groups):
        queues[instances[n % len(instances)].id].append(group.id)
    problem = Problem(now_s=0.0, kinds=kinds, instances=instances, groups=groups)
    return problem, Plan(queues={id: tuple(each) for id, each in queues.items()}, method="drawn")


def _view(drawn: random.Random, problem: Problem) -> ClusterView:
    engine = EngineCapacity(kv_tokens=400_000, block_tokens=16, seqs_max=256, context_tokens=4096)
    instances = tuple(
        InstanceStatus(
            holder=Holder(each.id, SessionId("s")),
            accelerator=each.kind,
            models=MODELS,
            active_model=each.loaded_model,
            engines=((MODELS[0], EngineState.AWAKE),),
            capacity=engine,
            running=drawn.randint(0, 200),
            kv_used_tokens=drawn.randint(0, 400_000),
        )
        for each in problem.instances
    )
    classes = []
    for at, cls in enumerate(CLASSES):
        own = problem.groups[at :: len(CLASSES)]
        groups = tuple(
            Group(id=each.id, cls=cls, seq=n, count=each.requests, pulled=drawn.choice((0, 0, 0, 1)))
            for n, each in enumerate(own)
        )
        classes.append(ClassView(cls=cls, queued=sum(each.remaining for each in groups), groups=groups))
    return ClusterView(classes=tuple(classes), instances=instances, queues=())
