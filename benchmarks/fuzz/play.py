"""The requests of a run, at a steady rate; and one alone."""

import asyncio
import time
from typing import Final, Self
from urllib.parse import urlsplit

from grpc import aio

from benchmarks.fuzz.http_requests import http_request
from benchmarks.fuzz.progress import Progress
from benchmarks.fuzz.rpc_calls import rpc_call
from benchmarks.fuzz.senders import RpcSender, send_http
from benchmarks.fuzz.verdict import Finding
from benchmarks.fuzz.watch import Watch
from benchmarks.fuzz.wire import Wire
from benchmarks.setups import Running

MODEL: Final = "mistral-7b"
CONNECTIONS: Final = 64
_BATCH: Final = 500
"""Requests between two looks at the processes; a traceback is narrowed down to so many."""

_FINDINGS_MAX: Final = 50
"""Findings after which a run ends."""


class Play:
    """A run on a cluster."""

    def __init__(self, qlm: Running, rpc: str, progress: Progress, rate: float) -> None:
        """Prepare; `rpc` is the address of the gRPC listener, `rate` in requests per second."""
        place = urlsplit(qlm.url)
        self._host = place.netloc.encode()
        self._wires = [Wire(place.hostname or "", place.port or 0) for _ in range(CONNECTIONS)]
        self._free: asyncio.Queue[Wire] = asyncio.Queue()
        self._channel = aio.insecure_channel(rpc)
        self._sender = RpcSender(self._channel)
        self._watch = Watch(qlm.processes)
        self._progress = progress
        self._rate = rate

    async def __aenter__(self) -> Self:
        for wire in self._wires:
            self._free.put_nowait(wire)
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self._wires:
            await wire.close()
        await self._channel.close()

    async def run(self, http: int, rpc: int, warm_up: int, seconds: float | None) -> None:
        """Send what is missing of that many requests and calls; look at the processes meanwhile."""
        progress, began, warm = self._progress, self._progress.http + self._progress.rpc, False
        until_s = float("inf") if seconds is None else time.monotonic() + seconds
        tasks: set[asyncio.Task[None]] = set()
        while (numbers := self._next(http, rpc)) and time.monotonic() < until_s and not self._too_many():
            await self._batch(numbers, tasks)
            if progress.http + progress.rpc - began >= warm_up and not warm:
                self._watch.warmed_up()
                warm = True
        await asyncio.gather(*tasks)
        self._found(list(self._watch.look("at the end")))
        self._found(list(self._watch.grown()))
        progress.memory_mb.append(self._watch.growth())
        progress.log_lines += self._watch.log_lines

    async def one(self, part: str, number: int) -> Finding | None:
        """Send one request."""
        return await (self._http(number) if part == "http" else self._rpc(number))

    def _next(self, http: int, rpc: int) -> list[tuple[str, int]]:
        """Return the next requests and calls, in proportion to what is missing."""
        missing = http - self._progress.http, rpc - self._progress.rpc
        calls = min(missing[1], -(-_BATCH * missing[1] // max(1, sum(missing))))
        requests = min(missing[0], _BATCH - calls)
        return [
            *(("http", self._progress.http + n) for n in range(requests)),
            *(("rpc", self._progress.rpc + n) for n in range(calls)),
        ]

    def _too_many(self) -> bool:
        return len(self._progress.findings) >= _FINDINGS_MAX

    async def _batch(self, numbers: list[tuple[str, int]], tasks: "set[asyncio.Task[None]]") -> None:
        began_s = time.monotonic()
        for n, (part, number) in enumerate(numbers):
            await asyncio.sleep(max(0.0, began_s + n / self._rate - time.monotonic()))
            task = asyncio.create_task(self._sent(part, number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        self._progress.http += sum(part == "http" for part, _ in numbers)
        self._progress.rpc += sum(part == "rpc" for part, _ in numbers)
        last = ", ".join(f"{part}:{number}" for part, number in (numbers[0], numbers[-1]))
        self._found(list(self._watch.look(f"about {last}")))

    async def _sent(self, part: str, number: int) -> None:
        if (finding := await self.one(part, number)) is not None:
            self._found([finding])

    def _found(self, findings: list[Finding]) -> None:
        for each in findings:
            print(f"finding: {each.part} {each.number}: {each.what}", flush=True)
        self._progress.findings += findings

    async def _http(self, number: int) -> Finding | None:
        wire = await self._free.get()
        try:
            request = http_request(self._progress.seed, number, MODEL, self._host)
            return await send_http(wire, request, self._progress.statuses)
        finally:
            self._free.put_nowait(wire)

    async def _rpc(self, number: int) -> Finding | None:
        return await self._sender.send(rpc_call(self._progress.seed, number, MODEL), self._progress.statuses)


async def show(qlm: Running, rpc: str, seed: int, only: str) -> int:
    """Send one request alone; print it, its verdict, and the new lines of the logs."""
    part, _, number = only.partition(":")
    host = urlsplit(qlm.url).netloc.encode()
    print(
        http_request(seed, int(number), MODEL, host) if part == "http" else rpc_call(seed, int(number), MODEL)
    )
    watch, progress = Watch(qlm.processes), Progress(seed=seed)
    async with Play(qlm, rpc, progress, rate=1.0) as play:
        finding = await play.one(part, int(number))
    print(dict(progress.statuses), "nothing wrong" if finding is None else finding.what, sep="\n")
    findings = list(watch.look(f"at {only}"))
    print(*(each.what for each in findings), sep="\n")
    return 1 if findings or finding is not None else 0
