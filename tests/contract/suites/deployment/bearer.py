"""What the checks of a bearer of marks need of its surroundings."""

from typing import Protocol

from qlm.domain.ports.deployment import DeploymentMark, MarkedServer
from support.cluster_load import until


class Bearer(Protocol):
    """A server that processes mark."""

    async def open(self) -> MarkedServer:
        """Use it as a further process."""
        ...

    async def crash(self, process: MarkedServer) -> None:
        """End a process without a word to the server."""
        ...

    async def empty(self) -> None:
        """Lose the mark, as a server that comes back without its data."""
        ...


def mark(id: str) -> DeploymentMark:
    """The mark of a deployment."""
    return DeploymentMark(id=id, partner=f"other://{id}")


async def until_empty(process: MarkedServer, id: str) -> None:
    """Wait until a deployment has no members."""

    async def left() -> bool:
        return not await process.has_members(id)

    await until(left, f"{id} has no members", timeout_s=30)
