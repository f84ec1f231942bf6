"""`make bench ARGS="hostile"`: hostile connections against `qlm serve`, beside a well-behaved client.

One process opens a number of hostile connections, evenly over the time: endless headers, endless URLs, slow
headers, slow bodies, half-closed ones, idle ones. Each lasts until it is refused or the time is over. Beside
them a client sends requests at a constant rate, before and meanwhile, to the same emulated engine.

Exits with 1 if the client's P99 with them is more than twice that without, if a request of it failed, if the
memory grew by more than 20 %, or if the log has a traceback.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop

from benchmarks import setups
from benchmarks.load import Sample, client, open_loop, poisson_arrivals
from qlm.gateway.http.connections.descriptors import allow_descriptors
from support.flaky import until
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated

MODEL: Final = "mistral-7b"
BODY: Final[dict[str, Any]] = {"model": MODEL, "prompt": "Hello", "max_tokens": 16, "ignore_eos": True}
ENGINE_MS: Final = 50.0
WARM_UP_S: Final = 10.0
SETTLE_S: Final = 15.0
"""Time after the last hostile connection: the longest limit for what it left, and some more."""

PIECE: Final = b"x" * 16_384
POST: Final = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

P99_RATIO_MAX: Final = 2.0
MEMORY_RATIO_MAX: Final = 1.2

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Seen:
    """Observations of the hostile process.

    Attributes:
        opened: Connections opened, by kind of attack.
        answers: Answers, by kind of attack and status; 0 for a connection that ended without one.
        failed: Connections that could not be opened.
    """

    opened: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    failed: int = 0


def main(arguments: list[str]) -> int:
    """Measure, print what was found, and save it."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="hostile"', description=__doc__)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two measurements")
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second of the client")
    parser.add_argument("--out", type=Path, default=Path("build/hostile.json"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="qlm-hostile-") as temporary:
        process = _serve(Path(temporary))
        try:
            process.wait_ready(instances=1)
            result = uvloop.run(_measure(process, options))
            log = process.log_file.read_text("utf-8")
        finally:
            process.terminate(timeout_s=60)
    result["log"] = {"tracebacks": log.count("Traceback"), "lines": log.count("\n")}
    setups.save(options.out, {"machine": setups.machine(), **result})
    return _report(result)


def _serve(folder: Path) -> QlmProcess:
    config = emulated(MODEL, http={"port": free_port()})
    config["emulate"] = {"fixed_ms": ENGINE_MS}
    config["data_dir"] = str(folder / "data")
    process = QlmProcess("serve", "serve", config=config, folder=folder)
    process.start()
    return process


async def _measure(process: QlmProcess, options: argparse.Namespace) -> dict[str, Any]:
    async with client() as session:

        async def load(seconds: float, seed: int) -> Sample:
            arrivals = poisson_arrivals(options.rate, seconds, seed)
            return await open_loop(session, f"{process.url}/v1/completions", BODY, arrivals)

        await load(WARM_UP_S, 1)
        quiet = await load(options.seconds, 2)
        before = _state(process.pid)
        seen = multiprocessing.get_context("spawn").Queue()
        attackers = multiprocessing.get_context("spawn").Process(
            target=_attack, args=(process.port, options.connections, options.seconds, seen)
        )
        attackers.start()
        await until(lambda: _state(process.pid)["descriptors"] > before["descriptors"] + 20, 60)
        samples: list[int] = []
        watching = asyncio.create_task(_watch(process.pid, samples))
        attacked = await load(options.seconds, 2)
        watching.cancel()
        found: Seen = await asyncio.to_thread(seen.get, True, 120)
        await asyncio.to_thread(attackers.join)
    await asyncio.sleep(SETTLE_S)
    async with httpx.AsyncClient(base_url=process.admin_url) as http:
        metrics = (await http.get("/metrics")).text
    return {
        "quiet": _times(quiet),
        "attacked": _times(attacked),
        "before": before,
        "after": _state(process.pid),
        "descriptors_meanwhile": {"median": sorted(samples)[len(samples) // 2], "most": max(samples)},
        "hostile": {
            "opened": dict(found.opened),
            "answers": dict(found.answers),
            "failed": found.failed,
        },
        "refused": _refusals(metrics),
    }


async def _watch(pid: int, samples: list[int]) -> None:
    while True:
        samples.append(_state(pid)["descriptors"])
        await asyncio.sleep(1.0)


def _times(sample: Sample) -> dict[str, float]:
    return {
        "requests": float(len(sample.latencies_ms) + sample.failed),
        "failed": float(sample.failed),
        "p50_ms": sample.quantile_ms(0.5),
        "p99_ms": sample.quantile_ms(0.99),
        "worst_ms": sample.quantile_ms(1.0),
    }


def _state(pid: int) -> dict[str, int]:
    """Return resident memory and open descriptors of a process."""
    folder = Path(f"/proc/{pid}")
    (line,) = (each for each in (folder / "status").read_text().splitlines() if each.startswith("VmRSS"))
    return {"memory_kib": int(line.split()[1]), "descriptors": len(list((folder / "fd").iterdir()))}


def _refusals(metrics: str) -> dict[str, int]:
    name = "qlm_gateway_refused_total{"
    lines = (line for line in metrics.splitlines() if line.startswith(name))
    return {labels.rstrip("} "): int(float(count)) for labels, count in _parted(lines, name)}


def _parted(lines: Any, name: str) -> Any:
    return (line.removeprefix(name).rsplit(" ", 1) for line in lines)


def _report(result: Mapping[str, Any]) -> int:
    quiet, attacked, before, after = (result[key] for key in ("quiet", "attacked", "before", "after"))
    p99_ratio = attacked["p99_ms"] / quiet["p99_ms"]
    memory_ratio = after["memory_kib"] / before["memory_kib"]
    for name, times in (("without", quiet), ("with", attacked)):
        print(
            f"{name:8} {times['requests']:.0f} requests, {times['failed']:.0f} failed, "
            f"P50 {times['p50_ms']:.1f}, P99 {times['p99_ms']:.1f}, worst {times['worst_ms']:.1f} ms"
        )
    print(f"P99 with hostile connections: {p99_ratio:.2f} times that without")
    print(f"memory {before['memory_kib']} -> {after['memory_kib']} KiB ({memory_ratio:.2f})")
    meanwhile = result["descriptors_meanwhile"]
    print(
        f"descriptors {before['descriptors']} -> {after['descriptors']}; meanwhile median "
        f"{meanwhile['median']}, most {meanwhile['most']}"
    )
    print(f"hostile connections opened: {result['hostile']['opened']}, not: {result['hostile']['failed']}")
    print(f"their answers: {dict(sorted(result['hostile']['answers'].items()))}")
    print(f"refused, as counted by the gateway: {result['refused']}")
    print(f"log: {result['log']}")
    good = (
        p99_ratio <= P99_RATIO_MAX
        and memory_ratio <= MEMORY_RATIO_MAX
        and not attacked["failed"]
        and not result["log"]["tracebacks"]
    )
    return 0 if good else 1


# --- the hostile process


def _attack(port: int, connections: int, seconds: float, result: Any) -> None:
    allow_descriptors(connections + 100)
    result.put(uvloop.run(_attack_all(port, connections, seconds)))


async def _attack_all(port: int, connections: int, seconds: float) -> Seen:
    seen, began_s = Seen(), time.monotonic()
    names = list(ATTACKS)
    tasks = []
    for number in range(connections):
        opens_s = began_s + number * seconds / connections
        await asyncio.sleep(max(0.0, opens_s - time.monotonic()))
        name = names[number % len(names)]
        tasks.append(asyncio.create_task(_attempt(port, name, began_s + seconds + SETTLE_S, seen)))
    await asyncio.gather(*tasks)
    return seen


async def _attempt(port: int, name: str, ends_s: float, seen: Seen) -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        seen.failed += 1
        return
    seen.opened[name] += 1
    answering = asyncio.create_task(_status(reader))
    try:
        async with asyncio.timeout(ends_s - time.monotonic()):
            await ATTACKS[name](reader, writer)
            seen.answers[f"{name} {await answering}"] += 1
    except TimeoutError:
        pass
    except ConnectionError:
        seen.answers[f"{name} {await answering}"] += 1
    answering.cancel()
    writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> int:
    """Read until the end; return the status of the answer, 0 if there was none."""
    try:
        line = await reader.readline()
        await reader.read()
    except ConnectionError:
        return 0
    return int(line.split()[1]) if line.startswith(b"HTTP/") else 0


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: bytes) -> None:
    writer.write(start)
    while not reader.at_eof():
        writer.write(PIECE)
        await writer.drain()
        await asyncio.sleep(0)


async def _slow(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: bytes, piece: bytes
) -> None:
    writer.write(start)
    while not reader.at_eof():
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(1.0)


async def _endless_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _endless(reader, writer, b"GET /healthz HTTP/1.1\r\nx-long: ")


async def _endless_url(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _endless(reader, writer, b"GET /")


async def _slow_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _slow(reader, writer, b"GET /healthz HTTP/1.1\r\n", b"x-line: slow\r\n")


async def _slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _slow(reader, writer, POST + b"content-length: 1000000\r\n\r\n", b" " * 100)


async def _half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(POST + b"content-length: 1000\r\n\r\n{")
    writer.write_eof()


async def _idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send nothing; the answer is awaited."""


ATTACKS: Final[Mapping[str, Attack]] = {
    "endless header": _endless_header,
    "endless URL": _endless_url,
    "slow headers": _slow_headers,
    "slow body": _slow_body,
    "half closed": _half_closed,
    "idle": _idle,
}
