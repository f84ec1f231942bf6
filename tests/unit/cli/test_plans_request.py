"""What `qlm plan explain REQUEST` says of a plan that is small enough to check by hand."""

import time
from dataclasses import replace
from typing import Any

import pytest

from qlm.cli.inspect.layout import Table
from qlm.cli.plans.live import age
from qlm.cli.plans.request import PlannedRequest, find_place
from qlm.cli.plans.request_text import request_text
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.method_names import KEPT
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.published_plan import PublishedPlan
from qlm.rct_estimator.normal import Normal

M, N = ModelId("m"), ModelId("n")
A, B = InstanceId("a"), InstanceId("b")
COST = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=7.0)
QUEUE = "qlm.class.m.deadline-100s.all"


def group(name: str, model: ModelId = M, requests: int = 10, **more: Any) -> PlannedGroup:
    """One request a second, then two seconds."""
    time = GroupTime(service=Normal(float(requests), 0.01), tail=Normal(2.0))
    return PlannedGroup(
        id=GroupId(name), model=model, requests=requests, time={"k": time}, **{"deadline_s": 100.0} | more
    )


def kept(*groups: PlannedGroup, a: str, b: str = "") -> PublishedPlan:
    """A plan of two instances, `a` busy for 5 s; both have m loaded; their queues by the names of groups."""
    problem = Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=0, models={M: COST, N: COST})},
        instances=(
            Instance(id=A, kind="k", loaded_model=M, busy=Normal(5.0)),
            Instance(id=B, kind="k", loaded_model=M),
        ),
        groups=groups,
    )
    queues = {A: tuple(map(GroupId, a.split())), B: tuple(map(GroupId, b.split()))}
    return PublishedPlan(
        at_ms=int(time.time() * 1000), problem=problem, plan=Plan(queues=queues, method="edf")
    )


def asked(plan: PublishedPlan, group: str | None, position: int, of: int, **more: Any) -> dict[str, Any]:
    """What a gateway tells of a waiting request that came 10 s before the plan, due 60 s later."""
    at_s = plan.at_ms / 1000
    return {
        "id": "r",
        "model": "m",
        "status": "queued",
        "outcome": None,
        "cancel_requested": False,
        "arrival_s": at_s - 10,
        "deadline_s": at_s + 50,
        "ended_s": None,
        "slo": {"kind": "deadline"},
        "priority": 0,
        "output_tokens": 0,
        "instance": None,
        "queue": QUEUE,
        "events": [{"at_s": at_s - 10, "what": "accepted", "why": "", "instance": None}],
        "waits": {
            "position": position,
            "queued": 30,
            "group": group,
            "group_position": None if group is None else position,
            "group_requests": None if group is None else of,
            "instance": None if group is None else "a",
        },
    } | more


def found(request: dict[str, Any], plan: PublishedPlan, *classmates: str) -> PlannedRequest:
    seen = [{"id": name, "seq": seq} for seq, name in enumerate(classmates)]
    place = find_place(request, plan, seen, "requests")
    assert place is not None
    return place


def printed(request: dict[str, Any], plan: PublishedPlan | None, *classmates: str) -> str:
    """All sentences, without the tables."""
    seen = [{"id": name, "seq": seq} for seq, name in enumerate(classmates)]
    place = find_place(request, plan, seen, "requests")
    parts = request_text(request, plan, place, 10, time.time())
    return "\n".join(part for part in parts if not isinstance(part, Table))


def test_its_own_turn_and_chance_are_shown_not_those_of_its_group() -> None:
    plan = kept(group("x"), group("y"), a="x y")
    request = asked(plan, "y", 3, 10, deadline_s=plan.at_ms / 1000 + 20)
    place = found(request, plan)
    assert place.nth == 3
    assert place.turn is not None
    # Busy 5 s, x 10 s, three of y.
    assert place.turn.starts.mean == pytest.approx(18.0)
    assert place.turn.answered.mean == pytest.approx(20.0)
    assert place.turn.p_met == pytest.approx(0.5, abs=1e-6)
    text = printed(request, plan)
    assert "for the plan number 3 of 10 of its group; its turn comes in 18s (±0.1 s), answered in 20s" in text
    assert "deadline in 20s: in time with 50.0 %" in text
    assert "place 2 on a: waits for" in text


