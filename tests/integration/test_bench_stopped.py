"""`qlm bench` that is stopped by Ctrl-C: what was sent is reported and saved."""

import asyncio
import json
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from qlm.cli.bench.formats.reading import read_runs
from support.completions_server import serving, streamed
from support.gateway import until
from support.qlm_process import QLM

TAKES_CTRL_C = ("env", "--default-signal=INT")
"""Runs a program that takes Ctrl-C, also where the tests ignore it, as in the background of a script."""

LOAD = ("--request-rate", "50", "--num-prompts", "100000", "--input-len", "8", "--reader", "10", "--json")


@dataclass
class Withholding:
    """A server that answers nothing until it is released."""

    arrived: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        self.arrived += 1
        await self.released.wait()
        return await streamed(request, 4)


@dataclass(frozen=True)
class Bench:
    """`qlm bench` at work."""

    process: asyncio.subprocess.Process

    async def interrupt(self) -> None:
        """Press Ctrl-C, and wait until it says that it stops."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        said = (await self.process.stderr.readline()).decode()
        assert said == "qlm: stopping once all that was sent is answered; Ctrl-C again gives that up\n"

    async def end(self) -> tuple[int | None, str, str]:
        """Wait for its end; return exit status, output and errors."""
        output, errors = await self.process.communicate()
        return self.process.returncode, output.decode(), errors.decode()


@asynccontextmanager
async def measuring(
    server: Withholding, *options: str, through: Sequence[str] = TAKES_CTRL_C
) -> AsyncIterator[Bench]:
    """Run `qlm bench` through another program until some requests have arrived at a server."""
    async with serving(server.respond) as target:
        command = (*through, str(QLM), "bench", target.url, *LOAD, *options)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            await until(lambda: server.arrived >= 3)
            yield Bench(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            server.released.set()


async def test_what_was_sent_before_ctrl_c_is_awaited_reported_and_saved(tmp_path: Path) -> None:
    server, file = Withholding(), tmp_path / "a.json"
    async with measuring(server, "--repeat", "2", "--save", str(file)) as bench:
        await bench.interrupt()
        server.released.set()
        status, output, errors = await bench.end()
    report = json.loads(output)
    assert (report["requests"], report["answered"], report["runs"]) == (server.arrived, server.arrived, 1)
    assert errors == f"qlm: stopped after {server.arrived} of 200000 requests, which are reported\n"
    assert status == 1
    assert [len(run.requests) for run in read_runs(file)] == [server.arrived]


async def test_a_second_ctrl_c_gives_up_what_is_not_answered() -> None:
    async with measuring(Withholding()) as bench:
        await bench.interrupt()
        bench.process.send_signal(signal.SIGINT)
        status, output, errors = await bench.end()
    report = json.loads(output)
    assert report["errors"] == {"unfinished when it was stopped": report["requests"]}
    assert (status, errors.startswith("qlm: stopped after ")) == (1, True)


async def test_a_stop_within_the_warm_up_says_that_there_is_nothing_to_report() -> None:
    server = Withholding()
    async with measuring(server, "--skip", "90000") as bench:
        await bench.interrupt()
        server.released.set()
        ended = await bench.end()
    assert ended == (1, "", "qlm: stopped before there is anything to report, with --skip 90000\n")


async def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    server = Withholding()
    async with measuring(server, through=("sh", "-c", "trap '' INT; exec \"$@\"", "sh")) as bench:
        bench.process.send_signal(signal.SIGINT)
        arrived = server.arrived
        await until(lambda: server.arrived > arrived + 10)
