"""The network between processes and servers: delay, loss of requests or answers, and partitions."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from random import Random
from typing import Final

from simulation.process import Process
from simulation.virtual_loop import VirtualLoop

TRIP_S: Final = (0.0005, 0.004)
"""Shortest and longest one-way delay between two machines of a data centre."""

_LEAST_S: Final = TRIP_S[0]
_SPREAD_S: Final = TRIP_S[1] - TRIP_S[0]

REPLY_TIMEOUT_S: Final = 5.0
"""Timeout of a client whose server does not answer; the default of `store.redis.store`."""

_APART_S: Final = 1e-6
"""Least time between the arrivals of two messages on one connection."""


class Server(StrEnum):
    """Servers that processes connect to."""

    STORE = "store"
    BROKER = "broker"


class Loses(Enum):
    """Messages that an outage loses."""

    BOTH = auto()
    REQUESTS = auto()
    """Nothing reaches the server; its announcements arrive."""
    ANSWERS = auto()
    """Requests are carried out, and nothing comes back."""


@dataclass(slots=True)
class Outage:
    """A break of a connection.

    Attributes:
        until_s: End of the outage.
        silent: True: messages vanish and the sender runs into its timeout. False: connections are refused.
        loses: What is lost.
    """

    until_s: float
    silent: bool
    loses: Loses = Loses.BOTH

    @property
    def of_requests(self) -> bool:
        """True if nothing reaches the server."""
        return self.loses is not Loses.ANSWERS

    @property
    def of_answers(self) -> bool:
        """True if nothing comes from the server."""
        return self.loses is not Loses.REQUESTS


@dataclass(slots=True)
class Channel:
    """A connection that keeps the order of requests, and the order of answers.

    Attributes:
        go_s: Arrival time of its latest request.
        back_s: Arrival time of its latest answer.
    """

    go_s: float = 0.0
    back_s: float = 0.0


class UnreachableError(Exception):
    """A request or its answer was lost."""


class Network:
    """Carries requests and answers, with delays and losses.

    Attributes:
        lost: Lost messages by server.
    """

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.lost: Counter[str] = Counter()
        self._loop = loop
        self._chance = chance
        self._outages: dict[tuple[str, Server], Outage] = {}
        self._stopped: dict[Server, Outage] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        self._whole_from_s = 0.0

    def disconnect(self, name: str, server: Server, outage: Outage) -> None:
        """Break the connection between a process and a server."""
        self._outages[name, server] = outage
        self._whole_from_s = max(self._whole_from_s, outage.until_s)

    def slow_down(self, name: str, until_s: float, extra_s: float) -> None:
        """Delay each message from and to a process by a drawn time of up to `extra_s`."""
        self._slow[name] = (until_s, extra_s)

    def stop(self, server: Server, until_s: float) -> None:
        """Disconnect a server from all processes."""
        self._stopped[server] = Outage(until_s, silent=False)
        self._whole_from_s = max(self._whole_from_s, until_s)

    def trip_s(self, name: str) -> float:
        """Draw the one-way delay of a message."""
        trip_s = _LEAST_S + _SPREAD_S * self._chance.random()
        if self._slow:
            until_s, extra_s = self._slow.get(name, (0.0, 0.0))
            if self._loop.time() < until_s:
                trip_s += extra_s * self._chance.random() ** 2
        return trip_s

    async def send(self, process: Process, server: Server, channel: Channel | None = None) -> None:
        """Carry a request to a server.

        Raises:
            UnreachableError: It did not arrive.
        """
        if not process.alive:
            raise UnreachableError("killed")
        outage = self.outage_of(process.name, server)
        if outage is None or not outage.of_requests:
            now_s = self._loop.time()
            arrives_s = now_s + self.trip_s(process.name)
            if channel is not None:
                arrives_s = channel.go_s = max(arrives_s, channel.go_s + _APART_S)
            await self._loop.pause(arrives_s - now_s)
            outage = self.outage_of(process.name, server)
        if outage is not None and outage.of_requests:
            await self._lose(server, outage)

    async def answer(self, process: Process, server: Server, channel: Channel | None = None) -> None:
        """Carry the answer back.

        Raises:
            UnreachableError: It did not arrive; the server has carried the request out.
        """
        now_s = self._loop.time()
        arrives_s = now_s + self.trip_s(process.name)
        if channel is not None:
            arrives_s = channel.back_s = max(arrives_s, channel.back_s + _APART_S)
        await self._loop.pause(arrives_s - now_s)
        outage = self.outage_of(process.name, server)
        if outage is not None and outage.of_answers:
            await self._lose(server, outage)

    def outage_of(self, name: str, server: Server) -> Outage | None:
        """Return the present outage between a process and a server; None without one."""
        if self._loop.time() >= self._whole_from_s:
            return None
        for outage in (self._stopped.get(server), self._outages.get((name, server))):
            if outage is not None and self._loop.time() < outage.until_s:
                return outage
        return None

    async def _lose(self, server: Server, outage: Outage) -> None:
        self.lost[server] += 1
        if outage.silent:
            await self._loop.pause(REPLY_TIMEOUT_S)
        raise UnreachableError(f"no connection to the {server}")
