"""Engines under test: the emulator as a process of its own, and the facts of both servers."""

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contract.suites.engine.probe import EngineServer
from qlm.agents.engines.command import EmulateSettings, emulate_command
from qlm.rct_estimator.profiles.token_budget import default_batched_tokens

CONTEXT_TOKENS: Final = 2048
SEQS_MAX: Final = 8


class EmulatedEngine:
    """`python -m qlm.simulator.emulation.command` on a port of its own choice, ten times faster than real."""

    def __init__(self) -> None:
        settings = EmulateSettings(
            port=0, model="llama-3-8b", accelerator="A10", time_scale=0.1, seqs_max=SEQS_MAX,
            batched_tokens_max=1024, context_tokens=CONTEXT_TOKENS, mean_output_tokens=50,
        )  # fmt: skip
        command = emulate_command(settings)
        self._process = subprocess.Popen(command.argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.server = _server(self._process.stdout.readline().split()[-1], "llama-3-8b", range(256), 1024)

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        code = self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


@dataclass(frozen=True, slots=True)
class MortalEngine:
    """An engine that only one test uses, and may kill."""

    server: EngineServer
    kill: Callable[[], object]


def tiny_vllm(base_url: str) -> EngineServer:
    """Describe a vLLM that serves the tiny model."""
    return _server(base_url, "tiny", range(10, 1990), default_batched_tokens("CPU", 0))


def _server(base_url: str, model: str, ids: range, batched_tokens_max: int) -> EngineServer:
    return EngineServer(
        base_url=base_url,
        model=model,
        seqs_max=SEQS_MAX,
        batched_tokens_max=batched_tokens_max,
        context_tokens=CONTEXT_TOKENS,
        ordinary_ids=ids,
    )
