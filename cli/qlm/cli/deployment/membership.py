"""Membership of a process in its deployment: taken at the start, kept while it runs."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from qlm.cli.deployment.rules import BROKER, STORE, Join, Pair, Refused, Seen, are_equal, decide, refusal
from qlm.domain.errors import DeploymentTakenError
from qlm.domain.ports.deployment import DeploymentMark, MarkedServer
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks, run_together

log = logging.getLogger("qlm.cli")

KEEP_S: Final = 2.0
"""Time between two turns of a member, which mark a server again that lost its mark."""

SETTLE_S: Final = 5.0
"""Time for which a former pair must have no members before one of its servers gets another partner."""

LIMIT_S: Final = 9.0
"""Time without a change after which a process is refused that waits for members to mark the other server."""

PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Pauses between two looks while waiting; the last one repeats."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The two servers of a deployment.

    Attributes:
        name: The `deployment_name`.
        broker: The broker.
        store: The store.
    """

    name: str
    broker: MarkedServer
    store: MarkedServer

    @property
    def both(self) -> tuple[MarkedServer, MarkedServer]:
        """The broker and the store."""
        return (self.broker, self.store)

    @property
    def addresses(self) -> tuple[str, str]:
        """Addresses of both for people."""
        return (self.broker.address, self.store.address)

    def mark(self, server: int, id: str) -> DeploymentMark:
        """Return the mark that one of them bears."""
        return DeploymentMark(id=id, partner=self.both[1 - server].address)

    async def seen(self) -> Pair:
        """Look at both."""
        broker, store = await self.broker.look(), await self.store.look()
        if are_equal(broker, store):
            return Seen(broker), Seen(store)
        return await _with_life(self.broker, broker), await _with_life(self.store, store)


async def _with_life(server: MarkedServer, mark: DeploymentMark | None) -> Seen:
    return Seen(mark, mark is not None and await server.has_members(mark.id))


async def join(servers: Servers, new_id: Callable[[], str], *, adopts: bool = False) -> str:
    """Join the deployment of two servers, or make them a deployment; return its id.

    Args:
        servers: The two servers.
        new_id: Returns a random id.
        adopts: As for `decide`.

    Raises:
        DeploymentTakenError: One of them belongs to another deployment.
        UnavailableError: One of them cannot be used.
    """
    now_s = asyncio.get_running_loop().time
    same_since_s = now_s()
    before: Pair | None = None
    for pause_s in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
        seen = await servers.seen()
        if seen != before:
            before, same_since_s = seen, now_s()
        decision = decide(seen, new_id(), adopts=adopts)
        if isinstance(decision, Refused):
            if not decision.may_change or now_s() - same_since_s > LIMIT_S:
                break
        elif (not decision.waits or now_s() - same_since_s >= SETTLE_S) and await _joined(servers, decision):
            return decision.id
        await asyncio.sleep(pause_s)
    raise DeploymentTakenError(refusal(servers.name, servers.addresses, seen))


async def _joined(servers: Servers, decision: Join) -> bool:
    first, second = decision.order
    if not await _join_one(servers, first, decision):
        return False
    if await _join_one(servers, second, decision):
        return True
    await servers.both[first].leave(decision.id)
    return False


async def _join_one(servers: Servers, server: int, decision: Join) -> bool:
    mark = servers.mark(server, decision.id)
    return await servers.both[server].join(mark, decision.instead_of[server])


class Member:
    """A process that has joined."""

    def __init__(self, servers: Servers, id: str, faults: FaultLog) -> None:
        self._servers = servers
        self._faults = faults
        self._foreign: Pair | None = None
        self._reported: Pair | None = None
        self._turn = asyncio.Lock()
        self.id = id

    async def run(self) -> None:
        """Remain a member, and mark the servers again if they lose their mark, until cancelled."""
        await run_together(*(self._renew(server) for server in self._servers.both))

    async def _renew(self, server: MarkedServer) -> None:
        # Each for itself: while one server is away, the process is a member on the other.
        while True:
            await asyncio.sleep(KEEP_S)
            try:
                if not await server.renew(self.id):
                    async with self._turn:
                        await self._restore()
            except Exception as error:  # of whatever kind: the work of the process goes on
                self._faults.note(log, error, "the deployment's mark was not renewed")

    async def _restore(self) -> None:
        """Mark again what lost its mark; learn an id that both servers have; report another deployment."""
        seen = await self._servers.seen()
        if any(each.lives and each.id != self.id for each in seen):
            self._report(seen)
            return
        self._foreign = self._reported = None
        if are_equal(seen[BROKER].mark, seen[STORE].mark):
            self.id = str(seen[BROKER].id)
        else:
            await self._mark(seen)

    async def _mark(self, seen: Pair) -> None:
        # One after the other: of two processes that do this under different ids, one learns the other's.
        for server in (BROKER, STORE):
            mark = self._servers.mark(server, self.id)
            if not await self._servers.both[server].join(mark, seen[server].id):
                return

    def _report(self, seen: Pair) -> None:
        """Log once that a server is of another deployment, in the second turn: a process may be joining."""
        if seen == self._foreign and seen != self._reported:
            self._reported = seen
            log.error("%s", refusal(self._servers.name, self._servers.addresses, seen))
        self._foreign = seen


@asynccontextmanager
async def membership(servers: Servers, new_id: Callable[[], str], faults: FaultLog) -> AsyncIterator[Member]:
    """Join, and be a member meanwhile.

    Raises:
        DeploymentTakenError: One of the servers belongs to another deployment.
        UnavailableError: One of them cannot be used.
    """
    member = Member(servers, await join(servers, new_id), faults)
    task = asyncio.create_task(member.run())
    try:
        yield member
    finally:
        await end_tasks([task])
