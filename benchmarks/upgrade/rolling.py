"""Step of a rolling update: stop a process as an orchestrator does, start it, and wait for it."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.chaos.rig import LAUNCHED, MODEL, READY_S, Rig
from support.qlm_process import QLM, QlmProcess

MORE: Final = "chaos-more"
"""Additional model of the new configuration."""

GRACE_S: Final[Mapping[str, float]] = {"gateway": 0.2, "controller": 20.0, "agent": 20.0}
"""`stop.grace_s` of each process; short for gateways, so that answers are interrupted."""

KILLED_AFTER_S: Final = 10.0
"""Time after its grace period at which an orchestrator kills a process; a failure here."""

_LEADS_OR_STANDS_BY: Final = "the controller that plans is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a rolling update changes.

    Attributes:
        more: The new configuration has the additional model.
        back: It takes back an earlier one: processes change in the reverse order.
        program: The `qlm` from then on.
    """

    name: str
    more: bool = False
    back: bool = False
    program: Path = QLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart of one process.

    Attributes:
        part: Name of the process.
        stopped_s: Time from SIGTERM to the exit.
        ready_s: Time from the start to readiness.
        waiting: Requests that waited in the queue at its stop.
    """

    part: str
    waiting: int
    stopped_s: float
    ready_s: float
    exit_code: int

    def line(self) -> str:
        """Format as one line."""
        return (
            f"  {self.part:<20} stopped in {self.stopped_s:6.2f} s with exit code {self.exit_code}, "
            f"ready after {self.ready_s:6.2f} s; {self.waiting} requests waited"
        )


def kind_of(process: QlmProcess) -> str:
    """Return the kind of a process: gateway, controller or agent."""
    first = process.name.partition("-")[0]
    return "controller" if first == "standby" else first


def configured(kind: str, config: Mapping[str, Any], *, more: bool) -> dict[str, Any]:
    """Return the configuration of a process; the new one (`more`) has an additional model."""
    models = [each for each in config["models"] if each["id"] != MORE]
    served = [MODEL, MORE] if more else [MODEL]
    if more:
        models.append({**models[0], "id": MORE})
    instances = [
        {**each, "models": served if each["id"] in LAUNCHED else each["models"]}
        for each in config["instances"]
    ]
    return {**config, "models": models, "instances": instances, "stop": {"grace_s": GRACE_S[kind]}}


def restart(rig: Rig, process: QlmProcess, update: Update) -> Restart:
    """Stop a process, start it as the update says, and wait until it is ready.

    Raises:
        RuntimeError: It does not stop in time, or does not get ready.
    """
    kind, waiting = kind_of(process), _waiting(rig)
    stopped_s, exit_code = _stop(process, process.config["stop"]["grace_s"] + KILLED_AFTER_S)
    process.configure(configured(kind, process.config, more=update.more))
    process.run_as(update.program)
    ready = _READY[kind](rig, process)
    started_s = time.monotonic()
    process.start()
    _wait(process, ready, READY_S, "is not ready")
    return Restart(
        part=process.name,
        waiting=waiting,
        stopped_s=round(stopped_s, 2),
        ready_s=round(time.monotonic() - started_s, 2),
        exit_code=exit_code,
    )


def _waiting(rig: Rig) -> int:
    answer = httpx.get(f"{rig.admin_url}/admin/v1/queues", timeout=10).raise_for_status()
    return sum(each["queued"] for each in answer.json()["classes"])


def _stop(process: QlmProcess, limit_s: float) -> tuple[float, int]:
    since_s = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    _wait(process, lambda: process.exit_code is not None, limit_s, "does not stop")
    stopped_s, exit_code = time.monotonic() - since_s, process.exit_code
    assert exit_code is not None
    process.close()
    return stopped_s, exit_code


def _wait(process: QlmProcess, holds: Callable[[], bool], limit_s: float, what: str) -> None:
    until_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until_s:
            raise RuntimeError(f"{process.name} {what} within {limit_s:g} s.\n{process.log()}")
        time.sleep(0.02)


def _gateway_ready(rig: Rig, process: QlmProcess) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            return httpx.get(f"{process.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    return ready


def _controller_ready(rig: Rig, process: QlmProcess) -> Callable[[], bool]:
    def lines() -> int:
        return process.log_file.read_text("utf-8").count(_LEADS_OR_STANDS_BY)

    before = lines()
    return lambda: lines() > before


def _agent_ready(rig: Rig, process: QlmProcess) -> Callable[[], bool]:
    instance = process.name.removeprefix("agent-")

    def ready() -> bool:
        listed = httpx.get(f"{rig.admin_url}/admin/v1/instances", timeout=10).raise_for_status().json()
        return any(each["id"] == instance and each["active_model"] for each in listed["instances"])

    return ready


_READY: Final = {"gateway": _gateway_ready, "controller": _controller_ready, "agent": _agent_ready}
