"""A gateway worker that is told to end: by its owner, by signals, or by both."""

import asyncio

import pytest

from qlm.cli.processes.worker import Stop


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
