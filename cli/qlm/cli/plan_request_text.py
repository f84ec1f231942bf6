"""What is known of one request, in sentences: where it is, why there, and what would let it run earlier."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from qlm.cli.live_plan import age
from qlm.cli.plan_request import Elsewhere, PlannedRequest
from qlm.cli.plan_tables import around, count, explanation, moment, percent, price
from qlm.cli.render import ago
from qlm.planner.kept_plan import KeptPlan
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import GroupRow

ANSWERED: Final = ("stop", "length")
"""Outcomes of requests that have their answer."""

FIRST_TOKEN: Final = ("token", "reading")
"""Kinds of objectives that are about the first token."""

BUSY_MIN_S: Final = 0.1
"""Less is not worth a word."""


def request_text(
    asked: Mapping[str, Any],
    kept: KeptPlan | None,
    found: PlannedRequest | None,
    places_max: int,
    now_s: float,
) -> Iterator[Table | str]:
    """Tell where a request is, and if it waits, why it stands where it stands.

    Args:
        asked: What the gateway tells of it.
        kept: The latest plan, if there is one.
        found: Its place in that plan, if it has one.
        places_max: Other places of its group to show.
        now_s: The present, seconds since the epoch.
    """
    yield _header(asked)
    if asked["status"] != "queued":
        yield _elsewhere_than_waiting(asked)
        return
    waits = asked.get("waits")
    if not waits:
        yield "it has just left the queue: ask again"
        return
    if _came(asked) == "came back":
        last = _last_event(asked)
        tokens = count(asked["output_tokens"], "token")
        yield f"{last['instance']} gave it back {ago(last['at_s'])} ({last['why']}), with {tokens} so far"
    yield _standing(waits, asked["queue"])
    if kept is None:
        yield "there is no plan yet: does a controller run?"
        return
    yield age(kept, now_s)
    if found is None:
        yield _not_planned(asked)
        return
    yield from _planned(asked, kept.problem, found)
    yield ""
    yield from explanation(kept.problem, found.group, places_max)
    yield from _earlier(found, _goal(asked))


def _came(asked: Mapping[str, Any]) -> str:
    """How it came to wait."""
    return "came back" if _last_event(asked).get("what") == "returned" else "came"


def _goal(asked: Mapping[str, Any]) -> str:
    """What its objective is about."""
    return "first token" if asked["slo"]["kind"] in FIRST_TOKEN else "answered"


def _header(asked: Mapping[str, Any]) -> str:
    deadline = "no deadline" if asked["deadline_s"] is None else f"deadline {ago(asked['deadline_s'])}"
    arrived = f"arrived {ago(asked['arrival_s'])}"
    return f"{asked['id']}: {asked['model']}, {arrived}, {deadline}, priority {asked['priority']}"


def _elsewhere_than_waiting(asked: Mapping[str, Any]) -> str:
    last = _last_event(asked)
    where = asked["instance"] or last.get("instance")
    tokens = count(asked["output_tokens"], "token")
    if asked["status"] == "ended":
        on = f" by {where}" if where else ""
        if asked["outcome"] in ANSWERED:
            return f"it is answered: finished {ago(asked['ended_s'])}{on} ({asked['outcome']}, {tokens})"
        return f"it has ended {ago(asked['ended_s'])}: {asked['outcome']}, after {tokens}"
    since = ago(last.get("at_s"))
    cancelled = "; it is being cancelled" if asked["cancel_requested"] else ""
    if asked["status"] == "parked":
        why = f" ({last['why']})" if last.get("why") else ""
        return f"{where} evicted it {since}{why} and goes on with it later; {tokens} so far{cancelled}"
    return f"it runs on {where} since {since}; {tokens} so far{cancelled}"


def _last_event(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event by which it came to be as it is."""
    moves = [event for event in asked["events"] if event["what"] != "cancel_asked"]
    return moves[-1] if moves else {}


