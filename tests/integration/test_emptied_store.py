"""A store that is emptied while clients wait: each hears its answer or one error, and nothing runs twice."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from qlm.controller.shell.reindex import Reindexer
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.gateway.core.limits import GatewayLimits
from qlm.store.core.state import State
from qlm.store.embedded.memory import MemoryStore
from support.gateway import Cluster, SystemClock, mark_indexed, running_cluster, until

BODY: dict[str, Any] = {"model": "emulated", "prompt": "Hi"}
ANSWER = "Hello, world!"
LIMITS = GatewayLimits(poll_s=0.04, poll_max_s=0.08, unknown_after_s=0.2)
LOOKS = 25
"""So many look-ups of an unknown request take longer than `unknown_after_s`."""


class EmptiableStore(MemoryStore):
    """Can be emptied, and announces nothing; `unknown` counts look-ups that found nothing."""

    unreadable = False
    unknown = 0

    def empty(self) -> None:
        self._state = State(self._state.incarnation + 1)

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        if self.unreadable:
            raise StoreUnavailableError("connection reset")
        found = await super().read_output(id, offset)
        self.unknown += found is None
        return found

    async def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        await asyncio.Event().wait()
        yield ()

    async def looked_for(self) -> None:
        """Wait until a request was looked for in vain for longer than a gateway has patience."""
        enough = self.unknown + LOOKS
        await until(lambda: self.unknown >= enough)

    async def states(self) -> list[RequestState]:
        return [record.state for record in await self.records(RequestFilter())]


@pytest.fixture
def store() -> EmptiableStore:
    return EmptiableStore(SystemClock())


@pytest.fixture
async def cluster(tmp_path: Path, store: EmptiableStore) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, store) as running:
        yield running


async def asked(url: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(f"{url}/v1/completions", json=body)


def error_of(answer: httpx.Response, *, stream: bool) -> dict[str, Any]:
    """The error an answer consists of, after checking that it comes once and nothing beside it."""
    if not stream:
        assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true")
        assert answer.headers["retry-after"] == "1"
        error: dict[str, Any] = answer.json()["error"]
        return error
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[1:] == ["[DONE]"]
    error = orjson.loads(data[0])["error"]
    return error


@pytest.mark.parametrize("stream", [True, False])
async def test_who_has_not_heard_of_an_end_that_is_forgotten_is_reported_so_once(
    cluster: Cluster, store: EmptiableStore, stream: bool
) -> None:
    url = await cluster.gateway(limits=LIMITS)
    store.unreadable = True
    waiting = asyncio.create_task(asked(url, BODY | {"stream": stream}))
    await until(lambda: cluster.agent.ended)
    store.empty()
    store.unreadable = False
    await store.looked_for()
    assert not waiting.done(), "the queue was not read yet: it may wait there"
    await mark_indexed(store)
    error = error_of(await waiting, stream=stream)
    assert (error["code"], error["type"]) == ("output_lost", "server_error")
    assert "neither the queue nor the shared state knows the request" in error["message"]
    assert await store.states() == [], "it waits nowhere"
    assert len(cluster.agent.leased) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_who_waits_for_a_request_in_the_queue_gets_its_answer_however_long_the_queue_is_not_read(
    cluster: Cluster, store: EmptiableStore, stream: bool
) -> None:
    url = await cluster.gateway(limits=LIMITS)
    cluster.agent.working.clear()
    waiting = asyncio.create_task(asked(url, BODY | {"stream": stream}))
    await until(store.states)
    store.empty()
    await store.looked_for()
    assert not waiting.done()
    assert await store.states() == [], "who has no message in hand indexes nothing"
    await Reindexer(cluster.broker, store, SystemClock()).index_all()
    await mark_indexed(store)
    assert await store.states() == [RequestState.QUEUED]
    cluster.agent.working.set()
    answer = await waiting
    assert answer.status_code == 200
    assert "error" not in answer.text
    assert len(cluster.agent.leased) == 1


async def test_of_several_answers_those_not_known_again_yet_are_not_said_to_have_expired(
    cluster: Cluster, store: EmptiableStore
) -> None:
    """The queue is read from its front: at some moment the first request is known, and a further one not."""
    url = await cluster.gateway()
    cluster.agent.working.clear()
    headers, body = {"idempotency-key": "k", "prefer": "respond-async"}, BODY | {"n": 2}
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        accepted = await http.post("/v1/completions", json=body, headers=headers)
        first = await store.record(accepted.json()["id"])
        assert first is not None
        store.empty()
        await store.enqueue(first.metadata)
        looks = [
            await http.get(f"/v1/requests/{first.metadata.id}"),
            await http.post("/v1/completions", json=body, headers=headers),
        ]
        assert [(each.status_code, each.json()["error"]["code"]) for each in looks] == [
            (503, "state_rebuilding")
        ] * 2
        await Reindexer(cluster.broker, store, SystemClock()).index_all()
        await mark_indexed(store)
        cluster.agent.working.set()
        answer = await http.post("/v1/completions", json=body, headers={"idempotency-key": "k"})
    assert [each["text"] for each in answer.json()["choices"]] == [ANSWER] * 2


async def test_what_is_published_before_the_gateway_knows_that_the_store_was_emptied_is_served(
    cluster: Cluster, store: EmptiableStore
) -> None:
    limits = GatewayLimits(poll_s=0.04, poll_max_s=0.08, unknown_after_s=20, view_interval_s=3600)
    url = await cluster.gateway(limits=limits)
    assert (await asked(url, BODY)).status_code == 200
    cluster.agent.working.clear()
    store.empty()
    waiting = asyncio.create_task(asked(url, BODY))
    await store.looked_for()
    assert await store.states() == []
    await Reindexer(cluster.broker, store, SystemClock()).index_all()
    assert await store.states() == [RequestState.QUEUED]
    cluster.agent.working.set()
    assert (await waiting).json()["choices"][0]["text"] == ANSWER
