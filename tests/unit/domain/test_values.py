"""Classes, groups, queues, requests: their invariants and their plain form."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError, UndecodableDataError
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.formats.plain import (
    metadata_from_plain,
    metadata_to_plain,
    request_from_plain,
    request_to_plain,
)
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.request import Request, RequestMetadata
from qlm.domain.sampling import Evictability, Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, ReadingSlo, TokenSlo
from qlm.domain.virtual_queue import VirtualQueue
from support.requests import a_request

CARD_FIELDS = tuple(each.name for each in fields(RequestMetadata))
CLS = RequestClass(ModelId("m"), "deadline-1s", target_ms=1000.0)


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_queue_names_are_ascii_and_differ_for_different_models(left: str, right: str) -> None:
    names = [RequestClass(ModelId(model), "batch").queue for model in (left, right)]
    assert all(name.isascii() and " " not in name for name in names)
    assert (names[0] == names[1]) == (left == right)


def test_a_priority_is_a_class_of_its_own() -> None:
    assert RequestClass(ModelId("m"), "batch", priority=-2).queue == "qlm.class.m.batch.all.p-2"
    assert RequestClass(ModelId("org/m"), "batch").queue == "qlm.class.org~2fm.batch.all"


def test_a_group_cannot_be_pulled_beyond_its_count() -> None:
    with pytest.raises(InvalidValueError, match=r"group\.pulled is 3; expected 0 to count \(2\)"):
        Group(id=GroupId("g"), cls=CLS, seq=1, count=2, pulled=3)


def test_a_groups_deadline_is_that_of_its_oldest_waiting_request() -> None:
    group = Group(id=GroupId("g"), cls=CLS, seq=1, count=2, head_arrival_ns=5)
    assert group.deadline_ns == 5 + 1_000_000_000
    assert Group(id=GroupId("g"), cls=CLS, seq=1, count=0).deadline_ns is None


def test_a_virtual_queue_holds_a_group_once() -> None:
    group = Group(id=GroupId("g"), cls=CLS, seq=1, count=1)
    with pytest.raises(InvalidValueError, match="each group at most once"):
        VirtualQueue(instance=InstanceId("i"), groups=(group, group))


@pytest.mark.parametrize(
    "slo",
    [
        DeadlineSlo(deadline_ms=5.5),
        TokenSlo(ttft_ms=1.0, tpot_ms=2.0),
        ReadingSlo(ttft_ms=1.0, tokens_per_s=3.0),
        BatchSlo(),
    ],
)
def test_a_request_survives_the_way_through_json(slo: DeadlineSlo | TokenSlo | ReadingSlo | BatchSlo) -> None:
    plain = request_to_plain(a_request(stop_token_ids=(7,), eos_token_ids=(8,), logit_bias=((1, 2.0),)))
    request = request_from_plain(json.loads(json.dumps(plain)))
    assert request == a_request(stop_token_ids=(7,), eos_token_ids=(8,), logit_bias=((1, 2.0),))
    values = {name: getattr(request, name) for name in CARD_FIELDS}
    changed = RequestMetadata(**{**values, "slo": slo})
    assert metadata_from_plain(json.loads(json.dumps(metadata_to_plain(changed)))) == changed


@pytest.mark.parametrize(
    "damage", [{"version": 2}, {"slo": {"kind": "wish"}}, {"sampling": {}}, {"prompt_ids": []}, {"cls": None}]
)
def test_a_damaged_message_is_distinct_from_a_defect(damage: dict[str, object]) -> None:
    with pytest.raises(UndecodableDataError):
        request_from_plain(request_to_plain(a_request()) | damage)


def test_a_request_without_a_prompt_is_refused() -> None:
    values = {name: getattr(a_request(), name) for name in CARD_FIELDS}
    with pytest.raises(InvalidValueError, match="at least one token"):
        Request(**{**values, "prompt_tokens": 0}, prompt_ids=())


def test_request_metadata_is_the_request_without_its_prompt() -> None:
    metadata = a_request().metadata()
    assert type(metadata) is RequestMetadata
    assert not hasattr(metadata, "prompt_ids")


def test_only_requests_that_asked_for_it_are_dropped_at_their_deadline() -> None:
    assert a_request(deadline_ms=10).drop_at_ns is None
    assert a_request(deadline_ms=10, on_miss=OnMiss.DROP).drop_at_ns == 10_000_000


def test_a_call_of_a_task_is_dropped_at_the_deadline_of_the_task() -> None:
    of_task = RequestExtensions(task_id="t", task_deadline_ns=99_000_000)
    call = replace(a_request(deadline_ms=10, on_miss=OnMiss.DROP), extensions=of_task)
    assert call.drop_at_ns == 99_000_000
    assert replace(call, on_miss=OnMiss.SERVE).drop_at_ns is None


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(max_tokens=1, temperature=0.0), Evictability.FREE),
        (Sampling(max_tokens=1, temperature=0.0, seed=1), Evictability.FREE),
        (Sampling(max_tokens=1, seed=1), Evictability.APPROX),
        (Sampling(max_tokens=1, presence_penalty=0.1), Evictability.PINNED),
        (Sampling(max_tokens=1, frequency_penalty=-0.1), Evictability.PINNED),
        (Sampling(max_tokens=1, grammar='{"structured_outputs":{"json_object":true}}'), Evictability.PINNED),
        (Sampling(max_tokens=1, repetition_penalty=1.1), Evictability.FREE),
    ],
)
def test_what_can_be_resumed_exactly_may_be_evicted(sampling: Sampling, expected: Evictability) -> None:
    assert sampling.evictability is expected
