"""Kind `double`: a second agent of an instance, a second deployment of one name."""

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.faults.fault import Hit, Kind, waited
from benchmarks.chaos.rig import LAUNCHED, Rig
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.redis import RedisServer

REFUSED_S: Final = 60.0


def agent(rig: Rig, rng: random.Random) -> Hit:
    """Start a second agent of an instance; it must be refused, and the first goes on."""
    name = rng.choice(LAUNCHED)
    first = rig.parts.agents[name]
    refused = _refused(first, {}, "has an agent already", "agent", name)
    kept = refused and first.alive
    return Hit(target=f"second {name}", unkept="" if kept else f"a second agent of {name} was not refused")


def deployment(rig: Rig, rng: random.Random) -> Hit:
    """Start a gateway of a deployment of the same name: with this RabbitMQ, and a Redis of its own."""
    first = rig.parts.gateways[0]
    folder = Path(tempfile.mkdtemp(prefix="other-redis-", dir=first.log_file.parent))
    other = RedisServer(folder, appendonly=False)
    other.start()
    try:
        changes = {"store": other.url, "grpc": {"port": free_port()}}
        kept = _refused(first, changes, "two deployments have the deployment_name", "gateway")
    finally:
        other.kill()
    unkept = "" if kept else "a second deployment of this name was not refused"
    return Hit(target="gateway of another", unkept=unkept)


def _refused(first: QlmProcess, changes: Mapping[str, Any], why: str, *command: str) -> bool:
    """Run a process like another one; return True if it ends by itself with this error."""
    folder, name = first.log_file.parent, f"second-{command[-1]}"
    config = first.config
    more: dict[str, Any] = {each: {"port": free_port()} for each in ("http", "admin") if each in config}
    config |= {"data_dir": str(folder / name), **more, **changes}
    second = QlmProcess(name, *command, config=config, folder=folder)
    second.start()
    try:
        ended = waited(lambda: not second.alive, REFUSED_S)
        return ended and second.exit_code != 0 and why in second.log_file.read_text("utf-8")
    finally:
        second.close()


DOUBLES: Final = (
    Kind(name="double-agent", group="double", strike=agent),
    Kind(name="double-deployment", group="double", strike=deployment),
)
