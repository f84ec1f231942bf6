"""`qlm bench` where a process may open fewer files than requests are open at a time."""

import asyncio
import json
from asyncio.subprocess import PIPE
from typing import Any

from aiohttp import web

from support.completions_server import serving, streamed
from support.qlm_process import QLM

REQUESTS = 150
LOAD = ("--request-rate", "inf", "--num-prompts", str(REQUESTS), "--input-len", "4", "--output-len", "4")


async def measured(limit: str, patience: str) -> dict[str, Any]:
    """Measure a server that answers nothing until all requests have arrived."""
    arrived, all_arrived = 0, asyncio.Event()

    async def respond(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == REQUESTS:
            all_arrived.set()
        await all_arrived.wait()
        return await streamed(request, 4)

    async with serving(respond) as target:
        limited = ("sh", "-c", f'ulimit {limit}; exec "$@"', "sh")
        argv = (*limited, str(QLM), "bench", target.url, *LOAD, "--patience", patience, "--json")
        process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE)
        output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output)
    return found


async def test_the_soft_limit_of_open_files_fails_no_request() -> None:
    """It is 1024 on most machines; what was beyond it counted as failures of the server."""
    assert (await measured("-Sn 100", "60"))["answered"] == REQUESTS


async def test_a_hard_limit_is_named() -> None:
    errors = (await measured("-n 100", "2"))["errors"]
    assert "connection: this client may open no more files (ulimit -n)" in errors
