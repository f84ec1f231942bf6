"""`make bench ARGS="batch-beside"`: a batch of many lines beside interactive traffic at 60 % load.

One emulated A100 with 16 places, in real time; all requests are alike. First the engine's own rate is
measured, full and without QLM. Then interactive requests arrive at a share of it (Poisson), each with a
deadline, alone and, with the same arrivals, beside a batch. Goals: the share of interactive requests in time
falls by at most one point, and the batch has at least 90 % of the rate that the interactive requests leave.
At last a batch runs alone and everything is killed (SIGKILL) half way: each line must be answered once.

Exits with 1 if a goal is missed.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import uvloop

from benchmarks import setups
from benchmarks.load import client, closed_loop, poisson_arrivals
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QlmProcess, emulated

MODEL: Final = "mistral-7b"
SEQS_MAX: Final = 16
TOKENS: Final = 64
BODY: Final[dict[str, Any]] = {
    "model": MODEL,
    "prompt": list(range(1, 129)),
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}
ROUTE: Final = "/v1/completions"
DEADLINE_S: Final = 2.0
"""Of an interactive request; it takes some 0.8 s in a full engine."""

LINES_MAX: Final = 50_000
WARM_UP_S: Final = 10.0
"""Interactive traffic before the first arm: directly after a start more are late."""

ALONE_S_MAX: Final = 300.0
"""Longest arm without a batch."""

POINTS_MAX: Final = 1.0
SHARE_MIN: Final = 0.9
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured.

    Attributes:
        lines: Lines of each batch.
        engine_rps: Requests per second of the full engine, without QLM.
        offered_rps: Interactive requests per second.
        requests: Interactive requests beside the batch.
        met_alone: Share of them in time without the batch.
        met_beside: The same beside it.
        batch_rps: Lines per second beside the interactive requests.
        restarted: Lines answered when everything was killed.
        once: Lines with one answer after the restart.
        wrong: Lines without an answer, or with several.
    """

    lines: int
    engine_rps: float
    offered_rps: float
    requests: int
    met_alone: float
    met_beside: float
    batch_rps: float
    restarted: int
    once: int
    wrong: int

    @property
    def share(self) -> float:
        """Rate of the batch, as a share of what the interactive requests leave of the engine's."""
        return self.batch_rps / (self.engine_rps - self.offered_rps)

    @property
    def missed(self) -> Sequence[str]:
        """Goals that are not held, in words."""
        lost = (self.met_alone - self.met_beside) * 100
        goals = {
            f"{lost:.1f} points of the interactive requests lost": lost <= POINTS_MAX,
            f"the batch had {self.share:.0%} of the rate left": self.share >= SHARE_MIN,
            f"{self.wrong} lines without one answer after the restart": not self.wrong,
        }
        return [what for what, reached in goals.items() if not reached]


