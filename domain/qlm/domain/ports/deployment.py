"""Port to the two servers of a deployment, each of which bears its mark."""

from typing import Protocol

from qlm.domain.values import value


@value
class DeploymentMark:
    """Mark of the deployment that a server belongs to.

    Attributes:
        id: Random id of the pair of servers.
        partner: Address of the other server of the pair, for people.
    """

    id: str
    partner: str


class MarkedServer(Protocol):
    """One of the two servers of a deployment, as one process uses it; each method is atomic.

    A process is a member of a deployment there from `join` until it leaves, ends, or does not renew it for
    some seconds. It is a member of at most one.

    Every method may raise UnavailableError.
    """

    @property
    def address(self) -> str:
        """Address for people, without a password."""
        ...

    async def look(self) -> DeploymentMark | None:
        """Return the mark that the server bears; None if it bears none."""
        ...

    async def has_members(self, id: str) -> bool:
        """Return True if any process is a member of this deployment here."""
        ...

    async def join(self, mark: DeploymentMark, instead_of: str | None = None) -> bool:
        """Become a member of the deployment of a mark, or remain one.

        Returns False, and changes nothing, if the server bears the mark of another deployment. A server
        without a mark gets this one. So does one with the mark `instead_of`, if that has no members.
        """
        ...

    async def renew(self, id: str) -> bool:
        """Remain a member of a deployment; False if the server does not bear its mark (any more)."""
        ...

    async def leave(self, id: str) -> None:
        """Cease to be a member of a deployment; its mark stays."""
        ...

    async def close(self) -> None:
        """Leave, and close the connection."""
        ...
