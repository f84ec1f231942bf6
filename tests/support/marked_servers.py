"""Bearers of a deployment's mark in memory, each call after a time that a seed decides."""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from qlm.domain.ports.deployment import DeploymentMark, MarkedServer


@dataclass(slots=True)
class MemoryServer:
    """A server that processes share.

    Attributes:
        address: Its name.
        ttl_s: How long a process is a member after it has joined; endless like a connection, or as a key of
            Redis lapses.
        mark: Its mark.
        members: Ends of memberships, by deployment and process.
    """

    address: str
    ttl_s: float = inf
    mark: DeploymentMark | None = None
    members: defaultdict[str, dict[object, float]] = field(default_factory=lambda: defaultdict(dict))

    def empty(self) -> None:
        """Lose everything."""
        self.mark = None
        self.members.clear()

    def lives(self, id: str) -> bool:
        """Whether a deployment has members."""
        now_s = asyncio.get_running_loop().time()
        return any(end_s > now_s for end_s in self.members[id].values())


class MemoryMark(MarkedServer):
    """One process' use of a `MemoryServer`."""

    def __init__(self, server: MemoryServer, rng: random.Random, *, longest_s: float = 0.0) -> None:
        """Use a server whose calls take up to `longest_s` each way."""
        self._server = server
        self._rng = rng
        self._longest_s = longest_s

    @property
    def address(self) -> str:
        return self._server.address

    async def look(self) -> DeploymentMark | None:
        await self._travel()
        mark = self._server.mark
        await self._travel()
        return mark

    async def has_members(self, id: str) -> bool:
        await self._travel()
        lives = self._server.lives(id)
        await self._travel()
        return lives

    async def join(self, mark: DeploymentMark, instead_of: str | None = None) -> bool:
        await self._travel()
        joined = self._join(mark, instead_of)
        await self._travel()
        return joined

    def _join(self, mark: DeploymentMark, instead_of: str | None) -> bool:
        server = self._server
        if server.mark is None or server.mark.id != mark.id:
            present = server.mark and server.mark.id
            if present is not None and (present != instead_of or server.lives(present)):
                return False
            server.mark = mark
        self._forget()
        server.members[mark.id][self] = asyncio.get_running_loop().time() + server.ttl_s
        return True

    async def renew(self, id: str) -> bool:
        await self._travel()
        mark = self._server.mark
        renewed = mark is not None and mark.id == id and self._join(mark, None)
        await self._travel()
        return renewed

    async def leave(self, id: str) -> None:
        await self._travel()
        self._server.members[id].pop(self, None)

    async def close(self) -> None:
        self.crash()

    def crash(self) -> None:
        """End the process: the server notices the end of a connection, and nothing else."""
        if self._server.ttl_s == inf:
            self._forget()

    def _forget(self) -> None:
        for members in self._server.members.values():
            members.pop(self, None)

    async def _travel(self) -> None:
        if self._longest_s:
            await asyncio.sleep(self._rng.uniform(0, self._longest_s))
