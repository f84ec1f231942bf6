"""Gateway workers: one that starts while its owner stops, that cannot be started, or that hangs."""

import asyncio
import logging
import pickle
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contract.suites.store.values import LIMITS
from qlm.cli.config.settings import parse_config
from qlm.cli.processes.frames import Link
from qlm.cli.processes.heartbeat import Silence, Watch
from qlm.cli.processes.workers import Workers, WorkerTask
from qlm.cli.runtime.backends import Backends
from qlm.cli.runtime.clock import SystemClock as ProcessClock
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ports.broker import Broker
from qlm.domain.shell.tasks import end_tasks
from qlm.domain.steady_clock import SteadyClock
from qlm.store.embedded.memory import MemoryStore
from support.gateway import SystemClock, until
from support.qlm_process import emulated

GRACE_S = 60.0
LIMIT_S = 60.0

ONE_MESSAGE = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"
"""A worker that ends with the first message."""


HANGS = """
import signal, socket, sys
from qlm.cli.processes.frames import encode
link = socket.socket(fileno=int(sys.argv[1]))
link.send(encode([("ready",)]))
signal.pause()
"""
"""A worker that serves, and sends nothing any more."""


async def no_broker() -> Broker:
    raise BrokerUnavailableError("there is none")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def workers_at(
    listener: socket.socket, *program: str, silence_max_s: float = 600.0, clock: SteadyClock | None = None
) -> Workers:
    config = parse_config(emulated("m", http={"workers": 1}, stop={"grace_s": GRACE_S}), "test")
    backends = Backends(MemoryStore(SystemClock(), LIMITS), no_broker, embedded=True)
    task = WorkerTask(config, logging.INFO, "text")
    return Workers(task, clock or ProcessClock(), listener, backends, None, program, silence_max_s)


async def test_a_stop_reaches_workers_that_are_being_started_and_closes_the_listener(
    listener: socket.socket,
) -> None:
    address = listener.getsockname()
    workers = workers_at(listener, sys.executable, "-c", ONE_MESSAGE)
    running = asyncio.create_task(workers.run())
    for _ in range(2):
        await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        await workers.stop()
        await running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_a_worker_that_cannot_be_started_is_tried_again(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    workers = workers_at(listener, "/no/such/program")
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: "cannot be started" in caplog.text or running.done())
        await workers.stop()
        await running


async def test_a_worker_that_hangs_is_killed_and_started_again(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    workers = workers_at(listener, sys.executable, "-c", HANGS, silence_max_s=1.0)
    caplog.set_level(logging.INFO, "qlm.cli")
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: caplog.text.count("serves as process") > 1 or running.done(), LIMIT_S)
        await end_tasks([running])
    assert "gateway worker 1 ended (it hangs: no sign of life for 1 s); it starts again" in caplog.text


async def test_each_worker_goes_on_with_the_present_time_of_its_owner(
    listener: socket.socket, tmp_path: Path
) -> None:
    written = tmp_path / "task"
    program = f"import pathlib, sys; pathlib.Path({str(written)!r}).write_bytes(sys.stdin.buffer.read())"
    wall = [1_000]
    clock = SteadyClock(lambda: wall[0], lambda: 0)
    wall[0] = 400  # it is set back once the owner runs
    workers = workers_at(listener, sys.executable, "-c", program, clock=clock)
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: written.exists() and written.stat().st_size > 0, LIMIT_S)
        await workers.stop(at_once=True)
        await running
    task: WorkerTask = pickle.loads(written.read_bytes())
    assert task.clock == clock.state()
    assert SteadyClock(lambda: wall[0], lambda: 0, begun=task.clock).now_ns() == 1_000


def test_silence_counts_looks_in_a_row_at_which_a_sign_is_due() -> None:
    silence = Silence(2, 4)
    starting = [silence.look((0, 0), serves=False, expected=True) for _ in range(4)]
    assert starting == [False, False, False, True]
    assert not silence.look((1, 0), serves=True, expected=True)
    assert not silence.look((1, 0), serves=True, expected=True)
    assert not silence.look((1, 0), serves=True, expected=False)
    assert not silence.look((1, 0), serves=True, expected=True)
    assert silence.look((1, 0), serves=True, expected=True)
    assert not silence.look((1, 7), serves=True, expected=True)


@asynccontextmanager
async def paused_link() -> AsyncIterator[tuple[Link, socket.socket]]:
    """Yield a link whose owner reads nothing, and the worker's end, which nobody reads."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: Link(lambda _: None, lambda: None), sock=ours)
    link.pause_reading(True)
    try:
        yield link, theirs
    finally:
        theirs.close()
        link.close()


async def test_a_worker_that_takes_no_answers_hangs_though_its_calls_are_not_read() -> None:
    watch = Watch(0.001, 0.002, 0.003)
    watch.serves = True
    async with paused_link() as (link, _):
        link.send("done", 1, bytes(1 << 23))
        await until(lambda: link.behind, LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            await watch.hangs(link)


async def test_a_worker_that_takes_answers_gives_signs_of_life_though_its_calls_are_not_read() -> None:
    async with paused_link() as (link, theirs):
        link.send("done", 1, bytes(1 << 23))
        await until(lambda: link.behind, LIMIT_S)
        before = link.signs
        async with asyncio.timeout(LIMIT_S):
            while link.signs == before:
                await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        assert link.signs > before
        assert link.behind
