"""QLM with its agents under Ray, as a process under test: what it says of its agents, what runs below it."""

import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qlm.agents.engines.guard import descendants, process_stat, start_ticks
from support import ray_nodes
from support.needs import need
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QlmProcess

_PLACED = re.compile(r"(\S+): agent runs under Ray, in process (\d+)")

READY_S = 240.0
"""Ray itself takes a dozen processes to start: seconds, or minutes on a busy machine."""

_LISTENING = "0A"
_LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}

Process = tuple[int, int | None]
"""Id and start time of a process: ids are used again."""


def placed(log: str) -> dict[str, int]:
    """Process of the agent of each instance, the newest that the log tells of."""
    return {name: int(pid) for name, pid in _PLACED.findall(log)}


def node_of(pid: int) -> str:
    """Command line of the parent of an agent's process: the raylet of a node, with what the node offers."""
    parent = process_stat(pid)[1]
    return Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def below(pid: int) -> set[Process]:
    """All live processes below one."""
    return {(each, start_ticks(each)) for each in descendants(pid)}


def left(processes: set[Process]) -> set[Process]:
    """Those of some processes that still live."""
    return {(pid, started) for pid, started in processes if started and start_ticks(pid) == started}


def open_to_others(processes: set[Process]) -> set[int]:
    """Those of some processes that listen on TCP ports beyond the loopback interface."""
    sockets = {
        f"socket:[{fields[9]}]"
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        for fields in [line.split()]
        if fields[3] == _LISTENING and fields[1].partition(":")[0] not in _LOOPBACK
    }
    return {pid for pid, _ in processes if sockets & _opened(pid)}


def _opened(pid: int) -> set[str]:
    opened = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            opened.add(str(file.readlink()))
    return opened


def wait_gone(processes: set[Process]) -> None:
    """Wait until none of some processes lives: a worker of Ray's ends when it misses its node."""
    deadline_s = time.monotonic() + READY_S
    while found := left(processes):
        assert time.monotonic() < deadline_s, f"left behind: {found}"
        time.sleep(0.05)


@contextmanager
def need_ray() -> Iterator[Path]:
    """Skip without Ray, fail where it has to be; give a folder, where Ray keeps its files too.

    Its path is short: Ray has sockets below it.
    """
    if importlib.util.find_spec("ray") is None:
        need("Ray is not installed: install the extra `ray`")
    with _folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")  # the token would be written into the home directory
        yield Path(folder)


def _folder() -> tempfile.TemporaryDirectory[str]:
    # What writes its log there while it is deleted does not matter any more.
    return tempfile.TemporaryDirectory(prefix="qlm-ray-", ignore_cleanup_errors=True)


def part(name: str, *arguments: str, config: Mapping[str, Any], folder: Path) -> QlmProcess:
    """Describe a process of QLM with a data folder and a port of its own."""
    whole = {**config, "data_dir": str(folder / "data"), "http": {"port": free_port()}}
    return QlmProcess(name, *arguments, config=whole, folder=folder)


@contextmanager
def ray_cluster(folder: Path, *nodes: Mapping[str, float]) -> Iterator[str]:
    """Run a Ray cluster with a node for each of some custom resources; give the address of its head.

    What is started meanwhile finds it on the loopback interface.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # whatever its name says: loopback only
        with _nodes(folder, *nodes) as address:
            yield address


@contextmanager
def _nodes(folder: Path, *nodes: Mapping[str, float]) -> Iterator[str]:
    file = folder / "address"
    argv = [sys.executable, ray_nodes.__file__, str(file), *(json.dumps(dict(node)) for node in nodes)]
    server = ServerProcess("ray", argv, env=dict(os.environ), folder=folder)
    try:
        for last in (False, False, True):  # Ray gives itself 30 s, too little on a busy machine
            server.start()
            try:
                server.wait_ready(file.exists, timeout_s=READY_S)
                break
            except RuntimeError:
                server.kill()
                if last:
                    raise
        yield file.read_text()
    finally:
        if server.alive:
            running = below(server.pid)
            server.kill()
            wait_gone(running)