def _standing(waits: Mapping[str, Any], queue: str) -> str:
    line = f"it waits: number {waits['position']} of {waits['queued']} in {queue}"
    if waits["group"] is None:
        return f"{line}, in no group yet"
    place = f"number {waits['group_position']} of {waits['group_requests']} in group {waits['group']}"
    on = "on no virtual queue" if waits["instance"] is None else f"on the queue of {waits['instance']}"
    return f"{line}, {place}, {on}"


def _not_planned(asked: Mapping[str, Any]) -> str:
    group = asked["waits"]["group"]
    if group is None:
        return "it is not in this plan: the next one forms a group for it"
    return f"it is not in this plan, which has no requests of group {group}: it {_came(asked)} later"


def _planned(asked: Mapping[str, Any], problem: Problem, found: PlannedRequest) -> Iterator[str]:
    group = found.group.group
    if found.nth is None:
        yield (
            f"it {_came(asked)} after this plan was made and is not in it yet: the next one counts it; "
            f"its group had {count(group.requests, 'request')} then"
        )
        return
    if found.turn is None:
        return
    line = (
        f"for the plan number {found.nth} of {group.requests} of its group; "
        f"its turn comes {_when(found.turn.starts.mean, found.turn.starts.var)}, "
        f"{_goal(asked)} {_when(found.turn.answered.mean, found.turn.answered.var)}"
    )
    if found.turn.p_met is not None and found.deadline_s is not None:
        line += f"; deadline {moment(found.deadline_s)}: in time with {percent(found.turn.p_met)}"
    yield line
    for row in found.sooner[:1]:
        yield f"{_starts(row)}, sooner than its own, and takes the oldest of the class: it may go earlier"
    for row in found.later[:1]:
        yield f"{_starts(row)}, with older requests, which go first wherever one starts: it may go later"


def _starts(row: GroupRow) -> str:
    return f"group {row.group} of its class starts {moment(row.start.mean)} on {row.instance}"


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
    """What would have to be true for it to run earlier."""
    told = found.group
    row, model = told.steps[-1].row, told.group.model
    if told.busy is not None and told.busy.mean >= BUSY_MIN_S:
        yield f"{row.instance} were free sooner: what it has takes {around(told.busy)}"
    yield from _reasons_ahead(found, goal)
    if row.swap is not None:
        yield f"{model} were loaded on {row.instance}: the model change takes {row.swap_s:.3g} s"
    if nth > 1:
        yield f"the {count(nth - 1, 'request')} before it in its group ended: there, the order is by arrival"
    if found.elsewhere:
        best = found.elsewhere[0]
        yield f"its group were on {best.place.row.instance}: {_outcome(best, goal)}"
    elif not told.elsewhere:
        yield f"another instance served {model}: {row.instance} is the only one"


def _reasons_ahead(found: PlannedRequest, goal: str) -> Iterator[str]:
    told = found.group
    ahead = told.steps[:-1]
    if not ahead or told.busy is None:
        return
    takes_s = (ahead[-1].row.start + ahead[-1].drain).mean - told.busy.mean
    changes = sum(step.row.swap is not None for step in ahead)
    swaps = f", {count(changes, 'model change')}" if changes else ""
    requests = count(sum(step.row.requests for step in ahead), "request")
    groups = "the group before its own" if len(ahead) == 1 else f"the {len(ahead)} groups before its own"
    yield f"{groups} ended or went elsewhere: {requests}{swaps}, {takes_s:.3g} s in all"
    if found.first is None:
        return
    if found.first.place.allowed:
        yield f"its group were first in that queue: {_outcome(found.first, goal)}"
    else:
        own = told.group.priority
        yield f"its priority, {own}, were as low as of others before it: lower ones go first, strictly"


def _outcome(there: Elsewhere, goal: str) -> str:
    """What another place would do for the request, and for the plan."""
    cost = price(there.place.change_s, sign="+")
    note = "" if there.place.allowed else ", and pass over a higher priority"
    return f"{goal} {moment(there.turn.answered.mean)}; it would change the cost of the plan by {cost}{note}"


def _when(mean_s: float, var: float) -> str:
    return f"{moment(mean_s)}" + (f" (±{var**0.5:.2g} s)" if var else "")
