"""Engine that the agent starts and stops: a guarded process and its client."""

import asyncio
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from qlm.agents.engines.attached import PROBES_MISSED_MAX, wait_unhealthy
from qlm.agents.engines.command import EngineCommand
from qlm.agents.engines.page_cache import WeightsCache
from qlm.agents.engines.process import EngineProcess
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.shell.tasks import end_tasks

STOP_GRACE_S: Final = 5.0
"""Time an engine has to end after SIGTERM before it is killed."""


class LaunchedEngine:
    """ManagedEngine that runs as a subprocess; each start is a new process on a new loopback port.

    Args:
        name: For messages, logs and the state file; unique on the machine.
        model: The name under which it serves.
        command: Returns the command line for a port.
        seqs_max: Its `--max-num-seqs`.
        batched_tokens_max: Its `--max-num-batched-tokens`.
        folder: For logs and state files.
        weights: Cache of the files that its starts and reloads read; None if they cannot be prefetched.
        sends_objectives: It has a batch policy, to which each call tells its objective.
        withheld: Names of variables that it does not inherit: they have secrets of the deployment.
    """

    def __init__(
        self,
        name: str,
        model: str,
        command: Callable[[int], EngineCommand],
        *,
        seqs_max: int,
        batched_tokens_max: int,
        folder: Path,
        ready_timeout_s: float,
        weights: WeightsCache | None = None,
        sends_objectives: bool = False,
        withheld: Collection[str] = (),
    ) -> None:
        self._name = name
        self._weights = weights
        self._sends_objectives = sends_objectives
        self._withheld = frozenset(withheld)
        self._model = model
        self._command = command
        self._seqs_max = seqs_max
        self._batched_tokens_max = batched_tokens_max
        self._folder = folder
        self._ready_timeout_s = ready_timeout_s
        self._process: EngineProcess | None = None
        self._engine: VllmEngine | None = None
        self._hangs = False

    @property
    def engine(self) -> VllmEngine:
        """The client of the process."""
        if self._engine is None:
            raise EngineUnavailableError(f"engine {self._name} is not running")
        return self._engine

    async def start(self) -> None:
        """Start a process and wait until it serves.

        Raises:
            EngineUnavailableError: It did not start; the message holds the end of its log.
        """
        port = _free_port()
        command = self._command(port)
        self._process = EngineProcess(
            self._name,
            command.argv,
            env=command.env,
            log_file=self._folder / "logs" / f"{self._name}.log",
            state_folder=self._folder / "engines",
            withheld=self._withheld,
        )
        self._engine = VllmEngine(
            f"http://127.0.0.1:{port}",
            self._model,
            seqs_max=self._seqs_max,
            batched_tokens_max=self._batched_tokens_max,
            batched_tokens_expected=self._batched_tokens_max,
            sends_objectives=self._sends_objectives,
        )
        await self._process.start()
        await self._process.wait_ready(self._engine.healthy, timeout_s=self._ready_timeout_s)

    async def prefetch(self) -> bool:
        """Read its weights files into the page cache."""
        return self._weights is not None and await self._weights.prefetch()

    async def drop_prefetched(self) -> None:
        """Drop its weights files from the page cache."""
        if self._weights is not None:
            await self._weights.drop()

    async def stop(self) -> None:
        """Stop the process with all its descendants, if there is one."""
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                await engine.close()
        finally:
            if self._process is not None and self._process.started:
                # Forgotten only when it is gone: a stop that is cancelled leaves it to the next one.
                await self._process.stop(0.0 if self._hangs else STOP_GRACE_S)
            self._process, self._hangs = None, False

    def hangs(self) -> None:
        """Kill the process at the next stop, without a grace."""
        self._hangs = True

    async def close(self) -> None:
        """Stop the process for good, and drop its weights files."""
        await self.stop()
        await self.drop_prefetched()

    async def wait_failed(self) -> str:
        """Wait until the process ends or fails its health probes; return the reason and its log's end."""
        process = self._process
        if process is None:
            return "it is not running"
        watch = asyncio.ensure_future(wait_unhealthy(self.engine))
        try:
            await asyncio.wait((process.exited, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([watch])
        if not process.exited.done():
            self._hangs = True
            return f"engine {self._name} failed {PROBES_MISSED_MAX} health probes in a row"
        end = process.exited.result()
        return f"engine {self._name} ended with code {end.return_code}\n{end.log_tail}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
