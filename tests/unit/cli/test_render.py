"""Tables of what a real gateway answers: nothing, and one of everything."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qlm.cli.inspect import render
from qlm.cli.inspect.admin_client import AdminClient, AdminError
from qlm.cli.inspect.layout import Table
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.operations import Operation, OperationCount, OperationStats, SwapCharge
from qlm.domain.plan_change import CreateGroup, ResizeGroup, SetQueue
from qlm.store.embedded.memory import MemoryStore
from support.gateway import Cluster, running_cluster
from support.requests import a_request

GPU_1 = Holder(InstanceId("gpu-1"), SessionId("s"))
M, N = ModelId("emulated"), ModelId("small")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as made:
        yield made


async def get(cluster: Cluster, path: str) -> Any:
    url = cluster.admin_urls[await cluster.gateway()]
    return await asyncio.to_thread(AdminClient(url).get, path)


def text_of(tables: Table | Iterable[Table], width: int = 200) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    for each in [tables] if isinstance(tables, Table) else tables:
        console.print(each)
    return out.getvalue()


async def fill(store: MemoryStore) -> None:
    """Two classes, one of them grouped and queued, a failed engine, and a running request."""
    now_ns = time.time_ns()
    urgent = [
        a_request(f"u{n}", model=M, deadline_ms=16_000, arrival_ns=now_ns, priority=-2) for n in range(9)
    ]
    batch = a_request("b0", model=N, arrival_ns=now_ns)
    for request in (*urgent, batch):
        await store.enqueue(request.metadata())
    names = [GroupId(f"g{n}") for n in range(8)]
    await store.apply(
        [
            *(CreateGroup(id=name, cls=urgent[0].cls, count=1) for name in names),
            ResizeGroup(id=names[0], count=1, sealed=True),
            SetQueue(instance=GPU_1.instance, groups=tuple(names)),
        ]
    )
    await store.heartbeat(
        InstanceStatus(
            holder=GPU_1,
            accelerator="A100",
            models=(M, N),
            active_model=M,
            engines=((M, EngineState.AWAKE), (N, EngineState.FAILED)),
            capacity=EngineCapacity(kv_tokens=4096, block_tokens=16, seqs_max=4, context_tokens=64),
            running=1,
            parked=2,
            kv_used_tokens=77,
            error="small: out of memory",
            operations=OperationStats(
                counts=(
                    OperationCount(Operation.EVICT, M, 4, 0.2),
                    OperationCount(Operation.MODEL_SWAP_WARM, M, 3, 9.0),
                ),
                swap_lost=(SwapCharge("qlm.class.small.batch.all", 2, 6.0), SwapCharge("", 1, 3.0)),
                swaps_thrashed=1,
                ended=500,
                observed_s=120.0,
            ),
        ),
        3600,
    )
    await store.lease(batch.metadata(), GPU_1, None)


async def test_an_empty_cluster_gives_tables_without_rows(cluster: Cluster) -> None:
    classes, virtual = render.queues(await get(cluster, "/admin/v1/queues"))
    assert (classes.row_count, virtual.row_count) == (0, 0)
    assert render.groups(await get(cluster, "/admin/v1/groups")).row_count == 0
    assert render.requests(await get(cluster, "/admin/v1/requests")).row_count == 0
    text_of([classes, virtual])


async def test_queues_show_what_waits_and_the_first_groups_of_each_instance(cluster: Cluster) -> None:
    await fill(cluster.store)
    text = text_of(render.queues(await get(cluster, "/admin/v1/queues")))
    (row,) = [line for line in text.splitlines() if line.startswith("emulated ")]
    assert row.split()[:5] == ["emulated", "deadline-15s", "-2", "9", "8"]
    assert "g0 (emulated, deadline-15s: 1, in " in text
    assert "g5 (emulated" in text
    assert "g6 (emulated" not in text
    assert "2 more" in text


async def test_groups_show_where_they_are_queued(cluster: Cluster) -> None:
    await fill(cluster.store)
    text = text_of(render.groups(await get(cluster, "/admin/v1/groups")))
    first, second = (line.split() for line in text.splitlines() if line.strip().startswith(("g0", "g1")))
    assert first[:6] == ["g0", "emulated", "deadline-15s", "1", "0", "yes"]
    assert second[5] == "no"
    assert first[-1] == "gpu-1"


async def test_instances_show_what_they_did_and_whom_swaps_cost_time(cluster: Cluster) -> None:
    await fill(cluster.store)
    lines = text_of(render.operations(await get(cluster, "/admin/v1/instances"))).splitlines()
    rows = [line.split() for line in lines if line.strip().startswith("gpu-1")]
    assert rows[0] == ["gpu-1", "emulated", "evict", "4", "0.20", "50.0"]
    assert rows[1] == ["gpu-1", "emulated", "model_swap_warm", "3", "9.00", "3000.0"]
    assert rows[2] == ["gpu-1", "3", "1.50", "6.00", "1", "qlm.class.small.batch.all", "6.00"]
    assert rows[3][-3:] == ["(none", "waited)", "3.00"]


async def test_instances_show_their_engines_and_errors(cluster: Cluster) -> None:
    await fill(cluster.store)
    text = text_of(render.instances(await get(cluster, "/admin/v1/instances")))
    (row,) = [line.strip() for line in text.splitlines() if line.strip().startswith("gpu-1")]
    assert row.split()[:6] == ["gpu-1", "A100", "emulated", "1", "2", "77/4096"]
    assert "emulated awake, small failed" in row
    assert "small: out of memory" in row
    (idle,) = [line.strip() for line in text.splitlines() if line.strip().startswith("gpu-0")]
    assert "0/-" in idle.split(), "an instance without an awake engine has no capacity to show"


async def test_instances_that_wait_for_a_place_are_shown(cluster: Cluster) -> None:
    await fill(cluster.store)
    await cluster.store.report_unplaced(InstanceId("gpu-7"), "no node offers GPU: 1", 60.0)
    shown = await get(cluster, "/admin/v1/instances")
    assert shown["unplaced"] == [
        {"id": "gpu-7", "state": "waiting for a place", "why": "no node offers GPU: 1"}
    ]
    assert "gpu-7" not in [each["id"] for each in shown["instances"]]
    (row,) = [line for line in text_of(render.instances(shown)).splitlines() if "gpu-7" in line]
    assert "waiting for a place: no node offers GPU: 1" in row


async def test_a_request_is_shown_with_its_events(cluster: Cluster) -> None:
    await fill(cluster.store)
    text = text_of(render.event_history(await get(cluster, "/admin/v1/requests/b0")))
    assert "b0: small, running" in text
    events = [line.split()[1] for line in text.splitlines() if line.strip().startswith(("0.", "-0."))]
    assert events == ["accepted", "leased"]


async def test_markup_in_what_a_client_sent_is_shown_as_it_is(cluster: Cluster) -> None:
    for strange in ("[red]x", "[/red]"):
        await cluster.store.enqueue(a_request(strange, model=M).metadata())
    text = text_of(render.requests(await get(cluster, "/admin/v1/requests")))
    assert "[red]x" in text
    assert "[/red]" in text


async def test_a_long_id_survives_a_narrow_terminal(cluster: Cluster) -> None:
    await cluster.store.enqueue(a_request("r" * 40, model=M).metadata())
    text = text_of(render.requests(await get(cluster, "/admin/v1/requests")), width=60)
    assert "r" * 40 in text


async def test_tasks_are_shown_beside_requests_if_there_are_any(cluster: Cluster) -> None:
    await cluster.store.enqueue(a_request("alone", model=M).metadata())
    text = text_of(render.requests(await get(cluster, "/admin/v1/requests")), width=200)
    assert "calls left" not in text
    task = RequestExtensions(task_id="fix-tests", task_calls=2, task_deadline_ns=time.time_ns() + 10**14)
    call = a_request("call", model=M, deadline_ms=9_000).metadata()
    await cluster.store.enqueue(replace(call, extensions=task))
    text = text_of(render.requests(await get(cluster, "/admin/v1/requests")), width=200)
    assert "calls left" in text
    (line,) = [each for each in text.splitlines() if "fix-tests" in each]
    assert line.split()[0] == "call"
    assert line.split()[-4:-1] == ["fix-tests", "3", "in"]


async def test_an_unknown_request_is_refused_with_the_gateways_words(cluster: Cluster) -> None:
    with pytest.raises(AdminError, match="request nobody not found"):
        await get(cluster, "/admin/v1/requests/nobody")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.05, "0.1s"),
        (9.94, "9.9s"),
        (10, "10s"),
        (119, "119s"),
        (120, "2.0min"),
        (7200, "2.0h"),
        (1e6, "12d"),
    ],
)
def test_a_duration_is_written_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert render.span(seconds) == text


def test_a_moment_is_shown_from_now() -> None:
    assert render.ago(None) is None
    assert render.ago(time.time() - 100) == "100s ago"
    assert str(render.ago(time.time() + 100.5)).startswith("in 100s")
