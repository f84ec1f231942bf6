"""Describes one request in sentences: its state, the reasons, and what would let it run earlier."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import ago, span
from qlm.cli.plans.live import age
from qlm.cli.plans.request import Alternative, PlannedRequest
from qlm.cli.plans.tables import around, count, explanation, percent, price, relative
from qlm.planner.published_plan import PublishedPlan
from qlm.planner.verify.referee import GroupRow

ANSWERED: Final = ("stop", "length")
"""Outcomes of answered requests."""

FIRST_TOKEN: Final = ("token", "reading")
"""Kinds of objectives with a deadline for the first token."""

BUSY_MIN_S: Final = 0.1
"""Shorter times are not mentioned."""


def request_text(
    request: Mapping[str, Any],
    kept: PublishedPlan | None,
    found: PlannedRequest | None,
    places_max: int,
    now_s: float,
) -> Iterator[Table | str]:
    """Describe the state of a request and, if it waits, the reasons for its position.

    Args:
        request: State of the request, as returned by the gateway.
        kept: The latest plan, if there is one.
        found: Its position in that plan, if it has one.
        places_max: Largest number of other positions shown.
        now_s: The present, seconds since the epoch.
    """
    yield _header(request)
    if request["status"] != "queued":
        yield _not_waiting(request)
        return
    waits = request.get("waits")
    if not waits:
        yield "it has just left the queue: ask again"
        return
    if _came(request) == "came back":
        last = _last_event(request)
        tokens = count(request["output_tokens"], "token")
        yield f"{last['instance']} gave it back {ago(last['at_s'])} ({last['why']}), with {tokens} so far"
    yield _standing(waits, request["queue"])
    if kept is None:
        yield "there is no plan yet: is a controller running?"
        return
    yield age(kept, now_s)
    if found is None:
        yield _not_planned(request)
        return
    yield from _planned(request, found)
    yield ""
    yield from explanation(kept.problem, found.group, places_max)
    yield from _earlier(found, _goal(request))


def _came(request: Mapping[str, Any]) -> str:
    """Return the verb for the way it came to wait."""
    return "came back" if _last_event(request).get("what") == "returned" else "came"


def _goal(request: Mapping[str, Any]) -> str:
    """Return the event of its objective."""
    return "first token" if request["slo"]["kind"] in FIRST_TOKEN else "answered"


def _header(request: Mapping[str, Any]) -> str:
    deadline = "no deadline" if request["deadline_s"] is None else f"deadline {ago(request['deadline_s'])}"
    arrived = f"arrived {ago(request['arrival_s'])}"
    return f"{request['id']}: {request['model']}, {arrived}, {deadline}, priority {request['priority']}"


def _not_waiting(request: Mapping[str, Any]) -> str:
    last = _last_event(request)
    where = request["instance"] or last.get("instance")
    tokens = count(request["output_tokens"], "token")
    if request["status"] == "ended":
        on = f" by {where}" if where else ""
        if request["outcome"] in ANSWERED:
            return f"it is answered: finished {ago(request['ended_s'])}{on} ({request['outcome']}, {tokens})"
        return f"it has ended {ago(request['ended_s'])}: {request['outcome']}, after {tokens}"
    since = ago(last.get("at_s"))
    cancelled = "; it is being cancelled" if request["cancel_requested"] else ""
    if request["status"] == "parked":
        why = f" ({last['why']})" if last.get("why") else ""
        return f"{where} evicted it {since}{why} and continues it later; {tokens} so far{cancelled}"
    late_by_s = request.get("late_by_s")
    late = f"; it is late by {span(late_by_s)} already" if late_by_s else ""
    return f"it runs on {where}, begun {since}; {tokens} so far{late}{cancelled}"


def _last_event(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event that led to its present state."""
    moves = [event for event in request["events"] if event["what"] != "cancel_asked"]
    return moves[-1] if moves else {}


def _standing(waits: Mapping[str, Any], queue: str) -> str:
    line = f"it waits: number {waits['position']} of {waits['queued']} in {queue}"
    if waits["group"] is None:
        return f"{line}, in no group yet"
    place = f"number {waits['group_position']} of {waits['group_requests']} in group {waits['group']}"
    on = "on no virtual queue" if waits["instance"] is None else f"on the queue of {waits['instance']}"
    return f"{line}, {place}, {on}"


