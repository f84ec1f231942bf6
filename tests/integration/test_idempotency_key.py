"""One Idempotency-Key with two bodies: whatever comes first, no client hears the answer to another body."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.broker.codec import decode_request
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.domain.request import Request
from qlm.gateway.core.limits import GatewayLimits
from qlm.store.core.state import State
from qlm.store.embedded.memory import MemoryStore
from support.gateway import Cluster, SystemClock, running_cluster, text_then_end, until

KEY = {"idempotency-key": "order-66"}
PROMPTS = ("first", "second")
LIMITS = GatewayLimits(poll_s=0.04, poll_max_s=0.08, unknown_after_s=20)


class EmptiableStore(MemoryStore):
    """Can be emptied."""

    def empty(self) -> None:
        self._state = State(self._state.incarnation + 1)


class Gate:
    """Brokers that publish, together, once all of them were asked to."""

    def __init__(self, parties: int) -> None:
        self._barrier = asyncio.Barrier(parties)

    def before(self, broker: Broker) -> Any:
        """Return a client of `broker` that waits for the others."""
        return _Gated(broker, self._barrier)


class _Gated:
    def __init__(self, broker: Broker, barrier: asyncio.Barrier) -> None:
        self._broker = broker
        self._barrier = barrier

    async def publish(self, queue: QueueName, body: bytes) -> None:
        await self._barrier.wait()
        await self._broker.publish(queue, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a cluster whose agent repeats the prompt."""
    async with running_cluster(tmp_path, EmptiableStore(SystemClock())) as running:
        running.agent.answer = lambda request: text_then_end(_prompt(request))
        yield running


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


def _prompt(request: Request) -> str:
    return bytes(request.prompt_ids).decode()


def _ask(http: httpx.AsyncClient, url: str, prompt: str, **headers: str) -> "asyncio.Task[httpx.Response]":
    body = {"model": "emulated", "prompt": prompt}
    return asyncio.create_task(http.post(f"{url}/v1/completions", json=body, headers=KEY | headers))


@pytest.mark.parametrize("agent_first", [False, True])
async def test_of_two_bodies_at_two_gateways_at_once_one_is_answered_and_one_refused(
    cluster: Cluster, http: httpx.AsyncClient, agent_first: bool
) -> None:
    """The agent pulls both messages, in either order, before or after the gateways have indexed one."""
    gate = Gate(2)
    urls = [await cluster.gateway(broker=gate.before(cluster.broker)) for _ in PROMPTS]
    if not agent_first:
        cluster.agent.working.clear()
    tries = [_ask(http, url, prompt) for url, prompt in zip(urls, PROMPTS, strict=True)]
    if not agent_first:
        await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
        cluster.agent.working.set()
    answers = [await each for each in tries]
    assert sorted(answer.status_code for answer in answers) == [200, 422]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"] == prompt
        else:
            assert answer.json()["error"]["code"] == "idempotency_key_reused"
    assert len(cluster.agent.leased) == 1
    (queue,) = await cluster.broker.queues()
    await until(lambda: _is_empty(cluster.broker, queue))


async def test_of_two_bodies_that_do_not_wait_one_is_refused(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    gate = Gate(2)
    url = await cluster.gateway(broker=gate.before(cluster.broker))
    tries = [_ask(http, url, prompt, prefer="respond-async") for prompt in PROMPTS]
    assert sorted([(await each).status_code for each in tries]) == [202, 422]


async def test_the_refused_body_does_not_take_the_place_of_the_other_when_queues_are_read(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    """Whichever of the two messages is nearer to the front of the queue."""
    cluster.agent.working.clear()
    gate = Gate(2)
    urls = [await cluster.gateway(broker=gate.before(cluster.broker)) for _ in PROMPTS]
    tries = [_ask(http, url, prompt) for url, prompt in zip(urls, PROMPTS, strict=True)]
    await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
    (queue,) = await cluster.broker.queues()
    assert await cluster.broker.depth(queue) == 2
    assert await Reindexer(cluster.broker, cluster.store, SystemClock()).index_all() == 0
    (left,) = await cluster.broker.peek(queue, lambda body: body, 10)
    cluster.agent.working.set()
    answers = [await each for each in tries]
    served = next(answer for answer in answers if answer.status_code == 200)
    assert served.json()["choices"][0]["text"] == _prompt(decode_request(left))


async def test_who_waits_while_an_emptied_store_learns_of_the_other_body_first_gets_output_lost(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    gate = Gate(2)
    urls = [await cluster.gateway(broker=gate.before(cluster.broker), limits=LIMITS) for _ in PROMPTS]
    tries = [_ask(http, url, prompt) for url, prompt in zip(urls, PROMPTS, strict=True)]
    await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
    waiting = next(n for n, each in enumerate(tries) if not each.done())
    (queue,) = await cluster.broker.queues()
    requests = [decode_request(body) for body in await cluster.broker.peek(queue, lambda body: body, 10)]
    (other,) = (request for request in requests if _prompt(request) != PROMPTS[waiting])
    assert isinstance(cluster.store, EmptiableStore)
    cluster.store.empty()
    await cluster.store.enqueue(other.metadata())
    cluster.agent.working.set()
    lost = await tries[waiting]
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "output_lost")


async def _is_empty(broker: Broker, queue: QueueName) -> bool:
    return await broker.depth(queue) == 0


async def test_a_body_with_its_numbers_written_otherwise_is_the_same(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    url = await cluster.gateway()
    bodies = ({"max_tokens": 5, "temperature": 1}, {"max_tokens": 5.0, "temperature": 1.0})
    asked = [{"model": "emulated", "prompt": "Once", **each} for each in bodies]
    first, again = [await http.post(f"{url}/v1/completions", json=each, headers=KEY) for each in asked]
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert len(cluster.agent.leased) == 1
