"""Mark of the deployment that uses a Redis, and the time of its members' last sign of life."""

from typing import Final

from qlm.domain.ports.deployment import DeploymentMark, MarkedServer
from qlm.store.redis.scripts import Scripts

MEMBER_TTL_S: Final = 6.0
"""Time after which a member that did not join again is none any more."""


class RedisMark(MarkedServer):
    """A Redis as bearer of a deployment's mark.

    The members of a deployment share one key that lapses: `leave` may take a sign of life of others with it,
    which lasts until they join again.
    """

    def __init__(self, scripts: Scripts, address: str, *, ttl_s: float = MEMBER_TTL_S) -> None:
        """Use the scripts of a store, which closes their connections."""
        self._scripts = scripts
        self._address = address
        self._ttl_ms = max(1, round(ttl_s * 1000))

    @property
    def address(self) -> str:
        return self._address

    async def look(self) -> DeploymentMark | None:
        id, partner = await self._scripts.run("look_at_mark")
        return DeploymentMark(id=id.decode(), partner=partner.decode()) if id else None

    async def has_members(self, id: str) -> bool:
        return bool(await self._scripts.run("has_members", id))

    async def join(self, mark: DeploymentMark, instead_of: str | None = None) -> bool:
        return bool(await self._scripts.run("join", mark.id, mark.partner, instead_of or "", self._ttl_ms))

    async def renew(self, id: str) -> bool:
        return bool(await self._scripts.run("renew", id, self._ttl_ms))

    async def leave(self, id: str) -> None:
        await self._scripts.run("leave_deployment", id)

    async def close(self) -> None:
        """Do nothing: a member lapses, and the store closes the connection."""