def _not_planned(request: Mapping[str, Any]) -> str:
    group = request["waits"]["group"]
    if group is None:
        return "it is not in this plan: the next one forms a group for it"
    return f"it is not in this plan, which has no requests of group {group}: it {_came(request)} later"


def _planned(request: Mapping[str, Any], found: PlannedRequest) -> Iterator[str]:
    group = found.group.group
    if found.nth is None:
        yield (
            f"it {_came(request)} after this plan was made and is not in it yet: the next one counts it; "
            f"its group had {count(group.requests, 'request')} then"
        )
        return
    if found.turn is None:
        return
    line = (
        f"for the plan number {found.nth} of {group.requests} of its group; "
        f"its turn comes {_when(found.turn.starts.mean, found.turn.starts.var)}, "
        f"{_goal(request)} {_when(found.turn.answered.mean, found.turn.answered.var)}"
    )
    if found.turn.p_met is not None and found.deadline_s is not None:
        line += f"; deadline {relative(found.deadline_s)}: in time with {percent(found.turn.p_met)}"
    yield line
    for row in found.sooner[:1]:
        yield f"{_starts(row)}, sooner than its own, and takes the oldest of the class: it may go earlier"
    for row in found.later[:1]:
        yield f"{_starts(row)}, with older requests, which go first wherever one starts: it may go later"


def _starts(row: GroupRow) -> str:
    return f"group {row.group} of its class starts {relative(row.start.mean)} on {row.instance}"


def _earlier(found: PlannedRequest, goal: str) -> Iterator[str]:
    if found.turn is None or found.nth is None:
        return
    reasons = list(_reasons(found, found.nth, goal))
    if not reasons:
        yield "nothing stands before it"
        return
    yield "it would run earlier if"
    for reason in reasons:
        yield f"- {reason}"


def _reasons(found: PlannedRequest, nth: int, goal: str) -> Iterator[str]:
    """Yield the conditions under which it would run earlier."""
    explained = found.group
    row, model = explained.steps[-1].row, explained.group.model
    if explained.busy is not None and explained.busy.mean >= BUSY_MIN_S:
        yield f"{row.instance} were free sooner: what it has takes {around(explained.busy)}"
    yield from _reasons_before(found, goal)
    if row.swap is not None:
        yield f"{model} were loaded on {row.instance}: the model change takes {row.swap_s:.3g} s"
    if nth > 1:
        yield f"the {count(nth - 1, 'request')} before it in its group ended: there, the order is by arrival"
    if found.elsewhere:
        best = found.elsewhere[0]
        yield f"its group were on {best.place.row.instance}: {_outcome(best, goal)}"
    elif not explained.elsewhere:
        yield f"another instance served {model}: {row.instance} is the only one"


def _reasons_before(found: PlannedRequest, goal: str) -> Iterator[str]:
    explained = found.group
    before = explained.steps[:-1]
    if not before or explained.busy is None:
        return
    takes_s = (before[-1].row.start + before[-1].service).mean - explained.busy.mean
    changes = sum(step.row.swap is not None for step in before)
    swaps = f", {count(changes, 'model change')}" if changes else ""
    requests = count(sum(step.row.requests for step in before), "request")
    groups = "the group before its own" if len(before) == 1 else f"the {len(before)} groups before its own"
    yield f"{groups} ended or went elsewhere: {requests}{swaps}, {takes_s:.3g} s in all"
    if found.first is None:
        return
    if found.first.place.allowed:
        yield f"its group were first in that queue: {_outcome(found.first, goal)}"
    else:
        own = explained.group.priority
        yield f"its priority, {own}, were as low as of others before it: lower ones go first, strictly"


def _outcome(there: Alternative, goal: str) -> str:
    """Describe the effect of another position on the request and on the plan."""
    cost = price(there.place.change_s, sign="+")
    note = "" if there.place.allowed else ", and pass over a higher priority"
    return (
        f"{goal} {relative(there.turn.answered.mean)}; it would change the cost of the plan by {cost}{note}"
    )


def _when(mean_s: float, var: float) -> str:
    return f"{relative(mean_s)}" + (f" (±{var**0.5:.2g} s)" if var else "")