def main(arguments: list[str]) -> int:
    """Run all arms, print what they measured, and save it."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="batch-beside"', description=__doc__)
    parser.add_argument("--lines", type=int, default=500, help="lines of each batch, up to 50 000")
    parser.add_argument("--load", type=float, default=0.6, help="interactive share of the engine's rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/batch-beside.json"))
    options = parser.parse_args(arguments)
    if not 0 < options.load < 1 or not 1 <= options.lines <= LINES_MAX:
        parser.error(f"--load is above 0 and below 1, --lines 1 to {LINES_MAX}")
    made = uvloop.run(_run(options.lines, options.load, options.seed))
    found = asdict(made) | {"share": made.share, "missed": made.missed}
    setups.save(options.out, {"machine": setups.machine(), **found})
    for name, value in found.items():
        print(f"{name:<12} {value:.3f}" if isinstance(value, float) else f"{name:<12} {value}")
    return 1 if made.missed else 0


async def _run(lines: int, load: float, seed: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as temporary:
        folder = Path(temporary)
        engine_rps = await _engine_rps(folder)
        offered_rps = engine_rps * load
        process = _qlm(folder)
        try:
            # Long enough for the slowest batch that would still be waited for.
            arrivals = poisson_arrivals(offered_rps, 3 * lines / (engine_rps - offered_rps), seed)
            await _interactive(process.url, poisson_arrivals(offered_rps, WARM_UP_S, seed + 1))
            beside, batch_s = await _beside(process, lines, arrivals)
            alone_s = min(batch_s, ALONE_S_MAX)
            alone = await _interactive(process.url, [each for each in arrivals if each < alone_s])
            restarted, once = await _restarted(process, lines)
        finally:
            process.close()
    met_beside, met_alone = ([each <= DEADLINE_S for each in arm] for arm in (beside, alone))
    return Result(
        lines=lines,
        engine_rps=engine_rps,
        offered_rps=offered_rps,
        requests=len(beside),
        met_alone=sum(met_alone) / len(met_alone),
        met_beside=sum(met_beside) / len(met_beside),
        batch_rps=lines / batch_s,
        restarted=restarted,
        once=once,
        wrong=lines - once,
    )


async def _engine_rps(folder: Path) -> float:
    """Measure the rate of an engine that is always full."""
    port = free_port()
    argv = engine_command(port, MODEL, seqs_max=SEQS_MAX)
    engine = ServerProcess("engine", argv, env=setups.environment(), folder=folder)
    engine.start()
    try:
        url = f"http://127.0.0.1:{port}"
        engine.wait_ready(lambda: setups.answers(f"{url}/health"), timeout_s=60)
        async with client() as session:
            made = await closed_loop(
                session, url + ROUTE, BODY, concurrency=2 * SEQS_MAX, seconds=20, headers={}, good_status=200
            )
    finally:
        engine.kill()
    return made.answered_rps


def _qlm(folder: Path) -> QlmProcess:
    config = emulated(MODEL, time_scale=1.0, http={"port": free_port()})
    config["instances"][0]["seqs_max"] = SEQS_MAX
    config["data_dir"] = str(folder / "data")
    process = QlmProcess("serve", "serve", config=config, folder=folder)
    process.start()
    process.wait_ready(instances=1)
    return process


async def _beside(process: QlmProcess, lines: int, arrivals: Sequence[float]) -> tuple[list[float], float]:
    """Run a batch beside interactive requests; return the latencies of these, and how long the batch took."""
    interactive = asyncio.create_task(_interactive(process.url, arrivals, until := asyncio.Event()))
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as http:
        id, began_s = await _begun(http, lines), time.perf_counter()
        await _batch(http, id, _has_ended)
        batch_s = time.perf_counter() - began_s
    until.set()
    return await interactive, batch_s


async def _interactive(
    url: str, arrivals: Sequence[float], until: asyncio.Event | None = None
) -> list[float]:
    """Send a request at each arrival, until the event; return their latencies, infinite without an answer."""
    body = BODY | {"slo": {"deadline_ms": DEADLINE_S * 1000}}
    async with client() as session, asyncio.TaskGroup() as group:
        started_s, tasks = time.perf_counter(), []
        for due_s in arrivals:
            if until is not None and until.is_set():
                break
            await asyncio.sleep(max(0.0, due_s - (time.perf_counter() - started_s)))
            tasks.append(group.create_task(_latency_s(session, url + ROUTE, body, started_s + due_s)))
    return [each.result() for each in tasks]


async def _latency_s(session: aiohttp.ClientSession, url: str, body: dict[str, Any], due_s: float) -> float:
    try:
        async with session.post(url, json=body) as answer:
            await answer.read()
            return time.perf_counter() - due_s if answer.status == 200 else float("inf")
    except (aiohttp.ClientError, TimeoutError):
        return float("inf")


async def _restarted(process: QlmProcess, lines: int) -> tuple[int, int]:
    """Run a batch, kill everything half way; return the lines answered then, and those answered once."""
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as http:
        id = await _begun(http, lines)
        done = _completed(await _batch(http, id, lambda batch: _completed(batch) >= lines // 2))
    process.kill()
    process.start()
    await asyncio.to_thread(process.wait_ready, instances=1)
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as http:
        batch = await _batch(http, id, _has_ended)
        text = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).raise_for_status().text
    return done, answered_once(text, lines)


def answered_once(text: str, lines: int) -> int:
    """Return how many lines of a batch have one whole answer in its output file."""
    answers = [json.loads(each) for each in text.splitlines()]
    whole = [each for each in answers if each["response"]["body"]["usage"]["completion_tokens"] == TOKENS]
    counts = Counter(each["custom_id"] for each in answers)
    return sum(counts[each["custom_id"]] == 1 for each in whole if 0 <= int(each["custom_id"]) < lines)


def input_file(lines: int) -> bytes:
    """Return the lines of a batch, each with a prompt of its own."""
    line = {"method": "POST", "url": ROUTE}
    bodies = (BODY | {"prompt": [*BODY["prompt"], *f"{n}".encode()]} for n in range(lines))
    return b"".join(
        json.dumps(line | {"custom_id": f"{n}", "body": body}).encode() + b"\n"
        for n, body in enumerate(bodies)
    )


async def _begun(http: httpx.AsyncClient, lines: int) -> str:
    """Begin a batch and wait until its lines are run; return its id."""
    files = {"file": ("in.jsonl", input_file(lines))}
    file = (await http.post("/v1/files", data={"purpose": "batch"}, files=files)).raise_for_status().json()
    body = {"input_file_id": file["id"], "endpoint": ROUTE, "completion_window": "24h"}
    id: str = (await http.post("/v1/batches", json=body)).raise_for_status().json()["id"]
    await _batch(http, id, lambda batch: batch["status"] != "validating")
    return id


async def _batch(
    http: httpx.AsyncClient, id: str, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until a condition holds for a batch; return it."""
    while True:
        batch: dict[str, Any] = (await http.get(f"/v1/batches/{id}")).raise_for_status().json()
        if condition(batch):
            return batch
        await asyncio.sleep(0.1)


def _has_ended(batch: dict[str, Any]) -> bool:
    return batch["status"] in ENDED


def _completed(batch: dict[str, Any]) -> int:
    return int(batch["request_counts"]["completed"])
