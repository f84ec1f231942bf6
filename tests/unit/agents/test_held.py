"""The order of requests in an agent's hands beside the groups that still wait."""

from dataclasses import replace

from qlm.agents.held import Held, urgency
from qlm.domain.group import Group, request_class
from qlm.domain.ids import GroupId
from support.agent_bench import delivery_of
from support.requests import a_request

S = 1_000_000_000


def held(arrival_s: int, deadline_s: int) -> Held:
    request = a_request(deadline_ms=deadline_s * 1000, arrival_ns=arrival_s * S)
    request = replace(request, cls=request_class(request.cls.model, request.slo, 0))
    return Held(request=request, delivery=delivery_of(request), custody_ns=0, group=None)


def waiting(like: Held, arrival_s: int) -> tuple[int, float, int]:
    cls = like.request.cls
    group = Group(id=GroupId("g"), cls=cls, seq=1, count=1, head_arrival_ns=arrival_s * S)
    return urgency(cls.priority, group.deadline_ns, arrival_s * S)


def test_a_held_request_goes_before_those_of_its_class_that_came_later() -> None:
    """Classes stand for a tighter objective than their requests': 70 s are served as 60 s."""
    mine = held(arrival_s=100, deadline_s=70)
    assert mine.request.cls.target_ms == 60_000
    assert waiting(mine, 99) < mine.urgency < waiting(mine, 101)


def test_between_classes_the_earlier_deadline_goes_first() -> None:
    lax, tight = held(arrival_s=0, deadline_s=1800), held(arrival_s=1000, deadline_s=60)
    assert tight.urgency < lax.urgency
    assert waiting(lax, 0) > tight.urgency


def test_without_an_objective_it_goes_last() -> None:
    request = a_request(arrival_ns=0)
    batch = Held(request=request, delivery=delivery_of(request), custody_ns=0, group=None)
    assert held(arrival_s=100, deadline_s=1800).urgency < batch.urgency


def test_of_a_late_class_it_goes_after_all_with_a_deadline_and_like_batch() -> None:
    missed = held(arrival_s=100, deadline_s=60)
    missed = Held(
        request=replace(missed.request, cls=missed.request.cls.missed()),
        delivery=missed.delivery,
        custody_ns=0,
        group=None,
    )
    assert held(arrival_s=100, deadline_s=1800).urgency < missed.urgency
    assert missed.urgency[1] == float("inf")
    assert waiting(missed, 100)[1] == float("inf")
