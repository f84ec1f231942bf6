"""A private Redis server for tests, on a loopback port of its own."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from support.ports import free_port
from support.process import ServerProcess

MEMORY_MAX = "256mb"


def missing() -> str | None:
    """Say what to install, or None when Redis is there."""
    return None if _program() else "redis-server is not installed (scripts/install_servers.sh installs it)"


def _program() -> str | None:
    return shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/sbin")


class RedisServer:
    """A running Redis; `kill` and `start` play a crash and its recovery on the same data."""

    def __init__(self, folder: Path, *, appendonly: bool) -> None:
        """Prepare a server whose data and log lie in `folder`; `appendonly` syncs each write to disk."""
        program = _program()
        if program is None:
            raise FileNotFoundError(missing())
        self.port = free_port()
        self.folder = folder
        self.url = f"redis://127.0.0.1:{self.port}/0"
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "always",
            "maxmemory": MEMORY_MAX,
            "maxmemory-policy": "noeviction",
        }
        argv = [program, *(word for key, value in settings.items() for word in (f"--{key}", value))]
        self._process = ServerProcess("redis", argv, env=os.environ, folder=folder)

    @property
    def pid(self) -> int:
        """The id of its process, and of its process group."""
        return self._process.pid

    def start(self, *, timeout_s: float = 20.0) -> float:
        """Start, wait until it answers, and return the seconds that took."""
        self._process.start()
        return self._process.wait_ready(self._answers, timeout_s=timeout_s)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._process.kill()

    def flush(self, *, read: str = "") -> list[bytes]:
        """Delete all data, as a Redis that came back empty would have lost it.

        Return what the list `read` held at that moment.
        """
        with contextlib.closing(redis.Redis.from_url(self.url)) as client, client.pipeline() as both:
            both.lrange(read, 0, -1)
            both.flushall()
            items: list[bytes] = both.execute()[0]
            return items

    def _answers(self) -> bool:
        with contextlib.closing(redis.Redis.from_url(self.url, socket_timeout=1.0)) as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):  # BusyLoadingError is a ConnectionError
                return False


@contextlib.contextmanager
def running_redis(*, appendonly: bool = False) -> Iterator[RedisServer]:
    """Run a private Redis for the time of the block; its data goes away with it."""
    with tempfile.TemporaryDirectory(prefix="qlm-redis-") as folder:
        server = RedisServer(Path(folder), appendonly=appendonly)
        try:
            server.start()
            yield server
        finally:
            server.kill()