def test_those_who_left_the_group_since_the_plan_still_count_for_it() -> None:
    plan = kept(group("x"), a="x")
    assert found(asked(plan, "x", 3, 7), plan).nth == 6
    assert found(asked(plan, "x", 3, 12), plan).nth == 3


def test_who_came_after_the_plan_is_not_in_it_yet() -> None:
    plan = kept(group("x"), a="x")
    behind = asked(plan, "x", 11, 11)
    assert found(behind, plan).nth is None
    late = asked(plan, "x", 7, 10, arrival_s=plan.at_ms / 1000 + 0.25)
    assert found(late, plan).turn is None
    for request in (behind, late):
        text = printed(request, plan)
        assert "it came after this plan was made and is not in it yet: the next one counts it" in text
        assert "its group had 10 requests then" in text
        assert "it would run earlier" not in text and "x: m, 10 requests" in text
    assert "plan, which has no requests of group z: it came later" in printed(asked(plan, "z", 1, 1), plan)
    assert "it is not in this plan: the next one forms a group" in printed(asked(plan, None, 1, 1), plan)


def test_first_token_objectives_are_about_the_first_token() -> None:
    plan = kept(group("x"), a="x")
    text = printed(asked(plan, "x", 2, 10, slo={"kind": "token"}), plan)
    assert "its turn comes in 7.0s (±0.02 s), first token in 9.0s" in text
    assert "- its group were on b: first token in 4.0s" in text


def test_what_would_have_to_be_true_is_shown() -> None:
    plan = kept(group("x", N, 4), group("y"), group("z"), a="x y", b="z")
    lines = printed(asked(plan, "y", 4, 10), plan).splitlines()
    reasons = lines[lines.index("it would run earlier if") + 1 :]
    assert reasons == [
        "- a were free sooner: what it has takes 5.0s",
        # A swap of 7 s and four requests.
        "- the group before its own ended or went elsewhere: 4 requests, 1 model change, 11 s in all",
        # x then swaps at 15 s instead of 12 s, with nothing late.
        "- its group were first in that queue: answered in 11s; it would change the cost of the plan by 0 s",
        "- m were loaded on a: the model change takes 7 s",
        "- the 3 requests before it in its group ended: there, the order is by arrival",
        "- its group were on b: answered in 6.0s; it would change the cost of the plan by 0 s",
    ]


def test_a_priority_that_stands_before_it_is_named() -> None:
    plan = kept(group("x", priority=-2), group("y", priority=3), a="x y")
    text = printed(asked(plan, "y", 1, 10, priority=3), plan)
    assert "- its priority, 3, were as low as of others before it: lower ones go first, strictly" in text
    assert "its group were first" not in text


def test_the_only_instance_is_named() -> None:
    plan = kept(group("x"), a="x")
    alone = replace(plan.problem, instances=plan.problem.instances[:1])
    plan = replace(plan, problem=alone, plan=Plan(queues={A: (GroupId("x"),)}))
    assert "- another instance served m: a is the only one" in printed(asked(plan, "x", 1, 10), plan)
    free = replace(alone, instances=(replace(alone.instances[0], busy=Normal(0.0)),))
    assert "a were free sooner" not in printed(asked(plan, "x", 1, 10), replace(plan, problem=free))


