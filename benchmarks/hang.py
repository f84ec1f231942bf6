"""`make bench ARGS="hang"`: engines that hang in each way, and how soon their requests go on.

Each round runs `qlm serve` with two instances that start emulated engines, and streams on both. One engine
then hangs (`/emulation/hang`). A stream counts as held up if it gets no token for `HELD_UP_S` after that.
Every answer is compared with that of the emulated model, so a token that is missing or repeated shows. The
round ends when all requests are answered and both instances serve again.

Exits with 1 if an answer was wrong, an instance did not come back, or the median of the waits is above 30 s.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx
import uvloop

from benchmarks import setups
from benchmarks.chaos.client_request import ClientRequest
from benchmarks.chaos.clients import Clients
from support.flaky import until
from support.hung_engines import MODES, STOPPED, engine_of, hang
from support.ports import free_port
from support.qlm_process import QlmProcess, awake_instances, emulated

MODEL: Final = "mistral-7b"
WAYS: Final = (*MODES, STOPPED)
STREAMS: Final = 16
SEQS_MAX: Final = 12
"""Batch slots of an engine: more than half of the streams, so that both engines have some."""

LATE: Final = 2 * SEQS_MAX - STREAMS
"""Streams after the hang: with them all slots are taken, so some go to the engine that hangs."""

TOKENS: Final = 1500
TOKENS_SLOW: Final = 400
"""Length of an answer in mode `slow`: 44 s on an engine ten times slower, which must not be restarted."""

HELD_UP_S: Final = 3.0
GOAL_S: Final = 30.0
ROUND_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round; seconds from the hang.

    Attributes:
        mode: Way of hanging.
        waits_s: Time to the next token of each stream that was held up.
        wrong: Streams whose answer is not that of the model.
        restarts: Restarts of engines that the agents counted.
        cut: Requests that they cut.
        garbled: Answers that they could not read.
        back_s: Time until both instances serve and all requests are answered; None if not in time.
    """

    mode: str
    waits_s: list[float]
    wrong: int
    restarts: int
    cut: int
    garbled: int
    back_s: float | None

    @property
    def passed(self) -> bool:
        """True if all answers are right and the instance is back; a slow engine must not be restarted."""
        return not self.wrong and self.back_s is not None and (self.mode != "slow" or not self.restarts)


def main(arguments: list[str]) -> int:
    """Run the rounds, print a line for each, and save them."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="hang"', description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first round; modes take turns")
    parser.add_argument("--mode", choices=WAYS, help="only this way of hanging")
    parser.add_argument("--out", type=Path, default=Path("build/hang.json"))
    options = parser.parse_args(arguments)
    rounds = []
    for number in range(options.first, options.first + options.rounds):
        made = uvloop.run(_play(number, options.mode or WAYS[number % len(WAYS)]))
        rounds.append(made)
        print(f"round {number}: {_line(made)}", flush=True)
        setups.save(options.out, {"machine": setups.machine(), "rounds": [asdict(each) for each in rounds]})
    waits_s = [wait_s for each in rounds for wait_s in each.waits_s]
    median_s = statistics.median(waits_s) if waits_s else 0.0
    passed = sum(each.passed for each in rounds)
    print(f"{passed} of {len(rounds)} rounds passed; {len(waits_s)} streams held up, median {median_s:.1f} s")
    return 0 if passed == len(rounds) and median_s <= GOAL_S else 1


def _line(made: Round) -> str:
    waits = made.waits_s
    shown = f"median {statistics.median(waits):.1f}, worst {max(waits):.1f} s" if waits else "none"
    back = "never" if made.back_s is None else f"{made.back_s:.1f} s"
    return (
        f"{made.mode:<13} held up {len(waits):2} ({shown}), wrong {made.wrong}, restarts {made.restarts}, "
        f"cut {made.cut}, garbled {made.garbled}, all back {back}"
    )


async def _play(number: int, mode: str) -> Round:
    with tempfile.TemporaryDirectory(prefix="qlm-hang-") as temporary:
        folder = Path(temporary)
        config = emulated(MODEL, instances=2, time_scale=1.0, http={"port": free_port()})
        for instance in config["instances"]:
            instance["seqs_max"] = SEQS_MAX
        config["data_dir"] = str(folder / "data")
        config["default_slo"] = {"deadline_ms": 600_000}
        process = QlmProcess("serve", "serve", config=config, folder=folder)
        process.start()
        clients = Clients([process.url], random.Random(number))
        try:
            process.wait_ready(instances=2)
            return await _hang(process, clients, f"{number}-{mode}", mode)
        finally:
            await clients.close()
            process.terminate(timeout_s=60)


async def _hang(process: QlmProcess, clients: Clients, name: str, mode: str) -> Round:
    tokens = TOKENS_SLOW if mode == "slow" else TOKENS
    streams = [_stream(f"{name}-{n}", tokens) for n in range(STREAMS)]
    tasks = [asyncio.create_task(clients.carry(each)) for each in streams]
    await until(lambda: all(len(each.token_s) > 3 for each in streams), 60)
    running = await _running(process.admin_url)
    # Later requests go to the engine with free slots.
    choose = min if mode == "no_admission" else max
    port, pid = engine_of(process.pid, choose(running, key=lambda id: running[id]))
    hung_s = time.monotonic()
    await asyncio.to_thread(hang, mode, port, pid)
    late = [_stream(f"{name}-late-{n}", tokens) for n in range(LATE)]
    tasks += [asyncio.create_task(clients.carry(each)) for each in late]
    back_s: float | None = None
    try:
        async with asyncio.timeout(ROUND_S):
            await asyncio.gather(*tasks)
            await until(lambda: awake_instances(process.admin_url) == 2, ROUND_S)
        back_s = time.monotonic() - hung_s
    except TimeoutError:
        print(process.log(), flush=True)
    everyone = [*streams, *late]
    async with httpx.AsyncClient() as http:
        counted = (await http.get(f"{process.admin_url}/metrics")).text
    return Round(
        mode=mode,
        waits_s=[wait_s for each in everyone if (wait_s := _held_up(each, hung_s)) > HELD_UP_S],
        wrong=sum(not (each.answered and each.gap_free) or bool(each.trouble) for each in everyone),
        restarts=_total(counted, "qlm_agent_engine_restarts_total"),
        cut=_total(counted, 'qlm_agent_generations_broken_total{kind="cut"'),
        garbled=_total(counted, 'qlm_agent_generations_broken_total{kind="garbled"'),
        back_s=back_s,
    )


def _stream(key: str, tokens: int) -> ClientRequest:
    return ClientRequest(
        key=key, kind="stream", tokens=tokens, slo=None, model=MODEL, sent_s=time.monotonic()
    )


async def _running(admin_url: str) -> dict[str, int]:
    """Wait until both engines run requests; return how many each of them runs."""
    async with httpx.AsyncClient(base_url=admin_url) as http:
        while True:
            listed = (await http.get("/admin/v1/instances")).raise_for_status().json()["instances"]
            running = {each["id"]: int(each["running"]) for each in listed}
            if len(running) == 2 and all(running.values()):
                return running
            await asyncio.sleep(0.2)


def _held_up(one: ClientRequest, hung_s: float) -> float:
    """Return the longest time without a token that began within a second after the hang, or at its start."""
    times = [max(hung_s, one.sent_s), *(at for at in one.token_s if at > hung_s)]
    pauses = [(after - before, before) for before, after in pairwise(times)]
    return max((pause for pause, began in pauses if began < hung_s + 1.0), default=0.0)


def _total(metrics: str, name: str) -> int:
    return round(sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name)))
