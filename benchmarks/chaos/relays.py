"""Relays between processes of the rig and its servers; a relay is a process of its own."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.relay import LOOPBACK
from support.ports import free_port
from support.process import ServerProcess

SERVERS: Final = ("broker", "store")
READY_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relays:
    """The relay process and its routes.

    Attributes:
        control: Its port for commands.
        ports: Port by process and server, such as `gateway-0/store`.
    """

    control: int
    ports: Mapping[str, int]

    def config(self, process: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration of a process, with the addresses of its relays."""
        changed = dict(config)
        for server in SERVERS:
            if port := self.ports.get(f"{process}/{server}"):
                scheme, _, rest = config[server].partition("://")
                user, at, address = rest.rpartition("@")
                _, _, path = address.partition("/")
                changed[server] = f"{scheme}://{user}{at}{LOOPBACK}:{port}/{path}"
        return changed

    def hold(self, process: str, server: str, direction: str) -> None:
        """Hold back what a process sends to a server (`to`), or gets from it (`from`)."""
        self._send(f"hold {process}/{server} {direction}")

    def heal(self, process: str, server: str, *, reset: bool) -> None:
        """Deliver what was held back, or reset its connections."""
        self._send(f"{'cut' if reset else 'pass'} {process}/{server}")

    def _send(self, command: str) -> None:
        with socket.create_connection((LOOPBACK, self.control), timeout=10) as connection:
            connection.sendall(f"{command}\n".encode())
            answer = connection.recv(16)
        if answer != b"ok\n":
            raise RuntimeError(f"the relay did not carry out {command!r}")


@contextlib.contextmanager
def running_relays(
    processes: Sequence[str], broker_port: int, store_port: int, folder: Path
) -> Iterator[Relays]:
    """Run the relays of these processes for the time of the block."""
    targets = {"broker": broker_port, "store": store_port}
    ports = {f"{process}/{server}": free_port() for process in processes for server in SERVERS}
    routes = [f"{name}:{port}:{targets[name.rpartition('/')[2]]}" for name, port in ports.items()]
    relays = Relays(control=free_port(), ports=ports)
    argv = [sys.executable, "-m", "benchmarks.chaos.relay", str(relays.control), *routes]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = ServerProcess("relay", argv, env=env, folder=folder)
    process.start()
    try:
        process.wait_ready(lambda: _answers(relays.control), timeout_s=READY_S)
        yield relays
    finally:
        process.kill()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False
