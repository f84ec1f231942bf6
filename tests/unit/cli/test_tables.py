"""Tables of a gateway with ids of 40 characters, as terminals of three widths and pipes show them.

`QLM_RENEW_TABLES=1 pytest tests/unit/cli/test_tables.py` writes the files anew; look at the difference.
"""

import asyncio
import io
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from qlm.cli.inspect import render
from qlm.cli.inspect.admin_client import AdminClient
from qlm.cli.inspect.console import console
from qlm.cli.inspect.layout import UNBOUNDED, Table, lines
from qlm.cli.plans.tables import instance_tables
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.operations import Operation, OperationCount, OperationStats, SwapCharge
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem_json import problem_from_plain
from qlm.planner.verify.referee import verify
from qlm.store.embedded.memory import MemoryStore
from support.gateway import Cluster, running_cluster
from support.requests import a_request

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = Path(__file__).with_name("tables")
NOW_S: Final = 1_790_000_000.0
CHAT, LONG_NAME = ModelId("llama-3-8b-instruct"), ModelId("mistral-7b-instruct-v0.3-finetuned-support")
GPU: Final = Holder(InstanceId("a100-80gb-rack7-node12-gpu3-production-a"), SessionId("s"))
WIDTHS: Final = (80, 120, 200, UNBOUNDED)


class StillClock:
    def now_ns(self) -> int:
        return int(NOW_S * 1e9)


def long_id(word: str, number: int) -> str:
    return f"{word}-{number:0{39 - len(word)}d}"


async def fill(store: MemoryStore) -> None:
    now_ns = int(NOW_S * 1e9)
    chats = [
        a_request(
            long_id("req", n), model=CHAT, deadline_ms=16_000, arrival_ns=now_ns - (n + 1) * 1_000_000_000
        )
        for n in range(5)
    ]
    batch = [
        a_request(
            long_id("batch", n), model=LONG_NAME, arrival_ns=now_ns - 3_600_000_000_000, prompt_tokens=147_500
        )
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
    await store.heartbeat(
        InstanceStatus(
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
        ),
        3600,
    )
    await store.lease(chats[0].metadata(), GPU, None)


@pytest.fixture
async def answers(tmp_path: Path) -> AsyncIterator[Mapping[str, Any]]:
    async with running_cluster(tmp_path) as cluster:
        await fill(cluster.store)
        yield {name: await get(cluster, name) for name in ("queues", "groups", "instances", "requests")}


async def get(cluster: Cluster, name: str) -> Any:
    client = AdminClient(cluster.admin_urls[await cluster.gateway(clock=StillClock())])
    listed = await asyncio.to_thread(client.get, f"/admin/v1/{name}")
    if name == "instances":
        listed["instances"] = [each for each in listed["instances"] if each["id"] == GPU.instance]
    return listed


def plan_tables() -> Sequence[Table]:
    text = (ROOT / "examples/problems/six-groups.json").read_text("utf-8")
    for number, group in enumerate(json.loads(text)["groups"]):
        text = text.replace(f'"{group["id"]}"', f'"{long_id("g", number)}"')
    problem = problem_from_plain(json.loads(text))
    return list(instance_tables(problem, verify(problem, plan_edf(problem)), (), 10))


def tables(answers: Mapping[str, Any]) -> Sequence[Table]:
    return [
        *render.queues(answers["queues"]),
        render.groups(answers["groups"]),
        render.instances(answers["instances"]),
        *render.operations(answers["instances"]),
        render.requests(answers["requests"]),
        *plan_tables(),
    ]


@pytest.mark.parametrize("width", WIDTHS)
async def test_tables_are_as_stored(
    answers: Mapping[str, Any], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as still:
        still.setattr(time, "time", lambda: NOW_S)
        text = "\n".join(line for each in tables(answers) for line in lines(each, width)) + "\n"
    file = FOLDER / ("pipe.tsv" if width == UNBOUNDED else f"{width}-columns.txt")
    if os.environ.get("QLM_RENEW_TABLES"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_is_cut_or_left_out_without_a_sign(answers: Mapping[str, Any], width: int) -> None:
    for table in tables(answers):
        text = "\n".join(lines(table, width))
        for column in table.columns:
            left_out = f"(no room in {width} columns" in text and column.name in text.splitlines()[-1]
            for word in (word for cell in column.cells for word in cell.split()):
                assert word in text or left_out, (table.title, column.name, width)


@pytest.mark.parametrize("width", range(20, 130))
async def test_lines_fit_unless_a_single_word_does_not(width: int) -> None:
    row = ("req-0123456789", "a sentence of several words", 1475, None)
    table = render.table("t", ("request", "why", "prompt>", "on"), [row, row])
    shown = list(lines(table, width))
    assert max(map(len, shown[1:-2])) <= max(width, 30)
    assert any("1475" in line for line in shown)


def test_control_characters_stay_in_their_cell() -> None:
    table = render.table("t", ("a", "b"), [("x\ty\n\x1b[31m", "z")])
    assert list(lines(table, UNBOUNDED))[-1] == "x\\ty\\n\\x1b[31m\tz"


def test_columns_are_left_out_in_the_given_order_and_named() -> None:
    row = ["x" * 20] * 6
    table = render.table("t", ("a", "b", "c", "d", "e", "f"), [row], spare=("b", "c"))
    *_, note, _ = lines(table, 100)
    assert note == "(no room in 100 columns for: b, c; a pipe or --json has all)"


def test_a_pipe_gets_tabs_unless_columns_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == UNBOUNDED
    monkeypatch.setenv("COLUMNS", "97")
    assert console().width == 97


def test_a_console_shows_what_the_layout_gives() -> None:
    table = render.table("t", ("a", "b"), [("x" * 90, "y" * 90)])
    for width in (50, UNBOUNDED):
        out = io.StringIO()
        Console(file=out, width=width).print(table, crop=False)
        assert out.getvalue().splitlines() == list(lines(table, width))
