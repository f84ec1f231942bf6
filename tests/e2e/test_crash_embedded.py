"""kill -9 of `qlm serve` on the embedded queue: what was accepted is answered once, all the same."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from support.ports import free_port
from support.qlm_process import QlmProcess, emulated

REQUESTS = 200


async def test_200_accepted_requests_survive_kill_9_and_end_exactly_once() -> None:
    with tempfile.TemporaryDirectory(prefix="qlm-crash-") as temporary:
        folder = Path(temporary)
        config = emulated(
            "mistral-7b",
            instances=2,
            time_scale=4.0,
            http={"port": free_port()},
            data_dir=str(folder / "data"),
        )
        process = QlmProcess("serve", "serve", config=config, folder=folder)
        process.start()
        try:
            process.wait_ready(instances=2)
            ids = await accept_many(process.url)
            states = await look(process.url, ids)
            assert Counter(s["status"] for s in states.values())["ended"] == 0, "killed before any ended"
            process.kill()
            process.start()
            process.wait_ready()
            ended = await wait_all_ended(process, ids)
        finally:
            process.close()
    assert len(ended) == REQUESTS
    for seen in ended.values():
        assert seen["outcome"] == "length"
        assert seen["response"]["usage"]["completion_tokens"] == 120
        assert [event["what"] for event in seen["events"]].count("ended") == 1
    texts = {seen["response"]["choices"][0]["text"] for seen in ended.values()}
    assert len(texts) == REQUESTS, "each prompt has an answer of its own"


async def accept_many(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def accept(n: int) -> str:
            body = {"model": "mistral-7b", "prompt": f"{n}", "max_tokens": 120, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body, headers={"Prefer": "respond-async"})
            assert answer.status_code == 202
            return str(answer.json()["id"])

        return list(await asyncio.gather(*(accept(n) for n in range(REQUESTS))))


async def look(url: str, ids: list[str]) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        answers = await asyncio.gather(*(client.get(f"/v1/requests/{id}") for id in ids))
        return {id: answer.raise_for_status().json() for id, answer in zip(ids, answers, strict=True)}


async def wait_all_ended(process: QlmProcess, ids: list[str]) -> dict[str, Any]:
    """Wait until every request has ended; the test's timeout bounds it."""
    async with httpx.AsyncClient(base_url=process.admin_url, timeout=120) as client:
        while True:
            listed = (await client.get("/admin/v1/requests", params={"limit": 1000})).json()["requests"]
            if sum(each["status"] == "ended" for each in listed) >= len(ids):
                break
        seen = await look(process.url, ids)
        stories = {each["id"]: each for each in listed}
        return {id: seen[id] | {"events": stories[id]["events"]} for id in ids}