def test_groups_that_start_out_of_the_order_of_arrival_are_named() -> None:
    plan = kept(group("old"), group("mine"), group("new"), group("other"), a="mine old", b="other new")
    place = found(asked(plan, "mine", 1, 10), plan, "old", "mine", "new")
    assert [row.group for row in place.later] == ["old"]
    assert place.sooner == ()
    text = printed(asked(plan, "mine", 1, 10), plan, "old", "mine", "new")
    assert "group old of its class starts in 15s on a, with older requests, which go first" in text
    swapped = printed(asked(plan, "old", 1, 10), plan, "old", "mine", "new")
    assert "group mine of its class starts in 5.0s on a, sooner than its own" in swapped
    assert "of its class starts" not in printed(asked(plan, "mine", 1, 10), plan, "mine", "new")


def test_a_group_without_a_place_is_shown() -> None:
    lost = replace(group("x"), model=ModelId("giant"))
    plan = kept(lost, group("y"), a="y")
    plan = replace(plan, plan=replace(plan.plan, unplaceable=(GroupId("x"),)))
    text = printed(asked(plan, "x", 1, 10), plan)
    assert text.endswith("cannot be placed: giant runs on no instance")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"status": "running", "instance": "a", "met": False, "late_by_s": 19.0},
            "it runs on a, begun 3.0s ago; 8 tokens so far; it is late by 19s already",
        ),
        ({"status": "running", "instance": "a"}, "it runs on a, begun 3.0s ago; 8 tokens so far"),
        (
            {"status": "running", "instance": "a", "cancel_requested": True},
            "it runs on a, begun 3.0s ago; 8 tokens so far; it is being cancelled",
        ),
        (
            {"status": "parked", "instance": "a"},
            "a evicted it 3.0s ago (room for u) and continues it later; 8 tokens so far",
        ),
        (
            {"status": "ended", "outcome": "stop"},
            "it is answered: finished 1.0s ago by a (stop, 8 tokens)",
        ),
        ({"status": "ended", "outcome": "expired"}, "it has ended 1.0s ago: expired, after 8 tokens"),
        ({}, "it has just left the queue: ask again"),
    ],
)
def test_who_does_not_wait_is_shown_as_such(
    more: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = kept(group("x"), a="x")
    now_s = plan.at_ms / 1000
    monkeypatch.setattr("qlm.cli.inspect.render.time.time", lambda: now_s)
    events = [
        {"at_s": now_s - 9, "what": "accepted", "why": "", "instance": None},
        {"at_s": now_s - 3, "what": "evicted", "why": "room for u", "instance": "a"},
        {"at_s": now_s - 2, "what": "cancel_asked", "why": "", "instance": "a"},
    ]
    request = asked(
        plan, "x", 1, 1, **{"waits": None, "output_tokens": 8, "events": events, "ended_s": now_s - 1} | more
    )
    assert find_place(request, plan, [], "requests") is None
    text = printed(request, plan).splitlines()
    assert text == ["r: m, arrived 10s ago, deadline in 50s, priority 0", expected]


def test_who_was_given_back_is_shown_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kept(group("x"), a="x")
    now_s = plan.at_ms / 1000
    monkeypatch.setattr("qlm.cli.inspect.render.time.time", lambda: now_s)
    events = [{"at_s": now_s - 4, "what": "returned", "why": "evicted: u needs n", "instance": "b"}]
    returned = asked(plan, "x", 11, 11, events=events, output_tokens=1)
    assert "it came back after this plan was made" in printed(returned, plan)
    text = printed(returned, None)
    assert "b gave it back 4.0s ago (evicted: u needs n), with 1 token so far" in text
    assert text.endswith("there is no plan yet: is a controller running?")


def test_the_age_of_a_plan_is_shown() -> None:
    plan = kept(group("x"), a="x")
    at_s = plan.at_ms / 1000
    assert age(plan, at_s + 1.5) == "plan by edf of 1.5s ago; its times count from then"
    assert age(plan, at_s - 5) == "plan by edf of 0.0s ago; its times count from then"
    same = replace(plan, plan=replace(plan.plan, method=KEPT))
    assert age(same, at_s + 1.5) == "earlier plan, kept 1.5s ago; its times count from then"
    assert age(plan, at_s + 90).endswith("; no newer plan has arrived: is a controller running?")
