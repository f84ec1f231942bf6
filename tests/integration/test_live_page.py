"""The live page of a gateway: who may load it, its stream of events, its explanations."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from qlm.cli.main import main
from qlm.cli.plans import page
from qlm.domain.errors import StoreUnavailableError
from qlm.gateway.api.fields.live import LiveExplanation, LiveInstances, LiveQueues, PlanChart, Progress, Tick
from qlm.gateway.core.access import AccessRules
from qlm.gateway.http.page.files import page_files
from support.described import differences
from support.flaky import until
from support.live import Live, living, running, some_requests

SHAPES = {
    "tick": Tick,
    "plan": PlanChart | None,
    "progress": Progress,
    "queues": LiveQueues,
    "instances": LiveInstances,
}
TOKEN = "of-the-operators-of-this-test"


def client(live: Live) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=live.url, timeout=20)


@contextlib.asynccontextmanager
async def events(live: Live, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Open a viewer; its events as they come, each compared with its description."""
    async with client(live) as http, http.stream("GET", "/ui/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"

        async def taken() -> AsyncIterator[tuple[str, Any]]:
            kind = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data = json.loads(value)
                    assert list(differences(data, SHAPES[kind], kind)) == []
                    yield kind, data

        yield taken()


async def first_of_each(stream: AsyncIterator[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for kind, data in stream:
        found[kind] = data
        if found.keys() == SHAPES.keys() and found["plan"]:
            return found
    raise AssertionError(f"the stream ended after {list(found)}")


async def ticks(stream: AsyncIterator[tuple[str, Any]], number: int) -> list[Any]:
    """Wait for some more ticks."""
    found: list[Any] = []
    async for kind, data in stream:
        found += [data] if kind == "tick" else []
        if len(found) == number:
            break
    return found


async def test_a_viewer_receives_the_cluster_and_then_what_changes(tmp_path: Path) -> None:
    async with living(tmp_path) as live, contextlib.AsyncExitStack() as stack:
        await running(live, 10)
        stream = await stack.enter_async_context(events(live))
        first = await first_of_each(stream)
        (lane,) = first["plan"]["lanes"]
        (bar,) = lane["groups"]
        assert (lane["instance"], lane["loaded_model"]) == ("i", "m")
        assert (bar["model"], bar["requests"], bar["late"]) == ("m", 6, False)
        assert first["instances"]["instances"][0]["running"] == 4
        assert [each["queued"] for each in first["queues"]["classes"]] == [6]
        assert first["tick"]["trouble"] is None and first["tick"]["leader"]
        await live.plant.accept(*some_requests(12)[10:])
        async for kind, data in stream:
            if kind == "queues" and data["classes"][0]["queued"] == 8:
                break
        await a_cluster_that_cannot_be_read(live, stream)
        await a_gateway_that_stops(live, stream)


async def a_cluster_that_cannot_be_read(live: Live, stream: AsyncIterator[tuple[str, Any]]) -> None:
    live.faults.fail(StoreUnavailableError("redis is away"), "view", "leader", "published_plan")
    while (await ticks(stream, 1))[0]["trouble"] != "redis is away":
        pass
    live.faults.heal()
    while (await ticks(stream, 1))[0]["trouble"] is not None:
        pass


async def a_gateway_that_stops(live: Live, stream: AsyncIterator[tuple[str, Any]]) -> None:
    live.gateway.hub.stopping = True
    async for _ in stream:
        pass
    async with client(live) as http:
        refused = await http.get("/ui/events")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_stopping")


async def test_all_viewers_share_one_snapshot_and_without_a_viewer_none_is_made(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        feed = live.page.feed
        assert (feed.viewers, feed.rounds) == (0, 0)
        async with contextlib.AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(events(live)) for _ in range(5)]
            for stream in streams:
                await first_of_each(stream)
            assert feed.viewers == 5
            rounds = feed.rounds
            await ticks(streams[0], 4)
            # One per viewer were five times as many.
            assert feed.rounds - rounds <= 6
            slow = feed.viewer()
            assert await slow.take() == b"retry: 1000\n\n"
            await ticks(streams[1], 4)
            skipped = await slow.take()
            assert skipped.count(b"event: tick") == skipped.count(b"event: queues") == 1
            slow.leave()
        await until(lambda: feed.viewers == 0)
        rounds = feed.rounds
        for _ in range(3):
            await live.looks_again()
        assert feed.rounds == rounds


async def test_a_viewer_that_asks_for_the_head_only_is_no_viewer(tmp_path: Path) -> None:
    async with living(tmp_path) as live, client(live) as http:
        answer = await http.head("/ui/events")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")
        await until(lambda: live.page.feed.viewers == 0)


async def explanation(live: Live, name: str) -> dict[str, Any]:
    async with client(live) as http:
        answer = await http.get("/ui/explanation", params={"of": name})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert list(differences(body, LiveExplanation, "")) == []
    return body


async def test_groups_and_requests_are_explained_as_the_command_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with living(tmp_path) as live:
        await running(live, 10)
        body = await explanation(live, "cmpl-m9")
        assert body["request"]["id"] == "m9"
        assert [each["what"] for each in body["request"]["events"]] == ["accepted"]
        arguments = ["plan", "explain", "m9", "--url", live.url]
        printed = (await asyncio.to_thread(CliRunner().invoke, main, arguments)).stdout
        for part in body["parts"]:
            for line in [part["text"]] if "text" in part else ["\t".join(part["columns"])]:
                assert timeless(line) in timeless(printed)
        of_group = await explanation(live, body["request"]["waits"]["group"])
        assert of_group["request"] is None and "6 requests" in of_group["parts"][1]["text"]
        assert (await explanation(live, "m0"))["parts"][1]["text"].startswith("it runs on i, begun ")
        monkeypatch.setattr(page, "LONG_BYTES", 0)
        in_a_process = await explanation(live, "m9")
        assert [list(each) for each in in_a_process["parts"]] == [list(each) for each in body["parts"]]
        async with client(live) as http:
            for name in ("nothing", "", "<b>x</b>"):
                answer = await http.get("/ui/explanation", params={"of": name})
                message = f"no group of the plan and no known request is named {name!r}"
                assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)


def timeless(text: str) -> str:
    """Replace numbers: time goes on between two explanations."""
    return re.sub(r"[\d.]+(min|s)?", "#", text)


async def test_files_have_no_data_and_run_no_foreign_script(tmp_path: Path) -> None:
    async with living(tmp_path, AccessRules(token=TOKEN)) as live, client(live) as http:
        for path, file in page_files().items():
            answer = await http.get(path, headers={"origin": live.url})  # browsers send it for modules
            assert (answer.status_code, answer.content) == (200, file.content), path
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert (await http.get(path, headers={"origin": "http://evil.example"})).status_code == 403
            assert (await http.get(path, headers={"host": "evil.example"})).status_code == 421
            assert (await http.post(path)).status_code == 405
        assert (await http.get("/ui/")).headers["location"] == "../ui"
        operator = {"authorization": f"Bearer {TOKEN}"}
        for path in ("/ui/events", "/ui/explanation"):
            refused = await http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "admin_token_required")
            assert (await http.get(path, headers={"origin": live.url, **operator})).status_code == 403
        assert (await http.get("/ui/handlers.py", headers=operator)).status_code == 404
        async with events(live, **operator) as stream:
            assert len(await ticks(stream, 1)) == 1
