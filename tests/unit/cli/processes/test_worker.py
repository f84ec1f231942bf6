"""One gateway worker: how it is told to stop, and its limits."""

import asyncio

import pytest

from qlm.cli.processes.worker import Stop, limits_of_each
from qlm.gateway.core.connection_limits import ConnectionLimits


@pytest.mark.parametrize(
    ("asked_by", "at_once"),
    [
        (["signal"], False),
        (["signal", "owner"], False),
        (["owner", "signal"], False),
        (["owner", "owner at once"], True),
        (["signal", "signal"], True),
    ],
)
async def test_only_a_second_signal_or_its_owner_ends_it_at_once(asked_by: list[str], at_once: bool) -> None:
    stop = Stop()
    for each in asked_by:
        if each == "signal":
            stop.signal()
        else:
            stop.ask(each == "owner at once")
    assert isinstance(stop.asked, asyncio.Event)
    assert (stop.asked.is_set(), stop.at_once.is_set()) == (True, at_once)


def test_one_worker_may_take_all_connections_of_the_listener_and_its_share_of_the_memory() -> None:
    limits = ConnectionLimits(connections_max=100, unfinished_bytes_max=1_000_001, per_address_max=7)
    each = limits_of_each(limits, 2)
    assert (each.connections_max, each.per_address_max) == (100, 7)
    assert each.unfinished_bytes_max == 500_001
