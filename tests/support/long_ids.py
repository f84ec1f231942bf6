"""A cluster whose ids have 40 characters, and answers of its gateway, for tests of tables."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
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
from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import Request
from qlm.gateway.files.disk.claim import DiskClaim
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.records import BatchState
from qlm.gateway.files.storage import Storage
from qlm.rct_estimator.correction import Correction
from qlm.store.embedded.memory import MemoryStore
from support.dead_letters import UNREADABLE, move_to_dead_letters
from support.estimating import class_record
from support.gateway import Cluster, running_cluster
from support.requests import a_request
from support.stored_batches import add_batch, disk_claim

NOW_S: Final = 1_790_000_000.0
NOW_NS: Final = int(NOW_S * 1e9)
S: Final = 1_000_000_000
CHAT, LONG_NAME = ModelId("llama-3-8b-instruct"), ModelId("mistral-7b-instruct-v0.3-finetuned-support")
GPU: Final = Holder(InstanceId("a100-80gb-rack7-node12-gpu3-production-a"), SessionId("s"))
LISTS: Final = ("queues", "groups", "instances", "requests", "dead", "history", "batches", "keys")


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
        for key in keys():
            await cluster.store.add_api_key(key)
        yield cluster


async def answers_of(cluster: Cluster, folder: Path) -> Mapping[str, Any]:
    """Return what a gateway answers to operators, by path below `/admin/v1`, one request and batch too."""
    names = itertools.count(1)
    storage = storage_in(folder, StillClock(), random_hex=lambda bytes: f"{next(names):0{2 * bytes}x}")
    url = await cluster.gateway(clock=StillClock(), storage=storage)
    client = AdminClient(cluster.admin_urls[url])
    wrong = add_batches(storage)
    paths = (*LISTS, f"requests/{long_id('done', 0)}", f"batches/{wrong}")
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


def add_batches(storage: Storage) -> str:
    """Add a batch that runs, one that is paused, and one whose input is wrong; return the id of the last."""
    runs = BatchState(
        status="in_progress", total=50_000, completed=12_345, failed=67, started_s=int(NOW_S) - 600
    )
    wrong = BatchState(
        status="failed",
        errors=(
            {"code": "invalid_line", "message": "custom_id is 7; expected a text", "param": None, "line": 3},
        ),
    )
    claimed_batch(storage, LONG_NAME, runs)
    paused = claimed_batch(storage, "team", replace(runs, completed=0))
    storage.batches.pause("team", paused.folder.name)
    ended = claimed_batch(storage, "team", wrong)
    assert ended.end(wrong)
    id = ended.folder.name
    storage.batches.close(storage.batches.open_places()[id])
    return id


def claimed_batch(storage: Storage, tenant: str, state: BatchState) -> DiskClaim:
    """Add a batch that is claimed for as long as the test runs, so that no gateway runs it."""
    _, place = add_batch(storage, b"{}", endpoint="/v1/chat/completions", tenant=tenant, clock=StillClock())
    claim = disk_claim(storage, place)
    assert claim is not None
    os.utime(claim.path("claim"), (2**32, 2**32))
    claim.note(state)
    return claim


def keys() -> list[ApiKey]:
    """Return a key for clients that ends, and one for everything that does not."""
    return [
        ApiKey(
            id=long_id("key", 0),
            digest="0" * 64,
            tenant=LONG_NAME,
            scopes=(Scope.INFER,),
            created_ns=NOW_NS - 86_400 * S,
            expires_ns=NOW_NS + 90 * 86_400 * S,
        ),
        ApiKey(
            id=long_id("key", 1),
            digest="1" * 64,
            tenant="operators",
            scopes=(Scope.INFER, Scope.ADMIN),
            created_ns=NOW_NS - 60 * S,
        ),
    ]


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
