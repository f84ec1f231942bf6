"""`qlm serve` with gateway workers: one killed, one that hangs, and kill -9 of their owner."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from support.gateway import until
from support.gateway_workers import open_files, workers_of
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated, serving

TOKENS: Final = 320
"""An answer takes seconds: streams are open when a process is killed, even if clients read slowly."""
STREAMS: Final = 12
LIMIT_S: Final = 120.0


@pytest.fixture(scope="module")
def running() -> Iterator[QlmProcess]:
    config = emulated("mistral-7b", time_scale=1.0)
    with serving(config | {"http": {"port": free_port(), "workers": 2}}) as process:
        yield process


class Reader:
    """Client of one stream, which resumes it when it breaks."""

    def __init__(self, url: str, n: int) -> None:
        self._url = url
        self._n = n
        self.id = ""
        self.offset = 0
        self.text = ""
        self.finish = ""
        self.breaks = 0

    async def read(self) -> None:
        body = {"model": "mistral-7b", "prompt": f"story {self._n}", "max_tokens": TOKENS}
        body |= {"ignore_eos": True, "stream": True}
        deadline_s = time.monotonic() + LIMIT_S
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT_S) as client:
            asked: dict[str, Any] = {"method": "POST", "url": "/v1/completions", "json": body}
            headers = {"x-qlm-stream": "resumable"}
            while not self.finish:
                assert time.monotonic() < deadline_s
                try:
                    async with client.stream(**asked, headers=headers) as answer:
                        assert answer.status_code == 200
                        await self._take(answer.aiter_lines())
                except httpx.TransportError:
                    self.breaks += bool(self.id)
                    await asyncio.sleep(0.05)
                asked = {"method": "GET", "url": f"/v1/requests/{self.id}/events"} if self.id else asked
                headers = {"Last-Event-ID": str(self.offset)} if self.id else headers

    async def _take(self, lines: AsyncIterator[str]) -> None:
        offset = self.offset
        async for line in lines:
            if line.startswith("id: "):
                offset = int(line.removeprefix("id: "))
            elif line.startswith("data: ") and line != "data: [DONE]":
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                self.id = chunk["id"].removeprefix("cmpl-")
                assert offset >= self.offset, "nothing is shown twice"
                self.offset = offset
                self.text += chunk["choices"][0]["text"]
                self.finish = chunk["choices"][0].get("finish_reason") or ""

    async def stored(self) -> str:
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT_S) as client:
            record = (await client.get(f"/v1/requests/{self.id}")).raise_for_status().json()
        assert record["response"]["usage"]["completion_tokens"] == TOKENS
        return str(record["response"]["choices"][0]["text"])


async def check(readers: list[Reader]) -> None:
    """Each has all of its answer, as it is stored, and no two are the same."""
    for reader in readers:
        assert reader.finish == "length"
        assert reader.text == await reader.stored()
    assert len({reader.text for reader in readers}) == len(readers)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "ended (signal 9); it starts again"),
        (signal.SIGSTOP, "ended (it hangs: no sign of life for 10 s); it starts again"),
    ],
    ids=["killed", "stopped"],
)
async def test_a_worker_that_ends_or_hangs_is_replaced_and_takes_nothing_else_with_it(
    running: QlmProcess, number: signal.Signals, said: str
) -> None:
    await until(lambda: len(workers_of(running.pid)) == 2, LIMIT_S)
    readers = [Reader(running.url, number * STREAMS + n) for n in range(STREAMS)]
    reading = [asyncio.create_task(reader.read()) for reader in readers]
    await until(lambda: all(reader.offset > 10 for reader in readers), LIMIT_S)
    workers = workers_of(running.pid)
    hit = max(workers, key=open_files)
    os.kill(hit, number)
    meanwhile = Reader(running.url, number * STREAMS + STREAMS)
    await meanwhile.read()
    await asyncio.gather(*reading)
    await check([*readers, meanwhile])
    assert any(reader.breaks for reader in readers), "it had most of the streams"
    await until(lambda: len(workers_of(running.pid) - {hit}) == 2, LIMIT_S)
    assert workers - {hit} <= workers_of(running.pid), "the other one goes on"
    assert said in running.log_file.read_text()


def ids(running: QlmProcess) -> set[str]:
    listed = httpx.get(f"{running.admin_url}/admin/v1/requests?limit=1000", timeout=LIMIT_S)
    return {each["id"] for each in listed.raise_for_status().json()["requests"]}


async def test_the_retry_of_an_sdk_takes_up_its_request_at_whichever_worker(running: QlmProcess) -> None:
    await until(lambda: len(workers_of(running.pid)) == 2, LIMIT_S)
    running.wait_ready(instances=1)
    clients, before = 8, ids(running)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=20) as client:
        asked: dict[str, Any] = {
            "model": "mistral-7b",
            "max_tokens": TOKENS,
            "extra_body": {"ignore_eos": True},
        }
        answers = await asyncio.gather(
            *(client.completions.create(**asked, prompt=f"{n}", timeout=1.0) for n in range(clients))
        )
    assert [each.usage.completion_tokens for each in answers] == [TOKENS] * clients
    assert len(ids(running) - before) == clients, "no retry began anew"


def serving_workers(process: QlmProcess) -> list[int]:
    """Return the workers that say they serve: one that still starts does not end with its owner yet."""
    log = process.log_file.read_text()
    return [pid for pid in workers_of(process.pid) if f"serves as process {pid}\n" in log]


@pytest.mark.parametrize("hangs", [False, True])
async def test_workers_end_with_their_owner_and_answers_go_on_with_the_next(
    running: QlmProcess, hangs: bool
) -> None:
    """One that hangs would keep the port, and the connections that the system gives to it."""
    await until(lambda: len(serving_workers(running)) == 2, LIMIT_S)
    readers = [Reader(running.url, n + 100 * hangs) for n in range(100, 104)]
    reading = [asyncio.create_task(reader.read()) for reader in readers]
    await until(lambda: all(reader.offset > 10 for reader in readers), LIMIT_S)
    workers = workers_of(running.pid)
    if hangs:
        os.kill(min(workers, key=open_files), signal.SIGSTOP)
    os.kill(running.pid, signal.SIGKILL)
    await until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers), LIMIT_S)
    running.kill()
    running.start()
    await asyncio.gather(*reading)
    await check(readers)
    assert any(reader.breaks for reader in readers)


def test_metrics_of_workers_are_those_of_the_process_and_it_stops_in_order(running: QlmProcess) -> None:
    running.wait_ready(instances=1)
    answer = httpx.post(
        f"{running.url}/v1/completions",
        json={"model": "mistral-7b", "prompt": "a", "max_tokens": 2},
        timeout=LIMIT_S,
    )
    assert answer.status_code == 200

    def counted() -> bool:
        text = httpx.get(f"{running.admin_url}/metrics", timeout=120).text
        lines = [line for line in text.splitlines() if line.startswith("qlm_gateway_accepted_total")]
        return sum(float(line.split()[-1]) for line in lines) == 1

    deadline_s = time.monotonic() + LIMIT_S
    while not counted():
        assert time.monotonic() < deadline_s
    workers = workers_of(running.pid)
    os.kill(running.pid, signal.SIGTERM)
    while running.alive:
        assert time.monotonic() < deadline_s
    assert running.exit_code == 0
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers)
