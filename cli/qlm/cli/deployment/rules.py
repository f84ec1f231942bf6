"""Decision about the marks of the two servers of a deployment.

Both servers bear the same id. A second deployment of the name that shares one of them finds two ids, or one
id and a server without a mark.
"""

from dataclasses import dataclass
from typing import Final

from qlm.domain.ports.deployment import DeploymentMark

BROKER: Final = 0
STORE: Final = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server shows.

    Attributes:
        mark: Its mark, if it bears one.
        lives: True if the deployment of this mark has members there; not looked up if both marks are equal.
    """

    mark: DeploymentMark | None
    lives: bool = False

    @property
    def id(self) -> str | None:
        """Id of the deployment."""
        return None if self.mark is None else self.mark.id


Pair = tuple[Seen, Seen]
"""Of the broker and of the store."""


@dataclass(frozen=True, slots=True)
class Join:
    """Join both servers under one id.

    Attributes:
        id: Id of the deployment.
        order: The servers, the one to join first at the front.
        instead_of: Ids that this one may replace, of the broker and of the store.
        waits: True if the servers have to stay as they are for a while before: a member may be about to
            return.
    """

    id: str
    order: tuple[int, int] = (BROKER, STORE)
    instead_of: tuple[str | None, str | None] = (None, None)
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Do not join.

    Attributes:
        may_change: True if members of a deployment live, which may mark the other server too.
    """

    may_change: bool


def are_equal(broker: DeploymentMark | None, store: DeploymentMark | None) -> bool:
    """Return True if both servers bear the mark of one deployment."""
    return broker is not None and store is not None and broker.id == store.id


def decide(seen: Pair, fresh: str, *, adopts: bool = False) -> Join | Refused:
    """Decide what a process does that starts.

    A new pair gets a new id, also if one of its servers was of a pair before: the other server of that one is
    then recognized if it comes back.

    Args:
        seen: Both servers.
        fresh: An id for a new pair.
        adopts: Make a pair of two servers of different deployments that have no members.
    """
    broker, store = seen
    if are_equal(broker.mark, store.mark):
        return Join(str(broker.id))
    if broker.mark is None and store.mark is None:
        return Join(fresh)
    if broker.lives or store.lives:
        return Refused(may_change=True)
    if broker.mark is not None and store.mark is not None and not adopts:
        return Refused(may_change=False)
    # The marked server first: a process that starts meanwhile finds a living deployment on it, and waits.
    order = (BROKER, STORE) if broker.mark is not None else (STORE, BROKER)
    return Join(fresh, order, (broker.id, store.id), waits=True)


def refusal(name: str, addresses: tuple[str, str], seen: Pair) -> str:
    """Explain in a sentence why the servers are not a pair."""
    facts = [
        _fact(server, address, partner, each)
        for server, address, partner, each in zip(
            ("RabbitMQ", "Redis"), addresses, ("Redis", "RabbitMQ"), seen, strict=True
        )
    ]
    return (
        f"two deployments have the deployment_name {name!r}: {' and '.join(facts)}; give this one another "
        "deployment_name, or, if a server was replaced and no other deployment uses it, stop all processes "
        "and run qlm adopt"
    )


def _fact(server: str, address: str, partner: str, seen: Seen) -> str:
    if seen.mark is None:
        return f"{server} at {address} is of none yet"
    running = "running " if seen.lives else ""
    return (
        f"{server} at {address} is of the {running}deployment {seen.id} with {partner} at {seen.mark.partner}"
    )
