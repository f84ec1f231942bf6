"""How long a call waits for the responses before it."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qlm.domain.request import Answer, AnswerKind, RequestRecord, RequestState
from qlm.gateway.http.responses_api import earlier
from qlm.gateway.http.responses_api.earlier import STOP_WAIT_S, StopWaits, read_each
from qlm.gateway.http.responses_api.shown import StoredResponse
from qlm.gateway.sessions.gateway import Gateway
from support.requests import a_request


class Refused(Exception):
    """What a read raises."""


async def test_reads_end_at_the_first_that_fails() -> None:
    begun = []

    async def read(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise Refused
        return 2 * item

    assert await read_each(read, []) == []
    assert await read_each(read, [0, 2, 3]) == [0, 4, 6]
    begun.clear()
    with pytest.raises(Refused):
        await read_each(read, [1] * 100)
    assert len(begun) < 100


async def test_all_waits_of_a_call_end_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = replace(a_request().metadata(), answer=Answer(kind=AnswerKind.CHAT, stop=("x",)))
    record = RequestRecord(metadata=metadata, state=RequestState.RUNNING, output_tokens=3)
    seconds, looks = itertools.count(), []

    async def look(id: str) -> RequestRecord:
        looks.append(id)
        return record

    async def met(*_: object) -> bool:
        return True

    monkeypatch.setattr(earlier, "met_stop", met)
    monkeypatch.setattr(earlier, "_LOOK_S", 0)
    clock = SimpleNamespace(now_ns=lambda: next(seconds) * 10**9)
    gateway = cast(Gateway, SimpleNamespace(clock=clock, store=SimpleNamespace(record=look)))
    waits = StopWaits(gateway)
    found = StoredResponse(metadata, cast(Any, None), record)
    for _ in range(20):
        assert await waits.at_end(found) == found
    assert 0 < len(looks) <= STOP_WAIT_S
