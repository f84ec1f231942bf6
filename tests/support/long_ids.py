"""A cluster whose ids have 40 characters, and answers of its gateway, for tests of tables."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from qlm.cli.inspect.admin_client import AdminClient
from qlm.controller.core.estimating.arrivals import Arrivals
from qlm.controller.core.history.classes import ClassRecord
from qlm.controller.core.history.codec import HISTORY
from qlm.controller.core.history.history import History
from qlm.controller.core.history.speeds import SpeedRecord
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.operations import Operation, OperationCount, OperationStats, SwapCharge
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import Request
from qlm.rct_estimator.correction import Correction
from qlm.store.embedded.memory import MemoryStore
from support.dead_letters import UNREADABLE, move_to_dead_letters
from support.estimating import class_record
from support.gateway import Cluster, running_cluster
from support.requests import a_request

NOW_S: Final = 1_790_000_000.0
NOW_NS: Final = int(NOW_S * 1e9)
S: Final = 1_000_000_000
CHAT, LONG_NAME = ModelId("llama-3-8b-instruct"), ModelId("mistral-7b-instruct-v0.3-finetuned-support")
GPU: Final = Holder(InstanceId("a100-80gb-rack7-node12-gpu3-production-a"), SessionId("s"))
LISTS: Final = ("queues", "groups", "instances", "requests", "dead", "history")


class StillClock:
    def now_ns(self) -> int:
        return NOW_NS


def long_id(word: str, number: int) -> str:
    return f"{word}-{number:0{39 - len(word)}d}"


@asynccontextmanager
async def cluster_of_long_ids(folder: Path) -> AsyncIterator[Cluster]:
    """Run a cluster in which requests wait, run and have ended, late ones too; its time stands still."""
    async with running_cluster(folder, MemoryStore(StillClock())) as cluster:
        await cluster.agent.rest()  # it would take the dead letters
        await fill(cluster.store)
        await add_dead_letters(cluster.broker)
        await cluster.store.publish(PublishedKind.HISTORY, HISTORY.encode(history()))
        yield cluster


async def answers_of(cluster: Cluster) -> Mapping[str, Any]:
    """Return what a gateway answers to operators, by path below `/admin/v1`, and one request."""
    client = AdminClient(cluster.admin_urls[await cluster.gateway(clock=StillClock())])
    paths = (*LISTS, f"requests/{long_id('done', 0)}")
    answers = {path: await asyncio.to_thread(client.get, f"/admin/v1/{path}") for path in paths}
    listed = answers["instances"]
    listed["instances"] = [each for each in listed["instances"] if each["id"] == GPU.instance]
    return answers


async def fill(store: MemoryStore) -> None:
    chats = [chat("req", n, age_s=n + 1) for n in range(5)]
    batch = [
        a_request(long_id("batch", n), model=LONG_NAME, arrival_ns=NOW_NS - 3600 * S, prompt_tokens=147_500)
        for n in range(3)
    ]
    for request in (*chats, *batch):
        await store.enqueue(request.metadata())
    names = [GroupId(long_id("g", n)) for n in range(2)]
    await store.apply(
        [
            CreateGroup(id=names[0], cls=chats[0].cls, count=4),
            CreateGroup(id=names[1], cls=batch[0].cls, count=2),
            SetQueue(instance=GPU.instance, groups=tuple(names)),
        ]
    )
    await store.heartbeat(status(), 3600)
    await store.lease(chats[0].metadata(), GPU, None)
    for request in [chat("done", n, age_s=age_s) for n, age_s in enumerate((9, 17, 400))]:
        await end(store, request)


def chat(word: str, number: int, *, age_s: int) -> Request:
    return a_request(long_id(word, number), model=CHAT, deadline_ms=16_000, arrival_ns=NOW_NS - age_s * S)


async def end(store: MemoryStore, request: Request) -> None:
    """Answer a request now."""
    granted = await store.lease(request.metadata(), GPU, None)
    assert isinstance(granted, Granted)
    epoch = granted.lease.epoch
    await store.append([LogEntry(id=request.id, epoch=epoch, offset=0, token_ids=tuple(range(8)))])
    await store.append([LogEntry(id=request.id, epoch=epoch, offset=8, outcome=Outcome.LENGTH)])


def status() -> InstanceStatus:
    return InstanceStatus(
        holder=GPU,
        accelerator="A100-80GB",
        models=(CHAT, LONG_NAME),
        active_model=CHAT,
        engines=((CHAT, EngineState.AWAKE), (LONG_NAME, EngineState.FAILED)),
        capacity=EngineCapacity(kv_tokens=397_312, block_tokens=16, seqs_max=256, context_tokens=8192),
        running=97,
        parked=2,
        kv_used_tokens=123_456,
        error=f"{LONG_NAME}: out of memory while loading 16 GB beside 70 GB of another process",
        operations=OperationStats(
            counts=(OperationCount(Operation.MODEL_SWAP_WARM, CHAT, 3, 9.0),),
            swap_lost=(SwapCharge(f"qlm.class.{LONG_NAME}.batch.all", 2, 6.0),),
            swaps_thrashed=1,
            ended=500,
            observed_s=120.0,
        ),
    )


async def add_dead_letters(broker: Broker) -> None:
    await move_to_dead_letters(
        broker,
        chat("dead", 0, age_s=90),
        at_s=NOW_S - 60,
        reason="delivered 5 times, and each time the agent that had it was gone before it was answered",
    )
    await move_to_dead_letters(broker, UNREADABLE, at_s=NOW_S - 7200, reason="not a request: 1:1: no JSON")


def history() -> History:
    """What a controller knows of both models, and of the speed of the instance."""
    classes = {
        chat("r", 0, age_s=0).cls: learned(420.0, 97, age_s=12),
        a_request("r", model=LONG_NAME).cls: learned(12_000.0, 1475, age_s=5400),
    }
    rate = Arrivals(NOW_NS, 0, asked=60.0, asked_s=120.0, past=60.0, past_s=120.0, present_ns=NOW_NS)
    return History(
        at_ns=NOW_NS - 30 * S,
        classes=classes,
        arrivals={next(iter(classes)): rate},
        speeds={
            (GPU.instance, LONG_NAME): SpeedRecord(
                at_ns=NOW_NS - 60 * S,
                accelerator="A100-80GB",
                correction=Correction(log_ratio=0.2, log_var=0.0004),
            )
        },
    )


def learned(tokens: float, answers: int, *, age_s: float) -> ClassRecord:
    return class_record(tokens, answers, NOW_NS - round(age_s * S))
