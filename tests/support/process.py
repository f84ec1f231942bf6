"""A server process that a test starts, kills without mercy, and never leaves behind."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support import watchdog


class ServerProcess:
    """One server with all its children, in a process group of its own.

    Start it again after `kill` to play a crash: the arguments stay the same, and so does the log file.
    """

    def __init__(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], folder: Path) -> None:
        """Describe the server; nothing runs yet.

        Args:
            name: What messages and the log file call it.
            argv: The command line.
            env: The whole environment of the server.
            folder: Its working directory, which also takes the log.
        """
        self.name = name
        self.log_file = folder / f"{name}.log"
        self.argv = list(argv)
        self._env = dict(env)
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the server and of its process group."""
        if self._server is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._server.pid

    @property
    def alive(self) -> bool:
        """Whether the server itself runs; its children may outlive it."""
        return self._server is not None and self._server.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the server itself ended; None while it runs."""
        return None if self._server is None else self._server.poll()

    def start(self) -> None:
        """Start the server; returns at once, see `wait_ready`."""
        if self.alive:
            raise RuntimeError(f"{self.name} runs already, as process {self.pid}")
        with self.log_file.open("ab") as log:
            self._server = subprocess.Popen(
                self.argv,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            [sys.executable, "-IS", watchdog.__file__, str(self._server.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float) -> float:
        """Wait until `ready()` is true.

        Args:
            ready: Asks the server; may raise OSError while it is not up.
            timeout_s: How long to wait before giving up.

        Returns:
            The seconds waited.

        Raises:
            RuntimeError: The server ended, or did not get ready in time; holds the end of its log.
        """
        started = time.monotonic()
        while (waited := time.monotonic() - started) < timeout_s:
            with contextlib.suppress(OSError):
                if ready():
                    return waited
            if not self.alive:
                raise RuntimeError(f"{self.name} ended while starting.\n{self.log_tail()}")
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} was not ready after {timeout_s:.0f} s.\n{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL the server and all its children, and wait until they are gone."""
        if self._server is None or self._watchdog is None:
            return
        watchdog.end_group(self._server.pid)
        self._server.wait()
        self._watchdog.kill()
        self._watchdog.communicate()
        self._server = self._watchdog = None

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log, under its path."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join([f"--- {self.log_file}, last {lines} lines", *text.splitlines()[-lines:]])
