"""Work of a gateway worker, which `worker_program` starts."""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
from contextlib import AsyncExitStack
from typing import Final

from qlm.cli.config.listeners.access import connection_limits
from qlm.cli.config.settings import StopConfig
from qlm.cli.processes.ending import limited_end, run_process
from qlm.cli.processes.frames import Link, Message
from qlm.cli.processes.heartbeat import beat
from qlm.cli.processes.remote import GONE, Calls, RemoteBroker, RemoteRetries, remote_store
from qlm.cli.processes.totals import families_of
from qlm.cli.processes.workers import WorkerTask
from qlm.cli.rendering.tiers import render_tiers
from qlm.cli.runtime.backends import Backends, broker_client
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.listeners import client_server, gateway_of
from qlm.cli.runtime.logs import log_to_stderr
from qlm.cli.runtime.telemetry import Telemetry, open_telemetry
from qlm.domain.ports.broker import Broker
from qlm.domain.shell.heap import settle_heap
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.http.server import QuietServer, stop_serving
from qlm.gateway.sessions.hub import Hub

METRICS_S: Final = 2.0
"""Time between two reports of metrics to the owner."""

_END_S: Final = 3.0
"""Time to end at once, in which refusals are written; the owner waits for longer."""

log = logging.getLogger("qlm.cli")


def run(link_fd: int, listener_fd: int) -> None:
    """Read the task from standard input, and serve until stopped.

    Args:
        link_fd: Descriptor of the link to the owner.
        listener_fd: Descriptor of the socket that listens.
    """
    task: WorkerTask = pickle.loads(sys.stdin.buffer.read())  # from the process that started this one
    link, listener = socket.socket(fileno=link_fd), socket.socket(fileno=listener_fd)
    log_to_stderr(task.level, task.log_format)
    with limited_end():
        run_process(_work(task, link, listener))


class Stop:
    """State of the end of a worker.

    Attributes:
        asked: Set when it is to end.
        at_once: Set when it is to end without notice and grace period.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self._signals = 0

    def ask(self, at_once: bool = False) -> None:
        """Tell the worker to end, as its owner does."""
        self.asked.set()
        if at_once:
            self.at_once.set()

    def signal(self) -> None:
        """Take a signal, the second of which means at once: one may go to owner and workers together."""
        self._signals += 1
        self.ask(self._signals > 1)


async def _work(task: WorkerTask, link: socket.socket, listener: socket.socket) -> None:
    calls, stop = Calls(), Stop()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.signal)

    def receive(message: Message) -> None:
        if not calls.receive(message) and message[0] == "stop":
            stop.ask(*message[1:])

    _, calls.link = await asyncio.get_running_loop().create_unix_connection(
        lambda: Link(receive, _exit_without_owner), sock=link
    )

    async def open_broker() -> Broker:
        return RemoteBroker(calls)

    config, clock = task.config, SystemClock(task.clock)
    async with AsyncExitStack() as stack:
        telemetry = open_telemetry(config, clock, stack, part="gateway", controller=False)
        opened = Backends(remote_store(calls), open_broker, embedded=False)
        backends = await stack.enter_async_context(telemetry.health.watching(opened))
        beside = [asyncio.create_task(each) for each in (_report(calls.link, telemetry), beat(calls.link))]
        stack.push_async_callback(end_tasks, beside)
        await _serve(task, backends, clock, telemetry, listener, stop, calls)


async def _serve(
    task: WorkerTask,
    backends: Backends,
    clock: SystemClock,
    telemetry: Telemetry,
    listener: socket.socket,
    stop: Stop,
    calls: Calls,
) -> None:
    config, link = task.config, calls.link
    assert link is not None
    async with render_tiers(config, clock) as tiers, broker_client(backends) as broker:
        gateway = gateway_of(config, backends, broker, clock, telemetry, tiers)
        gateway.intake.share_retries(RemoteRetries(calls))
        limits, _ = connection_limits(config)
        server = client_server(config, gateway, limits_of_each(limits, config.http.workers))
        async with gateway.running():
            settle_heap()
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            stopped = asyncio.create_task(stop.asked.wait())
            link.send("ready")
            try:
                await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks([stopped])
                await _stop_serving(server, serving, gateway.hub, config.stop, stop.at_once)


async def _stop_serving(
    server: QuietServer,
    serving: "asyncio.Task[None]",
    hub: Hub,
    times: StopConfig,
    at_once: asyncio.Event,
) -> None:
    stopping = asyncio.create_task(
        stop_serving(server, serving, hub, notice_s=times.notice_s, grace_s=times.grace_s)
    )
    at_once_asked = asyncio.create_task(at_once.wait())
    try:
        await asyncio.wait({stopping, at_once_asked}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            stopping.result()
    finally:
        await end_tasks([at_once_asked, stopping], grace_s=_END_S)


def limits_of_each(limits: ConnectionLimits, workers: int) -> ConnectionLimits:
    """Return the limits of each of some workers that accept from one listener.

    They share the memory for unfinished bodies. Connections they do not share evenly: one may take most of a
    burst, so each may have as many as the listener.
    """
    return limits.model_copy(update={"unfinished_bytes_max": -(-limits.unfinished_bytes_max // workers)})


async def _report(link: Link, telemetry: Telemetry) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(METRICS_S)
            link.send("metrics", families_of(telemetry.registry))
    link.send("metrics", families_of(telemetry.registry))


def _exit_without_owner() -> None:
    """End without a word to clients, whose streams break: they resume once the owner runs again."""
    log.error("a gateway worker ends: %s", GONE)
    logging.shutdown()
    os._exit(1)
