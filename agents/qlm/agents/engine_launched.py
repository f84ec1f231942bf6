"""An engine that the agent starts and stops: a guarded process and the client to talk to it."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from qlm.agents.engine_attached import PROBES_MISSED_MAX, hung
from qlm.agents.engine_command import EngineCommand
from qlm.agents.engine_process import EngineProcess
from qlm.agents.engine_vllm import VllmEngine
from qlm.agents.page_cache import WeightsFiles
from qlm.domain.errors import EngineUnavailableError

STOP_GRACE_S: Final = 5.0
"""How long an engine may take to end by itself before it is killed."""


class LaunchedEngine:
    """An EngineUnit that is a process of ours; each start is a new process on a new loopback port.

    Args:
        name: For messages, logs and the state file; unique on the machine.
        model: The name under which it serves.
        command: Writes the command line for a port.
        seqs_max: Its `--max-num-seqs`.
        folder: Where logs and state files go.
        ready_timeout_s: Longest start.
        weights: The files that its starts and reloads read, if they can be read ahead.
    """

    def __init__(
        self,
        name: str,
        model: str,
        command: Callable[[int], EngineCommand],
        *,
        seqs_max: int,
        folder: Path,
        ready_timeout_s: float,
        weights: WeightsFiles | None = None,
    ) -> None:
        self._name = name
        self._weights = weights
        self._model = model
        self._command = command
        self._seqs_max = seqs_max
        self._folder = folder
        self._ready_timeout_s = ready_timeout_s
        self._process: EngineProcess | None = None
        self._engine: VllmEngine | None = None

    @property
    def engine(self) -> VllmEngine:
        """The client to talk to it."""
        if self._engine is None:
            raise EngineUnavailableError(f"engine {self._name} is not running")
        return self._engine

    async def start(self) -> None:
        """Start a process and wait until it serves.

        Raises:
            EngineUnavailableError: It did not come up; the message holds the end of its log.
        """
        port = _free_port()
        command = self._command(port)
        self._process = EngineProcess(
            self._name,
            command.argv,
            env=command.env,
            log_file=self._folder / "logs" / f"{self._name}.log",
            state_folder=self._folder / "engines",
        )
        self._engine = VllmEngine(f"http://127.0.0.1:{port}", self._model, seqs_max=self._seqs_max)
        await self._process.start()
        await self._process.wait_ready(self._engine.healthy, timeout_s=self._ready_timeout_s)

    async def fetch(self) -> bool:
        """Read its weights files into the page cache."""
        return self._weights is not None and await self._weights.fetch()

    async def let_go(self) -> None:
        """Have the page cache give them up."""
        if self._weights is not None:
            await self._weights.let_go()

    async def stop(self) -> None:
        """Stop the process with all its children, if there is one."""
        engine, self._engine = self._engine, None
        process, self._process = self._process, None
        if engine is not None:
            await engine.close()
        if process is not None:
            await process.stop(STOP_GRACE_S)

    async def close(self) -> None:
        """Stop it for good."""
        await self.stop()
        await self.let_go()

    async def died(self) -> str:
        """Wait until the process ends by itself; return how, with the end of its log."""
        if self._process is None:
            return "it is not running"
        watch = asyncio.ensure_future(hung(self.engine))
        try:
            await asyncio.wait((self._process.exited, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
        if not self._process.exited.done():
            return f"engine {self._name} failed {PROBES_MISSED_MAX} health probes in a row"
        end = self._process.exited.result()
        return f"engine {self._name} ended with code {end.return_code}\n{end.log_tail}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
