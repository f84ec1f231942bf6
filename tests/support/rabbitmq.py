"""A private RabbitMQ node for tests, on loopback ports of its own."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from support.ports import free_port
from support.process import ServerProcess

MEMORY_MAX = "256MiB"
_DEBIAN_PROGRAMS = "/usr/lib/rabbitmq/bin"


def missing() -> str | None:
    """Say what to install, or None when RabbitMQ is there."""
    if program("rabbitmq-server") and program("epmd"):
        return None
    return "rabbitmq-server is not installed (scripts/install_servers.sh installs it)"


def program(name: str) -> str | None:
    """Find a program of RabbitMQ or Erlang."""
    # Debian's wrapper in /usr/sbin changes the user to rabbitmq; the script behind it runs as anyone.
    return shutil.which(name, path=f"{_DEBIAN_PROGRAMS}:{os.environ.get('PATH', '')}")


class RabbitMQ:
    """A running node; `kill` and `start` play a crash and its recovery on the same data."""

    def __init__(self, folder: Path, *, consumer_timeout_ms: int | None = None) -> None:
        """Prepare a node.

        Args:
            folder: Takes its data, settings, cookie and log.
            consumer_timeout_ms: How long a delivery may stay unacknowledged before the node closes the
                channel; checked every second. None keeps RabbitMQ's 30 minutes.
        """
        server, epmd = program("rabbitmq-server"), program("epmd")
        if server is None or epmd is None:
            raise FileNotFoundError(missing())
        self.port = free_port()
        self.folder = folder
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        epmd_port = free_port()
        _write_settings(folder, consumer_timeout_ms)
        self._env = env = node_environment(folder, self.port, epmd_port)
        # The node would start the Erlang port mapper as a daemon that outlives it: start it ourselves.
        self._epmd = ServerProcess(
            "epmd", [epmd, "-address", "127.0.0.1", "-port", str(epmd_port)], env=env, folder=folder
        )
        self._node = ServerProcess("rabbitmq", [server], env=env, folder=folder)

    @property
    def pid(self) -> int:
        """The id of its process, and of its process group."""
        return self._node.pid

    def start(self, *, timeout_s: float = 60.0) -> float:
        """Start, wait until it takes AMQP connections, and return the seconds that took."""
        if not self._epmd.alive:
            self._epmd.start()
        self._node.start()
        return self._node.wait_ready(self._answers, timeout_s=timeout_s)

    def kill(self) -> None:
        """End the node with SIGKILL, as a crash would."""
        self._node.kill()

    def close(self) -> None:
        """End the node and its port mapper for good."""
        self._node.kill()
        self._epmd.kill()

    def sync_declarations(self) -> None:
        """Write to disk what says that earlier declarations of queues are committed.

        RabbitMQ 3.10 confirms a declaration before that, up to 2 s: a node killed within them forgets the
        queue, with its confirmed messages (seen in 3 of 75 kills right after a declaration).
        """
        # Its Mnesia syncs the transaction, and leaves the decision on it to another process, unsynced.
        self.control("eval", "sys:get_state(mnesia_recover), mnesia:sync_log().")

    def control(self, *arguments: str) -> None:
        """Run `rabbitmqctl` on the node."""
        tool = program("rabbitmqctl")
        assert tool is not None
        subprocess.run([tool, *arguments], env=self._env, check=True, stdout=subprocess.DEVNULL, timeout=180)

    def log(self) -> str:
        """What it has said so far: warnings and errors."""
        return self._node.log_file.read_text("utf-8", errors="replace")

    def _answers(self) -> bool:
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except AMQPError:
            return False
        return True


@contextlib.contextmanager
def running_rabbitmq(*, consumer_timeout_ms: int | None = None) -> Iterator[RabbitMQ]:
    """Run a private node for the time of the block; its data goes away with it."""
    with tempfile.TemporaryDirectory(prefix="qlm-rabbitmq-") as folder:
        node = RabbitMQ(Path(folder), consumer_timeout_ms=consumer_timeout_ms)
        try:
            node.start()
            yield node
        finally:
            node.close()


def _write_settings(folder: Path, consumer_timeout_ms: int | None) -> None:
    settings = [
        f"vm_memory_high_watermark.absolute = {MEMORY_MAX}",
        "disk_free_limit.absolute = 50MB",
        "log.console = true",
        "log.console.level = warning",
        "log.file = false",
    ]
    if consumer_timeout_ms is not None:
        settings.append(f"consumer_timeout = {consumer_timeout_ms}")
    (folder / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
    (folder / "enabled_plugins").write_text("[].\n")


def node_environment(folder: Path, port: int, epmd_port: int) -> dict[str, str]:
    """Return the environment of a node on loopback, all of whose files lie in `folder`."""
    erlang = [
        "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",  # two threads that sleep when there is no work
        "-kernel inet_dist_use_interface {127,0,0,1}",
        "-rabbit channel_tick_interval 1000",  # how often consumer_timeout is looked at
    ]
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LANG": "C.UTF-8",
        "HOME": str(folder),  # the Erlang cookie lies here
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_CRASH_DUMP_SECONDS": "0",
        "RABBITMQ_NODENAME": f"qlm-test-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "no-such.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(erlang),
    }
