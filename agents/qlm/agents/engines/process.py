"""Engine subprocess that never outlives its agent."""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qlm.agents.engines import guard
from qlm.agents.engines.orphans import OrphanError, kill_orphans_of
from qlm.domain.errors import EngineUnavailableError

log = logging.getLogger("qlm.agents")

_POLL_S: Final = 0.1
_GUARD_S: Final = 10.0
"""Time in which a guard kills its engine; one that stands still is killed, and the kernel ends the engine."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size from which on a log is set aside at the next start of its engine."""

_TAIL_BYTES: Final = 16_384
_TAIL_LINES: Final = 40


OWN_PREFIXES: Final = ("QLM_", "RAY_AUTH_TOKEN")
"""Beginnings of the names of variables with secrets of the deployment: of QLM itself, and of its Ray."""


def set_aside(log_file: Path) -> None:
    """Rename a log that is too long, with `.1` after its name, in place of the one before."""
    with contextlib.suppress(OSError):  # there is none yet; or it goes on in this one
        if log_file.stat().st_size > LOG_BYTES_MAX:
            log_file.replace(log_file.with_name(f"{log_file.name}.1"))


@dataclass(frozen=True, slots=True)
class EngineExit:
    """End of an engine process.

    Attributes:
        return_code: Of its main process; 128 + n after signal n, negative if its guard was killed.
        log_tail: The end of its log.
    """

    return_code: int
    log_tail: str


class EngineProcess:
    """One engine under a guard process (see `guard`): `start` once, `wait_ready`, finally `stop`.

    Create it inside the event loop that will supervise it.

    Args:
        name: For messages and the state file.
        env: Variables added to the agent's own, of which the engine gets all but those of QLM, the token of
            Ray, and those withheld: the addresses of broker and store have passwords.
        withheld: Names of further variables with secrets of the deployment.
        log_file: Receives the engine's output; appended to, or if it is long, begun anew beside its `.1`.
        state_folder: Folder in which later agents find orphans; one for all agents of a machine.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log_file: Path,
        state_folder: Path,
        withheld: Collection[str] = (),
    ) -> None:
        self.name = name
        self.log_file = log_file
        self.exited: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()
        self._command = tuple(command)
        self._env = dict(env)
        self._withheld = frozenset(withheld)
        self._marker = secrets.token_hex(16)
        self._state_file = state_folder / f"{name.replace('/', '_')}-{self._marker}.json"
        self._guard: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine; returns at once, see `wait_ready`."""
        if self._guard is not None:
            raise RuntimeError(f"engine {self.name} was started already")
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        set_aside(self.log_file)
        with self.log_file.open("ab") as log:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable, "-IS", str(guard.__file__), str(self._state_file), self._marker, "--",
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**_inherited(os.environ, self._withheld), **self._env},
                start_new_session=True,
            )  # fmt: skip
        self._watch = asyncio.create_task(self._wait(self._guard))

    @property
    def started(self) -> bool:
        """True once its processes may run; False if `start` was cancelled or has failed."""
        return self._guard is not None

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], *, timeout_s: float) -> None:
        """Wait until `probe`, such as `VllmEngine.healthy`, returns True.

        Raises:
            EngineUnavailableError: The engine ended, or was not ready in time; holds the end of its log.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.exited.done():
                    if await probe():
                        return
                    await asyncio.wait([self.exited], timeout=_POLL_S)
        except TimeoutError:
            why = f"engine {self.name} was not ready after {timeout_s:.0f} s"
            raise EngineUnavailableError(f"{why}\n{self._log_tail()}") from None
        end = self.exited.result()
        why = f"engine {self.name} ended with code {end.return_code} before it was ready"
        raise EngineUnavailableError(f"{why}\n{end.log_tail}")

    async def stop(self, grace_s: float) -> EngineExit:
        """Terminate the engine, kill it after `grace_s` seconds; return once all its processes are gone."""
        if self._guard is None:
            raise RuntimeError(f"engine {self.name} was not started")
        for command, within_s in ((guard.TERMINATE, grace_s), (guard.KILL, _GUARD_S)):
            self._send(command)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    return await asyncio.shield(self.exited)
        if self._guard.returncode is None:
            self._guard.kill()
        return await asyncio.shield(self.exited)

    def _log_tail(self) -> str:
        """Return the last lines of its log, under the log's path."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            text = f"(cannot be read: {error.strerror})"
        return "\n".join([f"--- {self.log_file}, last lines", *text.splitlines()[-_TAIL_LINES:]])

    def _send(self, command: bytes) -> None:
        pipe = self._guard.stdin if self._guard else None
        if pipe is not None and not self.exited.done():
            pipe.write(command)

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        """Report the end; if the guard was killed, first kill what it would have killed."""
        code = await process.wait()
        while code < 0:
            try:
                await asyncio.to_thread(kill_orphans_of, self._state_file)
                break
            except OrphanError as error:
                # The engine has not ended yet: `exited` stays open, and the kill is repeated.
                log.error("engine %s: %s", self.name, error)
        if process.stdin is not None:
            process.stdin.close()
        self.exited.set_result(EngineExit(code, self._log_tail()))


def _inherited(environment: Mapping[str, str], withheld: Collection[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in withheld and not name.startswith(OWN_PREFIXES)
    }
