"""What Redis keeps of a heartbeat, and what of it an earlier version wrote."""

from dataclasses import asdict, replace

import orjson
import pytest

from qlm.domain.errors import StoreCorruptError
from qlm.domain.fleet import EngineCapacity, InstanceStatus, StagedWork
from qlm.store.contract_values import CHAT, A, status
from qlm.store.redis_codec import read_status, status_argument


def test_a_status_is_read_as_it_was_written() -> None:
    told = status(A, running=4)
    assert read_status(status_argument(told)) == told
    assert told.answers[0].counts == ((3, 2, 8), (9, 1, 11))
    assert told.staged == (StagedWork(cls=CHAT, fresh=2, evicted=1, evicted_tokens=70),)


def test_only_what_is_late_tells_older_readers_of_late_classes() -> None:
    told = status(A, running=4)
    late = replace(told, staged=(StagedWork(cls=CHAT.missed(), fresh=1, evicted=0, evicted_tokens=0),))
    assert b'"late"' not in status_argument(told)
    assert status_argument(late).count(b'"late":true') == 1
    assert read_status(status_argument(late)) == late


def test_a_status_of_an_agent_that_does_not_tell_by_class_is_read() -> None:
    before = InstanceStatus(holder=A, accelerator="A10", models=(), parked=3)
    plain = asdict(before)
    del plain["staged"], plain["answers"], plain["operations"]
    for name in ("withdrawn_tokens", "repeated_tokens", "token_steps", "token_step_squares"):
        del plain["work"][name]
    assert read_status(orjson.dumps(plain)) == before


def test_of_a_status_that_a_newer_agent_wrote_the_known_part_is_read() -> None:
    capacity = EngineCapacity(kv_tokens=1024, block_tokens=16, seqs_max=4, context_tokens=512)
    told = replace(status(A, running=4), capacity=capacity)
    plain = orjson.loads(status_argument(told))
    new = {"operation": "teleport", "model": "m", "count": 1, "seconds": 0.5}
    plain["operations"]["counts"].append(new)
    for part in (plain, plain["work"], plain["capacity"], plain["operations"], plain["staged"][0]):
        part["a_later_field"] = 1
    for count in plain["operations"]["counts"]:
        count["a_later_field"] = 1
    assert read_status(orjson.dumps(plain)) == told


def test_a_status_that_nobody_wrote_is_refused() -> None:
    with pytest.raises(StoreCorruptError, match="heartbeat"):
        read_status(b'{"holder": {}}')
