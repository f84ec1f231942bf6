"""A gateway whose process has too little processor refuses new requests, and soon accepts them again."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from qlm.gateway.core.limits import GatewayLimits
from support.flaky import until
from support.gateway import running_cluster

LIMITS = GatewayLimits(late_max_s=0.1)
BODY = {"model": "emulated", "prompt": "Hi"}


def keep_busy(loop: asyncio.AbstractEventLoop, idle: asyncio.Event) -> None:
    if not idle.is_set():
        time.sleep(0.2)  # this is what keeps the process busy
        loop.call_soon(keep_busy, loop, idle)


async def test_a_process_without_time_refuses_until_it_has_time_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.gateway.sessions.load.load_watch.LATENESS_PERIOD_S", 0.02)
    async with running_cluster(tmp_path) as cluster, httpx.AsyncClient() as client:
        url = f"{await cluster.gateway(limits=LIMITS)}/v1/completions"

        async def refusal() -> str | None:
            answer = await client.post(url, json=BODY)
            if answer.status_code == 200:
                return None
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            code: str = answer.json()["error"]["code"]
            return code

        assert await refusal() is None
        idle = asyncio.Event()
        keep_busy(asyncio.get_running_loop(), idle)
        await until(refusal)
        idle.set()

        async def accepted() -> bool:
            return await refusal() is None

        await until(accepted)
