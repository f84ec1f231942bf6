"""A whole cluster on loopback: gateways, controller and agents as processes, real servers between them."""

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from support.ports import free_port
from support.qlm_process import QLM, QlmProcess
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

OfPart = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Of gateway, controller or agent, and the common configuration."""


@dataclass(slots=True)
class Cluster:
    """The processes of one QLM cluster.

    Attributes:
        gateways: Each on ports of its own, one for HTTP, one for gRPC.
        controller: The one controller.
        standby: A second one, which does not run unless a test starts it.
        agents: By instance.
    """

    gateways: list[QlmProcess]
    controller: QlmProcess
    standby: QlmProcess
    agents: dict[str, QlmProcess] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Address of the first gateway."""
        return self.gateways[0].url

    @property
    def admin_url(self) -> str:
        """Where the first gateway serves operators."""
        return self.gateways[0].admin_url

    @property
    def processes(self) -> list[QlmProcess]:
        """All of them."""
        return [*self.gateways, self.controller, self.standby, *self.agents.values()]


@contextlib.contextmanager
def cluster(
    rabbitmq: RabbitMQ,
    redis: RedisServer,
    config: Mapping[str, Any],
    *,
    gateways: int = 1,
    folder: Path | None = None,
    of_part: OfPart | None = None,
    of_process: OfPart | None = None,
    program: Path = QLM,
    name: str | None = "",
) -> Iterator[Cluster]:
    """Run a cluster on servers that others may use too.

    Args:
        rabbitmq: Its broker.
        redis: Its store.
        config: The configuration of all parts, but for servers, ports and folders.
        gateways: How many.
        folder: Takes logs and data; one that is deleted afterwards if not given.
        of_part: Makes the configuration of a part of the common one.
        of_process: The same of one process, by its name, such as `gateway-0`.
        program: The `qlm` that all parts run.
        name: Name of the deployment; one of its own if empty. None leaves the key out: its own servers.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-cluster-")))
        named = {} if name is None else {"deployment_name": name or f"test-{secrets.token_hex(4)}"}
        shared = {
            **named,
            **config,
            "broker": rabbitmq.url,
            "store": redis.url,
        }
        of_part, part = of_part or _unchanged, partial(_part, program, of_process or _unchanged)
        made = Cluster(
            [
                part(
                    f"gateway-{n}",
                    {**of_part("gateway", shared), "grpc": {"port": free_port()}},
                    folder,
                    "gateway",
                )
                for n in range(gateways)
            ],
            part("controller", of_part("controller", shared), folder, "controller"),
            part("standby", of_part("controller", shared), folder, "controller"),
        )
        for instance in config["instances"]:
            name = instance["id"]
            made.agents[name] = part(f"agent-{name}", of_part("agent", shared), folder, "agent", name)
        try:
            for process in made.processes:
                if process is not made.standby:
                    process.start()
            for gateway in made.gateways:
                gateway.wait_ready(instances=len(made.agents), timeout_s=120)
            yield made
        finally:
            for process in made.processes:
                process.close()


def _unchanged(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config


def _part(
    program: Path, of_process: OfPart, name: str, config: Mapping[str, Any], folder: Path, *arguments: str
) -> QlmProcess:
    whole = {**of_process(name, config), "data_dir": str(folder / name), "http": {"port": free_port()}}
    return QlmProcess(name, *arguments, config=whole, folder=folder, program=program)
