"""Encoding of heartbeats in Redis, also of earlier versions."""

from dataclasses import asdict, replace

import orjson
import pytest

from contract.suites.store.values import CHAT, A, status
from qlm.domain.errors import UndecodableDataError
from qlm.domain.fleet import EngineCapacity, InstanceStatus, StagedWork
from qlm.domain.ids import SessionId
from qlm.domain.lease import InstanceHeld
from qlm.store.redis.codec import read_held, read_status, status_argument


def test_a_status_is_read_as_it_was_written() -> None:
    written = status(A, running=4)
    assert read_status(status_argument(written)) == written
    assert written.answers[0].counts == ((3, 2, 8), (9, 1, 11))
    assert written.staged == (StagedWork(cls=CHAT, fresh=2, evicted=1, evicted_tokens=70),)


def test_only_late_classes_have_a_field_that_older_readers_do_not_know() -> None:
    written = status(A, running=4)
    late = replace(written, staged=(StagedWork(cls=CHAT.missed(), fresh=1, evicted=0, evicted_tokens=0),))
    assert b'"late"' not in status_argument(written)
    assert status_argument(late).count(b'"late":true') == 1
    assert read_status(status_argument(late)) == late


def test_a_status_of_an_agent_without_counts_by_class_is_read() -> None:
    before = InstanceStatus(holder=A, accelerator="A10", models=(), parked=3)
    plain = asdict(before)
    del plain["staged"], plain["answers"], plain["prompts"], plain["operations"]
    for name in ("withdrawn_tokens", "repeated_tokens", "token_steps", "token_step_squares", "cached_tokens"):
        del plain["work"][name]
    assert read_status(orjson.dumps(plain)) == before


def test_the_known_part_of_a_newer_agents_status_is_read() -> None:
    capacity = EngineCapacity(kv_tokens=1024, block_tokens=16, seqs_max=4, context_tokens=512)
    written = replace(status(A, running=4), capacity=capacity)
    plain = orjson.loads(status_argument(written))
    new = {"operation": "teleport", "model": "m", "count": 1, "seconds": 0.5}
    plain["operations"]["counts"].append(new)
    parts = (plain, plain["work"], plain["capacity"], plain["operations"])
    for part in (*parts, plain["staged"][0], plain["prompts"][0]):
        part["a_later_field"] = 1
    for count in plain["operations"]["counts"]:
        count["a_later_field"] = 1
    assert read_status(orjson.dumps(plain)) == written


def test_an_invalid_status_is_rejected() -> None:
    with pytest.raises(UndecodableDataError, match="heartbeat"):
        read_status(b'{"holder": {}}')


def test_who_has_the_lease_of_an_instance_is_read_from_a_status_of_any_version() -> None:
    written = status(A)
    refusal = read_held([b"a1", status_argument(written), 900])
    assert refusal == InstanceHeld(session=SessionId("a1"), process=written.process, lapses_in_s=0.9)
    before = orjson.loads(status_argument(written))
    del before["process"]
    newer = orjson.loads(status_argument(written))
    newer["process"]["a_later_field"] = 1
    assert read_held([b"a1", orjson.dumps(newer), 900]) == refusal
    for text in (orjson.dumps(before), b"no status", b""):
        nameless = read_held([b"a1", text, -1])
        assert nameless == InstanceHeld(session=SessionId("a1"), process=None, lapses_in_s=0.0)
