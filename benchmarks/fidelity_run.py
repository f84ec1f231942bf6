"""One run against one engine, with the processor use of all parties."""

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import uvloop

from benchmarks.fidelity_client import Answer, replay
from benchmarks.fidelity_workload import Planned, calls
from benchmarks.processor_time import group_s, numbers

T = TypeVar("T")

QUIET_CORES_MAX = 0.1
"""Largest use of cores by other processes during a run whose times are valid."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Running engine: address, name of its model, and process group."""

    url: str
    model: str
    group: int


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor use during a run, in cores.

    Attributes:
        client: This process and the programs that it ran.
        engine: The engine's processes.
        others: Everything else on the machine, time withheld by a hypervisor included.
    """

    client: float
    engine: float
    others: float


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one run; answers are in order of sending."""

    answers: tuple[Answer, ...]
    cores: Cores

    @property
    def late_max_s(self) -> float:
        """Longest delay of a request's sending."""
        return max(answer.sent_s - answer.due_s for answer in self.answers)


def run(engine: Engine, planned: Sequence[Planned], name: str) -> Run:
    """Send the requests to an otherwise idle engine, and report in one line.

    Args:
        engine: The engine.
        planned: The requests.
        name: Name of the run; unique for the engine, since prompts depend on it.
    """
    return uvloop.run(run_within(engine, planned, name))


async def run_within(engine: Engine, planned: Sequence[Planned], name: str) -> Run:
    """Do the same as `run` within a running event loop that does nothing else meanwhile."""
    requests = calls(planned, engine.model, name.replace(" ", "-"))
    meter = Meter(engine)
    answers = await replay(engine.url, requests)
    return Run(tuple(answers), meter.lap(f"{name}: {len(planned)} requests"))


def metered(engine: Engine, name: str, act: Callable[[], T]) -> tuple[T, Cores]:
    """Run `act` on an engine, and measure the processor use."""
    meter = Meter(engine)
    return act(), meter.lap(name)


class Meter:
    """Meter of the processor use, from its start or the last lap."""

    def __init__(self, engine: Engine) -> None:
        """Start."""
        self._engine = engine
        self.restart()

    def restart(self) -> None:
        """Forget what was used until now."""
        self._before, self._start_s = _cpu_s(self._engine.group), time.perf_counter()

    def lap(self, name: str) -> Cores:
        """Return the use since the start or the last lap, and report it in one line."""
        took_s = time.perf_counter() - self._start_s
        after = _cpu_s(self._engine.group)
        used = [(last - first) / took_s for last, first in zip(after, self._before, strict=True)]
        cores = Cores(used[0], used[1], max(0.0, used[2] - used[0] - used[1]))
        say(
            f"{name} in {took_s:.1f} s; cores: engine {cores.engine:.2f}, client {cores.client:.2f}, "
            f"others {cores.others:.2f}"
        )
        self.restart()
        return cores


def disturbed(all_cores: Sequence[Cores]) -> str:
    """Format the largest processor use by others as a line."""
    most = max(cores.others for cores in all_cores)
    verdict = "NOT a quiet machine" if most > QUIET_CORES_MAX else "quiet"
    return f"others used at most {most:.2f} cores while anything was timed: {verdict}"


def say(text: str) -> None:
    """Print progress."""
    print(f"  .. {text}", file=sys.stderr, flush=True)


def _cpu_s(group: int) -> tuple[float, float, float]:
    """Return processor seconds of this process with children, of a process group, and of the machine."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _wait, irq, softirq, steal = numbers(Path("/proc/stat").read_text(), 1, 9)
    machine = user + nice + system + irq + softirq + steal
    return sum(one.ru_utime + one.ru_stime for one in own), group_s(group), machine * tick_s
