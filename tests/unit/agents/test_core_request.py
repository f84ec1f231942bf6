"""The order of requests in an agent's hands beside the groups that still wait."""

from dataclasses import replace

from qlm.agents.core.request import TrackedRequest
from qlm.domain.group import Group, request_class
from qlm.domain.ids import GroupId
from qlm.domain.urgency import service_order
from support.agent_bench import delivery_of
from support.requests import a_request

S = 1_000_000_000


def tracked(arrival_s: int, deadline_s: int) -> TrackedRequest:
    request = a_request(deadline_ms=deadline_s * 1000, arrival_ns=arrival_s * S)
    request = replace(request, cls=request_class(request.cls.model, request.slo, 0))
    return TrackedRequest(request, delivery=delivery_of(request), delivered_ns=0, group=None)


def waiting(like: TrackedRequest, arrival_s: int) -> tuple[int, float, int]:
    cls = like.request.cls
    group = Group(id=GroupId("g"), cls=cls, seq=1, count=1, head_arrival_ns=arrival_s * S)
    return service_order(cls.priority, group.deadline_ns, arrival_s * S)


def test_a_request_precedes_those_of_its_class_that_came_later() -> None:
    """Classes stand for a tighter objective than their requests': 70 s are served as 60 s."""
    mine = tracked(arrival_s=100, deadline_s=70)
    assert mine.request.cls.target_ms == 60_000
    assert waiting(mine, 99) < mine.urgency < waiting(mine, 101)


def test_between_classes_the_earlier_deadline_goes_first() -> None:
    best_effort, tight = tracked(arrival_s=0, deadline_s=1800), tracked(arrival_s=1000, deadline_s=60)
    assert tight.urgency < best_effort.urgency
    assert waiting(best_effort, 0) > tight.urgency


def test_a_best_effort_request_is_last() -> None:
    request = a_request(arrival_ns=0)
    batch = TrackedRequest(request, delivery=delivery_of(request), delivered_ns=0, group=None)
    assert tracked(arrival_s=100, deadline_s=1800).urgency < batch.urgency


def test_a_demoted_request_is_sorted_like_batch_work() -> None:
    missed = tracked(arrival_s=100, deadline_s=60)
    missed = TrackedRequest(
        replace(missed.request, cls=missed.request.cls.missed()),
        delivery=missed.claim.delivery,
        delivered_ns=0,
        group=None,
    )
    assert tracked(arrival_s=100, deadline_s=1800).urgency < missed.urgency
    assert missed.urgency[1] == float("inf")
    assert waiting(missed, 100)[1] == float("inf")
