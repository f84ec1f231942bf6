"""QLM with its agents under Ray, as a process under test: what it says of its agents, what runs below it."""

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qlm.agents.guard import descendants, start_ticks
from support.ports import free_port
from support.qlm_process import QlmProcess

_PLACED = re.compile(r"(\S+): agent runs under Ray, in process (\d+)")

READY_S = 150.0
"""Ray itself takes a dozen processes to start: seconds, or a minute on a busy machine."""

Process = tuple[int, int | None]
"""Id and start time of a process: ids are used again."""


def missing() -> str | None:
    """Say what is not installed."""
    return None if importlib.util.find_spec("ray") else "Ray is not installed: install the extra `ray`"


def placed(log: str) -> dict[str, int]:
    """Process of the agent of each instance, the newest that the log tells of."""
    return {name: int(pid) for name, pid in _PLACED.findall(log)}


def below(pid: int) -> set[Process]:
    """All live processes below one."""
    return {(each, start_ticks(each)) for each in descendants(pid)}


def left(processes: set[Process]) -> set[Process]:
    """Those of some processes that still live."""
    return {(pid, started) for pid, started in processes if started and start_ticks(pid) == started}


@contextmanager
def under_ray(config: Mapping[str, Any], *arguments: str, awake: int) -> Iterator[QlmProcess]:
    """Run `qlm serve --runtime ray`, and wait until that many instances have a model awake."""
    with tempfile.TemporaryDirectory(prefix="qlm-ray-") as temporary:
        folder = Path(temporary)
        whole = {**config, "data_dir": str(folder / "data"), "http": {"port": free_port()}}
        process = QlmProcess("serve", "serve", "--runtime", "ray", *arguments, config=whole, folder=folder)
        process.start()
        try:
            process.wait_ready(instances=awake, timeout_s=READY_S)
            yield process
        finally:
            if process.alive:
                process.terminate(timeout_s=40)
            process.close()
