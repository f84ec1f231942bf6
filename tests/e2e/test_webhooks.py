"""kill -9 of `qlm serve` between ends and their events: each event comes all the same, signed."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import openai
from aiohttp import web

from support.gateway import until
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated
from support.webhooks import SECRET, receiving

RESPONSES = 8


async def test_ends_before_and_after_kill_9_are_reported() -> None:
    with tempfile.TemporaryDirectory(prefix="qlm-webhooks-") as temporary:
        async with receiving() as receiver:
            folder = Path(temporary)
            (folder / "secret").write_text(SECRET)
            hook = {"name": "test", "url": receiver.url, "secret_file": str(folder / "secret")}
            config = emulated(
                "mistral-7b",
                http={"port": free_port()},
                data_dir=str(folder / "data"),
                webhooks={
                    "endpoints": [hook],
                    "allowed_networks": ["127.0.0.0/8"],
                    "retry_first_s": 0.1,
                    "retry_max_s": 0.5,
                },
            )

            async def down() -> web.StreamResponse:
                return web.Response(status=503)

            async def taken() -> web.StreamResponse:
                return web.Response()

            receiver.answer = down
            process = QlmProcess("serve", "serve", config=config, folder=folder)
            await asyncio.to_thread(process.start)
            try:
                await asyncio.to_thread(process.wait_ready)
                async with openai.AsyncOpenAI(
                    base_url=f"{process.url}/v1", api_key="any", max_retries=20
                ) as client:
                    asked: dict[str, Any] = {
                        "model": "mistral-7b",
                        "background": True,
                        "max_output_tokens": 8,
                    }
                    short = await client.responses.create(**asked, input="0")
                    await until(lambda: bool(receiver.events))  # it has ended, and no one takes its event
                    long = [
                        await client.responses.create(**asked | {"max_output_tokens": 300}, input=f"{n}")
                        for n in range(RESPONSES)
                    ]
                    await asyncio.to_thread(process.kill)
                    receiver.answer = taken
                    await asyncio.to_thread(process.start)
                    await asyncio.to_thread(process.wait_ready)
                    wanted = {short.id, *(each.id for each in long)}
                    await until(lambda: {each["data"]["id"] for each in receiver.events} == wanted)
                    ends = {each["data"]["id"]: each["type"] for each in receiver.events}
                    for id in wanted:
                        status = (await client.responses.retrieve(id)).status
                        assert ends[id] == f"response.{status}"
            finally:
                await asyncio.to_thread(process.close)
        assert len({each["id"] for each in receiver.events if each["data"]["id"] == short.id}) == 1
