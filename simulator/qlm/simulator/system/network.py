"""The network between processes and servers: delay, loss of requests or answers, and partitions."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from qlm.simulator.system.process import Process
from qlm.simulator.system.virtual_loop import VirtualLoop

TRIP_S: Final = (0.0005, 0.004)
"""One way between two machines of a data centre, shortest and longest."""

_LEAST_S: Final = TRIP_S[0]
_SPREAD_S: Final = TRIP_S[1] - TRIP_S[0]

REPLY_TIMEOUT_S: Final = 5.0
"""How long a client waits for a server that does not answer, as `store.redis` does by default."""

_APART_S: Final = 1e-6
"""Two messages on one connection never arrive at the same moment."""


class Server(StrEnum):
    """What processes talk to."""

    STORE = "store"
    BROKER = "broker"


@dataclass(slots=True)
class Cut:
    """A connection that carries nothing until it heals.

    Attributes:
        until_s: When it heals.
        silent: What is sent vanishes, and its sender waits; else the connection is refused at once.
        answers_only: Requests arrive; only the answers are lost.
    """

    until_s: float
    silent: bool
    answers_only: bool = False


@dataclass(slots=True)
class Lane:
    """One connection: what is sent on it arrives in order, and so do the answers.

    Attributes:
        go_s: When the latest request on it arrives.
        back_s: When the latest answer does.
    """

    go_s: float = 0.0
    back_s: float = 0.0


class UnreachableError(Exception):
    """A request or its answer did not come through."""


class Network:
    """Carries each request and each answer, late or not at all.

    Attributes:
        lost: What did not come through, by server.
    """

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.lost: Counter[str] = Counter()
        self._loop = loop
        self._chance = chance
        self._cuts: dict[tuple[str, Server], Cut] = {}
        self._stopped: dict[Server, Cut] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        self._whole_from_s = 0.0

    def cut(self, name: str, server: Server, cut: Cut) -> None:
        """Cut a process off from a server."""
        self._cuts[name, server] = cut
        self._whole_from_s = max(self._whole_from_s, cut.until_s)

    def slow_down(self, name: str, until_s: float, extra_s: float) -> None:
        """Let what a process sends and receives take up to `extra_s` longer, each message its own time."""
        self._slow[name] = (until_s, extra_s)

    def stop(self, server: Server, until_s: float) -> None:
        """Take a server away from everybody."""
        self._stopped[server] = Cut(until_s, silent=False)
        self._whole_from_s = max(self._whole_from_s, until_s)

    def trip_s(self, name: str) -> float:
        """Draw how long one message takes."""
        trip_s = _LEAST_S + _SPREAD_S * self._chance.random()
        if self._slow:
            until_s, extra_s = self._slow.get(name, (0.0, 0.0))
            if self._loop.time() < until_s:
                trip_s += extra_s * self._chance.random() ** 2
        return trip_s

    async def send(self, process: Process, server: Server, lane: Lane | None = None) -> None:
        """Carry a request to a server.

        Raises:
            UnreachableError: It did not arrive.
        """
        if not process.alive:
            raise UnreachableError("killed")
        cut = self.cut_of(process.name, server)
        if cut is None or cut.answers_only:
            now_s = self._loop.time()
            arrives_s = now_s + self.trip_s(process.name)
            if lane is not None:
                arrives_s = lane.go_s = max(arrives_s, lane.go_s + _APART_S)
            await self._loop.pause(arrives_s - now_s)
            cut = self.cut_of(process.name, server)
        if cut is not None and not cut.answers_only:
            await self._lose(server, cut)

    async def answer(self, process: Process, server: Server, lane: Lane | None = None) -> None:
        """Carry the answer back.

        Raises:
            UnreachableError: It did not arrive; what was asked for was done.
        """
        now_s = self._loop.time()
        arrives_s = now_s + self.trip_s(process.name)
        if lane is not None:
            arrives_s = lane.back_s = max(arrives_s, lane.back_s + _APART_S)
        await self._loop.pause(arrives_s - now_s)
        cut = self.cut_of(process.name, server)
        if cut is not None:
            await self._lose(server, cut)

    def cut_of(self, name: str, server: Server) -> Cut | None:
        """Return what keeps a process from a server now, if anything."""
        if self._loop.time() >= self._whole_from_s:
            return None
        for cut in (self._stopped.get(server), self._cuts.get((name, server))):
            if cut is not None and self._loop.time() < cut.until_s:
                return cut
        return None

    async def _lose(self, server: Server, cut: Cut) -> None:
        self.lost[server] += 1
        if cut.silent:
            await self._loop.pause(REPLY_TIMEOUT_S)
        raise UnreachableError(f"no connection to the {server}")
