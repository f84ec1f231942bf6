"""Emulated engines that an agent has started: where they listen, and how to let them hang."""

import os
import signal
from pathlib import Path

import httpx

from qlm.agents.engines.guard import descendants

MODES = ("no_tokens", "no_admission", "one_stuck", "garbage", "half_closed", "slow")
"""Ways to hang of the emulated engine (`qlm.simulator.emulation.emulator.Hang`)."""

STOPPED = "stopped"
"""SIGSTOP: health probes are not answered either."""


def engine_of(agent_pid: int, instance: str) -> tuple[int, int]:
    """Return port and process id of the emulated engine of an instance.

    Raises:
        RuntimeError: It has none at present.
    """
    for pid in descendants(agent_pid):
        words = _words(pid)
        named = any(f"/{instance}-" in word for word in words)
        if named and "--port" in words and not any("guard.py" in word for word in words):
            return int(words[words.index("--port") + 1]), pid
    raise RuntimeError(f"{instance} has no engine")


def hang(mode: str, port: int, pid: int) -> None:
    """Let an engine hang in this way."""
    if mode == STOPPED:
        os.kill(pid, signal.SIGSTOP)
        return
    answer = httpx.post(f"http://127.0.0.1:{port}/emulation/hang", json={"mode": mode}, timeout=10)
    answer.raise_for_status()


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
