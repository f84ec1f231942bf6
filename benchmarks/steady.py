"""Well-behaved clients in a process of their own: `python -m benchmarks.steady URL MODEL PER_SECOND MIX`.

They send requests at a steady rate until standard input ends. For each answer a JSON line is written: when
the
request was due on the monotonic clock, the milliseconds from then to the whole answer, and what was wrong. Of
the mix `all`, most are plain, three in ten streamed, and one in ten asynchronous (fetched when it has ended);
one in fifty is a stream whose client leaves at the first text. Of the mix `plain`, all are plain.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop

from benchmarks.load import client
from qlm.domain.byte_tokens import EOS_ID
from qlm.simulator.engine.token_chain import TokenChain, digests

TOKENS: Final = 8
_TEN: Final = ("plain", "stream", "plain", "plain", "async", "stream", "plain", "plain", "stream", "plain")
MIXES: Final = {"plain": ("plain",), "all": (*(_TEN * 5)[:-1], "left")}


class SteadyClients:
    """The clients, seen from their parent process."""

    def __init__(self, url: str, model: str, per_s: float, file: Path, mix: str = "plain") -> None:
        """Start them; they write to `file`."""
        self._file = file
        argv = [sys.executable, "-m", "benchmarks.steady", url, model, str(per_s), mix]
        with file.open("w") as out:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out)

    def end(self) -> None:
        """Let them wait for their last answers, and end."""
        self._process.communicate(timeout=120)

    def answers(self, from_s: float, to_s: float) -> list[dict[str, Any]]:
        """Return the answers of requests due in a time."""
        lines = map(json.loads, self._file.read_text("utf-8").splitlines())
        return [each for each in lines if from_s <= each["at_s"] < to_s]


def quantile_ms(answers: Sequence[dict[str, Any]], share: float) -> float:
    """Return a quantile of the times to the whole answers; infinite without answers."""
    ordered = sorted(each["ms"] for each in answers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


def answered_ids(prompt_ids: Sequence[int], tokens: int) -> list[int]:
    """Return the answer of the emulated model; a token is a hash of all tokens before it."""
    chain = TokenChain(digests(prompt_ids, len(prompt_ids) + 1)[-1], prompt_ids, 200.0)
    return [chain.next_id((EOS_ID,)) for _ in range(tokens)]


async def _behave(url: str, model: str, per_s: float, mix: str) -> None:
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    kinds = MIXES[mix]
    tasks: set[asyncio.Task[None]] = set()
    began_s, number = time.monotonic(), 0
    async with client(timeout_s=60) as session:
        while not over.done():
            due_s = began_s + number / per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            kind = kinds[number % len(kinds)]
            task = asyncio.create_task(_one(session, url, model, f"well-behaved {number}", kind, due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.gather(*tasks)


async def _one(
    session: aiohttp.ClientSession, url: str, model: str, prompt: str, kind: str, due_s: float
) -> None:
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True}
    try:
        text = await _ask(session, url, body, kind)
        expected = bytes(answered_ids(prompt.encode(), TOKENS)).decode()
        wrong = "" if text in (None, expected) else f"{text!r} in place of {expected!r}"
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        wrong = repr(error)
    ms = 1000 * (time.monotonic() - due_s)
    print(json.dumps({"at_s": due_s, "ms": ms, "wrong": wrong, "kind": kind}), flush=True)


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], kind: str) -> str | None:
    """Return the text of an answer; None if the client left before its end."""
    if kind in ("stream", "left"):
        body |= {"stream": True}
        if kind == "left":
            body |= {"resume_grace_s": 0, "max_tokens": 2000}
    headers = {"prefer": "respond-async"} if kind == "async" else {}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        if answer.status != (202 if kind == "async" else 200):
            raise ValueError(f"status {answer.status}, {(await answer.text())[:200]!r}")
        if kind == "left":
            await answer.content.readline()
            answer.close()
            return None
        if kind == "stream":
            return _streamed(await answer.text())
        found = await answer.json()
    if kind == "async":
        found = (await _ended(session, f"{url}/v1/requests/{found['id']}")).get("response")
    if not found:
        raise ValueError("an accepted request without an answer")
    text: str = found["choices"][0]["text"]
    return text


def _streamed(events: str) -> str:
    lines = (line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {"))
    return "".join(choice["text"] for line in lines for choice in json.loads(line).get("choices", ()))


async def _ended(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    for _ in range(600):
        async with session.get(url) as answer:
            status: dict[str, Any] = await answer.json()
        if status.get("status") == "ended":
            return status
        await asyncio.sleep(0.1)
    raise ValueError(f"not ended within a minute: {status}")


if __name__ == "__main__":
    uvloop.run(_behave(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
