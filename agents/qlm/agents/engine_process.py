"""Running one engine as a subprocess that never outlives its agent."""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qlm.agents import guard
from qlm.agents.engine_sweep import LeftoverError, sweep_one
from qlm.domain.errors import EngineUnavailableError

log = logging.getLogger("qlm.agents")

_POLL_S: Final = 0.1
_TAIL_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class EngineExit:
    """How an engine process ended.

    Attributes:
        return_code: Of its main process; 128 + n after signal n, negative if its guard was killed.
        log_tail: The end of its log.
    """

    return_code: int
    log_tail: str


class EngineProcess:
    """One engine under a guard; see `guard` for who kills whom.

    Describe it, `start`, `wait_ready`, and `stop` in the end. It cannot be started twice.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log_file: Path,
        state_folder: Path,
    ) -> None:
        """Describe an engine, inside the event loop that will watch it; nothing runs yet.

        Args:
            name: For messages and the state file.
            command: The command line.
            env: Variables added to the agent's own.
            log_file: Takes its output; appended to.
            state_folder: Where a later agent finds what to sweep; one folder for all agents of a machine.
        """
        self.name = name
        self.log_file = log_file
        self.exited: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()
        self._command = tuple(command)
        self._env = dict(env)
        self._marker = secrets.token_hex(16)
        self._state_file = state_folder / f"{name.replace('/', '_')}-{self._marker}.json"
        self._guard: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._guard is not None and not self.exited.done()

    async def start(self) -> None:
        """Start the engine; returns at once, see `wait_ready`."""
        if self._guard is not None:
            raise RuntimeError(f"engine {self.name} was started already")
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable, "-IS", str(guard.__file__), str(self._state_file), self._marker, "--",
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env},
                start_new_session=True,
            )  # fmt: skip
        self._watch = asyncio.create_task(self._wait(self._guard))

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], *, timeout_s: float) -> None:
        """Wait until the engine answers.

        Args:
            probe: Asks it, `VllmEngine.healthy` for instance.
            timeout_s: How long it may take.

        Raises:
            EngineUnavailableError: It ended, or takes too long; holds the end of its log.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.exited.done():
                    if await probe():
                        return
                    await asyncio.wait([self.exited], timeout=_POLL_S)
        except TimeoutError:
            why = f"engine {self.name} was not ready after {timeout_s:.0f} s"
            raise EngineUnavailableError(f"{why}\n{self.log_tail()}") from None
        end = self.exited.result()
        why = f"engine {self.name} ended with code {end.return_code} before it was ready"
        raise EngineUnavailableError(f"{why}\n{end.log_tail}")

    async def stop(self, grace_s: float) -> EngineExit:
        """Ask the engine to end, kill it after `grace_s` seconds, and wait until all of it is gone."""
        if self._guard is None:
            raise RuntimeError(f"engine {self.name} was not started")
        self._order(b"T")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await asyncio.shield(self.exited)
        self._order(b"K")
        return await asyncio.shield(self.exited)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of its log, under the log's path."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            text = f"(cannot be read: {error.strerror})"
        return "\n".join([f"--- {self.log_file}, last lines", *text.splitlines()[-lines:]])

    def _order(self, order: bytes) -> None:
        pipe = self._guard.stdin if self._guard else None
        if pipe is not None and not self.exited.done():
            pipe.write(order)

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        """Note the end; if the guard was killed, do what it would have done."""
        code = await process.wait()
        while code < 0:
            try:
                await asyncio.to_thread(sweep_one, self._state_file)
                break
            except LeftoverError as error:  # it has not ended yet: who waits for that waits on
                log.error("engine %s: %s", self.name, error)
        if process.stdin is not None:
            process.stdin.close()
        self.exited.set_result(EngineExit(code, self.log_tail()))
