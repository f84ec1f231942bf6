"""Gateway workers of one `qlm serve`: started, started again when they end or hang, and stopped."""

import asyncio
import contextlib
import logging
import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config
from qlm.cli.processes.answering import Answering
from qlm.cli.processes.frames import Link, Message
from qlm.cli.processes.heartbeat import BEAT_S, SILENCE_MAX_S, START_MAX_S, Watch, ended_or_hangs
from qlm.cli.processes.shared_retries import SharedRetries
from qlm.cli.processes.totals import WorkerTotals
from qlm.cli.runtime.backends import Backends
from qlm.cli.runtime.logs import LogFormat
from qlm.domain.shell.tasks import end_tasks
from qlm.domain.steady_clock import ClockState, SteadyClock

log = logging.getLogger("qlm.cli")

PAUSE_S: Final = 0.25
"""Pause before a worker is started again; it doubles with each start that does not last."""

PAUSE_MAX_S: Final = 10.0

LASTS_S: Final = 60.0
"""Life of a worker after which its next pause is the shortest again."""

STOP_S: Final = 5.0
"""Time of a worker to end beyond its notice and grace."""

# Without -P, modules of the current folder would hide installed ones.
PROGRAM: Final = (sys.executable, "-P", "-m", "qlm.cli.processes.worker_program")
"""Command line of a worker, to which two descriptors are added: of its link and of the listening socket."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker is to do, as it reads it from its input.

    Attributes:
        config: The whole configuration.
        level: Level of its log.
        log_format: Format of its log.
        clock: State of the owner's clock when the worker starts: both must agree on what is late.
    """

    config: Config
    level: int
    log_format: LogFormat
    clock: ClockState | None = None


def check_workers(config: Config) -> None:
    """Check that workers can share what they need.

    Raises:
        ConfigError: They cannot.
    """
    if not config.http.workers:
        return
    if not config.embedded:
        raise ConfigError(
            f"http.workers is {config.http.workers}, and the broker a server; expected 0: run more gateways"
        )
    for model in config.models:
        if model.engine == "vllm" and model.render is not None and model.render.url is None:
            raise ConfigError(
                f"http.workers is {config.http.workers}, and {model.id} has a render tier without a url; "
                "expected 0, or the url of a tier that runs by itself"
            )


class Workers:
    """The workers of one listening socket.

    Args:
        task: What each of them does.
        clock: Clock of this process, with which each of them goes on.
        listener: Socket that listens; connections wait there while no worker runs.
        backends: Queue and state.
        totals: Takes their metrics.
        program: Command line of a worker, as `PROGRAM`.
        silence_max_s: A worker that sends nothing for this time hangs, and is replaced.
    """

    def __init__(
        self,
        task: WorkerTask,
        clock: SteadyClock,
        listener: socket.socket,
        backends: Backends,
        totals: WorkerTotals | None,
        program: tuple[str, ...] = PROGRAM,
        silence_max_s: float = SILENCE_MAX_S,
    ) -> None:
        self._task = task
        self._clock = clock
        self._listener = listener
        self._backends = backends
        self._totals = totals
        self._program = program
        self._silence_max_s = silence_max_s
        self._retries = SharedRetries()
        self._links: dict[int, Link] = {}
        self._stopping = asyncio.Event()
        self._at_once = False
        self._running: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Keep the workers running until `stop`."""
        numbers = range(1, self._task.config.http.workers + 1)
        self._running = [asyncio.create_task(self._keep(number)) for number in numbers]
        try:
            await asyncio.gather(*self._running)
        finally:
            await end_tasks(self._running)

    async def stop(self, *, at_once: bool = False) -> None:
        """Let all end as their configuration says; at once if told so, or if cancelled.

        The last closes the listener.
        """
        self._stopping.set()
        self._listener.close()  # else connections would wait here for workers that accept none any more
        times = self._task.config.stop
        try:
            await self._stop_all(at_once, 0.0 if at_once else times.notice_s + times.grace_s)
        except asyncio.CancelledError:
            await self._stop_all(True, 0.0)
            raise
        finally:
            await end_tasks(self._running)

    async def _stop_all(self, at_once: bool, limit_s: float) -> None:
        self._at_once = at_once
        for link in self._links.values():
            link.send("stop", at_once)
        if self._running:
            await asyncio.wait(self._running, timeout=limit_s + STOP_S)

    async def _keep(self, number: int) -> None:
        pause_s = PAUSE_S
        while not self._stopping.is_set():
            began_s = asyncio.get_running_loop().time()
            try:
                how = await self._run(number)
            except OSError as error:  # too many processes or descriptors, for now
                how = f"it cannot be started: {error}"
            if self._stopping.is_set():
                return
            lasted = asyncio.get_running_loop().time() - began_s > LASTS_S
            pause_s = PAUSE_S if lasted else pause_s
            log.error("gateway worker %d ended (%s); it starts again in %g s", number, how, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _run(self, number: int) -> str:
        """Run a worker once; return how it ended."""
        answering = Answering(self._backends.store, self._backends.open_broker, self._retries)
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unused:
            unused.enter_context(ours)
            fds = theirs.fileno(), self._listener.fileno()
            process = await asyncio.create_subprocess_exec(
                *self._program, *map(str, fds), pass_fds=fds, stdin=asyncio.subprocess.PIPE
            )
            unused.pop_all()
        link, watch = None, Watch(BEAT_S, self._silence_max_s, START_MAX_S)
        try:
            make = self._link(number, answering, process, watch)
            _, link = await asyncio.get_running_loop().create_unix_connection(make, sock=ours)
            answering.link = self._links[number] = link
            if self._stopping.is_set():  # while it was started
                link.send("stop", self._at_once)
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(pickle.dumps(replace(self._task, clock=self._clock.state())))
                await process.stdin.drain()
                process.stdin.close()
            return await self._how_it_ends(process, watch, link)
        finally:
            self._links.pop(number, None)
            _kill(process)
            if link is not None:
                link.close()
            await answering.end()
            if self._totals is not None:
                self._totals.ended(number)
            await process.wait()

    async def _how_it_ends(self, process: asyncio.subprocess.Process, watch: Watch, link: Link) -> str:
        if await ended_or_hangs(process, watch, link) and not self._stopping.is_set():
            limit_s = self._silence_max_s if watch.serves else START_MAX_S
            return f"it hangs: no sign of life for {limit_s:g} s"
        code = await process.wait()  # a stop has its own limit
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _link(
        self, number: int, answering: Answering, process: asyncio.subprocess.Process, watch: Watch
    ) -> Callable[[], Link]:
        def receive(message: Message) -> None:
            match message:
                case ("beat",):
                    pass
                case ("metrics", families) if self._totals is not None:
                    self._totals.put(number, families)
                case ("ready",):
                    watch.serves = True
                    log.info("gateway worker %d serves as process %d", number, process.pid)
                case _:
                    answering.receive(message)

        # A worker whose link is closed cannot do anything.
        return lambda: Link(receive, lambda: _kill(process))


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()
