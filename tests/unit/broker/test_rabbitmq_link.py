import asyncio
import random
from itertools import islice
from typing import Any, cast

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.broker.rabbitmq import link
from qlm.broker.rabbitmq.connection import Connection, LinkBrokenError
from qlm.broker.rabbitmq.link import Backoff, Link
from qlm.domain.shell.faults import FaultKind, FaultLog


@given(st.integers())
def test_pauses_double_up_to_their_limit_with_jitter_below(seed: int) -> None:
    pauses_s = list(islice(Backoff(first_s=0.1, max_s=1.0).pauses_s(random.Random(seed)), 8))
    for pause_s, nominal_s in zip(pauses_s, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert 0.5 * nominal_s <= pause_s <= nominal_s


def test_two_clients_do_not_come_back_in_step() -> None:
    one, other = (list(islice(Backoff().pauses_s(random.Random(seed)), 5)) for seed in (1, 2))
    assert all(a != b for a, b in zip(one, other, strict=True))


class ShortLived:
    """A connection that a test ends."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[LinkBrokenError] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        if not self.lost.done():
            self.lost.set_result(LinkBrokenError("closed"))


class Buggy:
    """A user that meets a bug when a connection is lost, and with each of its next two."""

    def __init__(self) -> None:
        self.prepared = 0

    async def up(self, connection: Connection) -> None:
        self.prepared += 1
        if self.prepared in (2, 3):
            raise ZeroDivisionError("a bug")

    def down(self, reason: LinkBrokenError) -> None:
        raise LookupError("another one")


async def test_a_bug_at_the_loss_of_a_connection_or_with_the_next_does_not_end_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ShortLived] = []
    counted: list[FaultKind] = []

    async def connect(*_: Any) -> Connection:
        made.append(ShortLived())
        return cast(Connection, made[-1])

    monkeypatch.setattr(link, "connect", connect)
    backoff = Backoff(first_s=0.001, max_s=0.01)
    kept = Link(pika.ConnectionParameters(), backoff, random.Random(1), faults=FaultLog(counted.append))
    await kept.start(Buggy())
    made[0].lost.set_result(LinkBrokenError("reset"))
    assert await kept.connection(timeout_s=5) is cast(Connection, made[3])
    assert counted == [FaultKind.BUG] * 3
    assert [each.lost.done() for each in made] == [True, True, True, False], "none is left open"
    await kept.close()
