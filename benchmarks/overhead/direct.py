"""Minimal client that keeps an engine full: more loops than batch slots, each with one request at a time.

    python -m benchmarks.overhead.direct URL MODEL LOOPS REQUESTS SEED ARM

A process of its own, as an agent is.
"""

import asyncio
import sys
from collections.abc import Iterator

import aiohttp
import orjson
import uvloop

from benchmarks.overhead.work import Work, draw, engine_body


async def keep_full(url: str, model: str, loops: int, work: Work, arm: str) -> None:
    """Send all the work.

    Raises:
        RuntimeError: An answer was not what was asked for.
    """
    numbers = iter(range(work.count))
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(
            *(_work(session, f"{url}/inference/v1/generate", model, numbers, work, arm) for _ in range(loops))
        )


async def _work(
    session: aiohttp.ClientSession, url: str, model: str, numbers: Iterator[int], work: Work, arm: str
) -> None:
    headers = {"Content-Type": "application/json"}
    for n in numbers:
        body = orjson.dumps(engine_body(model, work, n, arm))
        async with session.post(url, data=body, headers=headers) as answer:
            last = b""
            async for data in answer.content.iter_any():
                last = (last + data)[-600:]
            if answer.status != 200 or b'"length"' not in last:
                raise RuntimeError(f"the engine answered {answer.status}: {last.decode(errors='replace')}")


def main() -> None:
    """Send the work given on the command line."""
    url, model, loops, requests, seed, arm = sys.argv[1:]
    work = draw(int(requests), seed=int(seed), arm=arm)
    uvloop.run(keep_full(url, model, int(loops), work, arm))


if __name__ == "__main__":
    main()
