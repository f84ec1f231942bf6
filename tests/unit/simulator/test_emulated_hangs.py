"""Emulated engines hang in each way while they answer health probes, and go on as if nothing had happened."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from qlm.agents.engines.proof import prove_token
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.domain.errors import EngineGarbledError, EngineUnavailableError
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from support.emulated_engine import engine_command
from support.flaky import until
from support.ports import free_port
from support.process import ServerProcess

TOKENS = 150


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("engine")
    port = free_port()
    engine = ServerProcess("engine", engine_command(port, "m", seqs_max=8), env=os.environ, folder=folder)
    engine.start()
    address = f"http://127.0.0.1:{port}"
    try:
        engine.wait_ready(lambda: _answers(address), timeout_s=60)
        yield address
    finally:
        engine.kill()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").is_success
    except httpx.HTTPError:
        return False


class Streams:
    """Generations under way and the tokens that they have."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = VllmEngine(url, "m", seqs_max=8)
        self.tokens: dict[str, list[int]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, name: str) -> None:
        self.tokens[name] = []
        self.tasks[name] = asyncio.create_task(self._run(name))

    async def _run(self, name: str) -> None:
        sampling = Sampling(max_tokens=TOKENS, ignore_eos=True)
        call = EngineCall(call_id=f"{name}-{time.monotonic_ns()}", prompt_ids=(65, 66), sampling=sampling)
        async for chunk in self.engine.generate(call):
            self.tokens[name] += chunk.token_ids

    async def hang(self, mode: str) -> None:
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{self.url}/emulation/hang", json={"mode": mode})
            assert answer.status_code == 200, answer.text
        assert await self.engine.healthy()

    async def grown(self, name: str, by: int = 3) -> None:
        wanted = len(self.tokens[name]) + by
        await until(lambda: len(self.tokens[name]) >= wanted)


@pytest.fixture
async def streams(url: str) -> AsyncIterator[Streams]:
    made = Streams(url)
    try:
        made.begin("first")
        await made.grown("first")
        made.begin("second")
        await made.grown("second")
        yield made
    finally:
        await made.hang("none")
        await asyncio.gather(*made.tasks.values(), return_exceptions=True)
        await made.engine.close()


async def test_later_requests_are_not_admitted(streams: Streams) -> None:
    await streams.hang("no_admission")
    streams.begin("late")
    await streams.grown("first", 10)
    assert not streams.tokens["late"]
    await streams.hang("none")
    await streams.tasks["late"]
    assert len(streams.tokens["late"]) == TOKENS


@pytest.mark.parametrize("mode", ["no_admission", "no_tokens", "half_closed", "garbage"])
async def test_an_engine_that_hangs_gives_no_token_to_a_probe(streams: Streams, mode: str) -> None:
    await prove_token(streams.engine, 30.0)
    await streams.hang(mode)
    with pytest.raises((EngineUnavailableError, EngineGarbledError)):
        await prove_token(streams.engine, 0.3)
    await streams.hang("none")
    await prove_token(streams.engine, 30.0)


@pytest.mark.parametrize("mode", ["no_tokens", "half_closed"])
async def test_nothing_comes_and_then_everything(streams: Streams, mode: str) -> None:
    await streams.hang(mode)
    await asyncio.gather(*(streams.engine.healthy() for _ in range(20)))
    before = {name: len(tokens) for name, tokens in streams.tokens.items()}
    await asyncio.gather(*(streams.engine.healthy() for _ in range(20)))
    assert {name: len(tokens) for name, tokens in streams.tokens.items()} == before
    assert TOKENS not in before.values()
    await streams.hang("none")
    await asyncio.gather(*streams.tasks.values())
    assert streams.tokens["first"] == streams.tokens["second"]
    assert len(streams.tokens["first"]) == TOKENS


async def test_the_oldest_request_is_stuck_alone(streams: Streams) -> None:
    await streams.hang("one_stuck")
    await streams.tasks["second"]
    assert len(streams.tokens["first"]) < TOKENS
    await streams.hang("none")
    await streams.tasks["first"]
    assert streams.tokens["first"] == streams.tokens["second"]


async def test_garbage_is_distinct_from_a_broken_connection(streams: Streams) -> None:
    await streams.hang("garbage")
    with pytest.raises(EngineGarbledError):
        await streams.tasks["first"]


async def test_an_unknown_mode_is_refused(url: str) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/emulation/hang", json={"mode": "worse"})
    assert answer.status_code == 400
    assert "half_closed" in answer.json()["error"]["message"]
