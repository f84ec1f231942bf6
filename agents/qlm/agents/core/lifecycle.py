"""Life cycle of a request in the agent. Every change of phase, disposition and outcome goes through here.

Order at the end of a request, always: abort, last tokens in the log, result stored, message acknowledged.
docs/reference/agent-lifecycle.md shows the table as a diagram, written by `make reference`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from qlm.agents.core.events import GenerationEnded
from qlm.agents.core.request import GENERATING, Disposition, Phase, TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.timers import Alarm
from qlm.domain.actions import Abort, Action, ReportParked
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome

DIVERGED: Final = "its engine was lost, and another generation from its prompt differs"

LOSSES_MAX: Final = 8
"""A request under which so many engines failed, at any agents, is taken for the cause."""


class Cause(StrEnum):
    """Events in the life of a request, with their meaning."""

    LEASED = "the store granted the lease"
    STARTED = "submitted to the engine"
    PREEMPTED = "preempted for more urgent work, or for the pace of others"
    RETURNED = "to be served elsewhere: model swap, drain"
    EVICTED = "evicted for a model swap"
    DEMOTED = "it can no longer meet its deadline, and others can"
    GIVEN_UP = "its reader waited too long, and others need its place in the engine"
    CANCELLED = "the client cancelled it or went away"
    EXPIRED = "its deadline passed, and it is to be dropped then"
    TOO_LARGE = "it needs more than the whole KV cache"
    FINISHED = "the generation finished by itself"
    REFUSED = "the engine refused the request"
    MEDIA_LOST = "the store has the media of its prompt no more"
    STOPPED = "the wait is over; what was decided before still holds"
    LOST = "the engine broke off the generation"
    DIVERGED = "it was generated again from its prompt, and other tokens came than before"
    LOST_TOO_OFTEN = "the engine failed under it too often: the request is taken for the cause"
    SAVED = "all tokens of a preempted request are logged"
    LOGGED = "all tokens, or the outcome, are logged"
    FORGOTTEN = "the lease was refused or lost, or the request ended elsewhere"


class Step(NamedTuple):
    """One row of the table.

    Attributes:
        phase: The next phase; None if the request leaves the agent.
        disposition: The new disposition; None to keep it. READY requests have none.
        outcome: The outcome of disposition END; None if it comes with the event.
    """

    phase: Phase | None
    disposition: Disposition | None = None
    outcome: Outcome | None = None


_CLOSE_ENGINE_CALL: Final = {
    Cause.FINISHED: Step(Phase.CLOSING, Disposition.END),
    Cause.REFUSED: Step(Phase.CLOSING, Disposition.END, Outcome.REFUSED),
    Cause.MEDIA_LOST: Step(Phase.CLOSING, Disposition.END, Outcome.OUTPUT_LOST),
    Cause.LOST: Step(Phase.CLOSING, Disposition.RETURN),
    Cause.DIVERGED: Step(Phase.CLOSING, Disposition.END, Outcome.ENGINE_LOST),
    Cause.LOST_TOO_OFTEN: Step(Phase.CLOSING, Disposition.END, Outcome.FAILED),
}


def _end_in(phase: Phase) -> dict[Cause, Step]:
    return {
        Cause.CANCELLED: Step(phase, Disposition.END),
        Cause.EXPIRED: Step(phase, Disposition.END, Outcome.EXPIRED),
        Cause.FORGOTTEN: Step(None),
    }


TABLE: Final[Mapping[Phase, Mapping[Cause, Step]]] = {
    Phase.LEASING: {
        Cause.LEASED: Step(Phase.READY),
        # Decided while the lease was requested: the log needs the lease, so it ends after the grant.
        Cause.STOPPED: Step(Phase.CLOSING),
        Cause.RETURNED: Step(Phase.LEASING, Disposition.RETURN),
        # The log of an earlier generation, elsewhere, is complete.
        Cause.FINISHED: Step(Phase.CLOSING, Disposition.END),
        **_end_in(Phase.LEASING),
    },
    Phase.READY: {
        Cause.STARTED: Step(Phase.RUNNING),
        Cause.RETURNED: Step(Phase.CLOSING, Disposition.RETURN),
        Cause.DEMOTED: Step(Phase.CLOSING, Disposition.DEMOTE),
        Cause.TOO_LARGE: Step(Phase.CLOSING, Disposition.END, Outcome.FAILED),
        **_end_in(Phase.CLOSING),
    },
    Phase.RUNNING: {
        Cause.PREEMPTED: Step(Phase.ABORTING, Disposition.RESUME_HERE),
        Cause.RETURNED: Step(Phase.ABORTING, Disposition.RETURN),
        Cause.EVICTED: Step(Phase.ABORTING, Disposition.EVICT),
        Cause.GIVEN_UP: Step(Phase.ABORTING, Disposition.SET_BACK),
        **_CLOSE_ENGINE_CALL,
        **_end_in(Phase.ABORTING),
    },
    Phase.ABORTING: {
        Cause.STOPPED: Step(Phase.CLOSING),
        **_CLOSE_ENGINE_CALL,
        **_end_in(Phase.ABORTING),
    },
    Phase.CLOSING: {
        Cause.SAVED: Step(Phase.READY),
        Cause.LOGGED: Step(None),
        **_end_in(Phase.CLOSING),
    },
}
"""The life cycle: phase and cause to the next phase, the disposition and the outcome."""


def advance(
    requests: RequestTable,
    tracked: TrackedRequest,
    cause: Cause,
    now_ns: int = 0,
    *,
    outcome: Outcome | None = None,
    why: str | None = None,
) -> list[Action]:
    """Apply a cause to a request and return the abort of its generation if that must stop.

    Args:
        requests: The table that holds it.
        tracked: The request.
        cause: The event.
        now_ns: The current time; needed where the engine is asked to stop.
        outcome: The outcome, for causes whose row leaves it open.
        why: The reason, for the event history; None keeps the previous one.
    """
    before, exit = tracked.phase, tracked.exit
    phase, disposition, fixed_outcome = TABLE[before][cause]
    if disposition is not None:
        exit.disposition, exit.outcome = disposition, fixed_outcome or outcome
    if why is not None:
        exit.why = why
    if cause in (Cause.PREEMPTED, Cause.EVICTED, Cause.GIVEN_UP):
        tracked.count_preemption()
    if phase is None:
        call_live = requests.remove(tracked)
        return [Abort(call_ids=(tracked.generation.call_id,))] if call_live else []
    if phase is not before:
        if phase is Phase.READY:
            exit.disposition = None
        requests.leave(tracked)
        tracked.phase, tracked.generation.preempted = phase, cause is Cause.SAVED
        requests.enter(tracked)
        if phase is Phase.ABORTING:
            requests.abort_sent(tracked, now_ns)
            return [Abort(call_ids=(tracked.generation.call_id,))]
        if phase is not Phase.CLOSING:
            return []
    requests.output.touch(tracked)
    return []


def leased(requests: RequestTable, tracked: TrackedRequest) -> None:
    """Make a request READY after its lease was granted, unless nothing is left to generate."""
    finished = tracked.finished_by_log()
    if tracked.exit.disposition is not None:
        advance(requests, tracked, Cause.STOPPED)
    elif finished is not None:
        advance(requests, tracked, Cause.FINISHED, outcome=finished)
    else:
        advance(requests, tracked, Cause.LEASED)
    requests.output.touch(tracked)


def generation_ended(
    requests: RequestTable, tracked: TrackedRequest, event: GenerationEnded, *, short: bool
) -> None:
    """Close a request whose generation ended; `short` if it was to repeat more than it did."""
    match event.finish:
        case "stop" | "length" if short and not tracked.ended:
            advance(requests, tracked, Cause.DIVERGED, why=DIVERGED)
        case "stop" | "length" if not tracked.ended:
            # A generation that finished before our abort arrived is complete.
            advance(requests, tracked, Cause.FINISHED, outcome=Outcome(event.finish))
        case "refused":
            advance(requests, tracked, Cause.REFUSED, why=event.detail)
        case "media_lost":
            advance(requests, tracked, Cause.MEDIA_LOST, why=event.detail)
        case "declined" if event.blameless and not tracked.ended:
            advance(requests, tracked, Cause.LOST, why=event.detail)
        case "lost" | "declined" | "garbled" if not tracked.ended:
            _engine_lost(requests, tracked, event.detail)
        case "abort" if tracked.phase is Phase.RUNNING:
            _engine_lost(requests, tracked, "aborted by the engine")
        case _:
            advance(requests, tracked, Cause.STOPPED)


def engine_failed(requests: RequestTable, model: ModelId, why: str) -> list[Action]:
    """Treat the generations of a failed engine as lost: one that hangs never ends their streams."""
    return cut(requests, [each for each in requests.calls.values() if each.request.model == model], why)


def cut(
    requests: RequestTable, victims: Iterable[TrackedRequest], why: str, *, diverged: bool = False
) -> list[Action]:
    """Treat generations as lost whose streams may never end by themselves.

    Args:
        requests: The table that holds them.
        victims: Their requests.
        why: The reason, for the event history.
        diverged: They were to repeat an answer, and other tokens came: the requests end.
    """
    lost = []
    for tracked in victims:
        call_id = tracked.generation.call_id
        requests.end_call(call_id)
        lost.append(call_id)
        if tracked.phase is Phase.RUNNING and diverged:
            advance(requests, tracked, Cause.DIVERGED, why=why)
        elif tracked.phase is Phase.RUNNING:
            _engine_lost(requests, tracked, why)
        else:
            advance(requests, tracked, Cause.STOPPED)
    return [Abort(call_ids=tuple(lost), cut=True)] if lost else []


def _engine_lost(requests: RequestTable, tracked: TrackedRequest, detail: str) -> None:
    losses = tracked.count_loss()
    if losses >= LOSSES_MAX:
        why = f"its engine was lost {losses} times, and now: {detail}"
        advance(requests, tracked, Cause.LOST_TOO_OFTEN, why=why)
    else:
        advance(requests, tracked, Cause.LOST, why=f"engine lost: {detail}")


def logged(
    requests: RequestTable, tracked: TrackedRequest, *, draining: bool, demotes_decided: bool = False
) -> list[Action]:
    """Carry out the disposition of a CLOSING request whose tokens are all in the log.

    Args:
        requests: The table.
        tracked: The request.
        draining: The agent keeps no request.
        demotes_decided: A request evicted for a swap after its objective was decided does not return to its
            class, where it would count as one whose deadline is ahead.
    """
    epoch, disposition = tracked.claim.epoch, tracked.exit.disposition
    assert epoch is not None
    if disposition is Disposition.RESUME_HERE and not draining:
        advance(requests, tracked, Cause.SAVED)
        return [ReportParked(id=tracked.id, epoch=epoch, why=tracked.exit.why)]
    decided = disposition is Disposition.EVICT and demotes_decided and tracked.decided
    set_back = disposition is Disposition.SET_BACK or decided
    if disposition is Disposition.DEMOTE or (set_back and not tracked.request.cls.late):
        demoted = tracked.to_demoted_class(epoch, evicted=set_back)
        return [*advance(requests, tracked, Cause.LOGGED), demoted]
    if disposition is Disposition.END:
        return []  # It leaves once the store has confirmed the entry with the outcome.
    # A preempted request that cannot wait here, on a draining instance, was evicted as well.
    evicted = disposition is not Disposition.RETURN
    queued = tracked.to_queue(epoch, tracked.exit.why, evicted=evicted)
    return [*advance(requests, tracked, Cause.LOGGED), queued]


def cancel(requests: RequestTable, id: RequestId, outcome: Outcome, why: str, now_ns: int) -> list[Action]:
    """End a request with a given outcome, if it is here and not ended."""
    tracked = requests.all.get(id)
    if tracked is None or tracked.ended:
        return []
    return advance(requests, tracked, Cause.CANCELLED, now_ns, outcome=outcome, why=why)


def return_all(
    requests: RequestTable, why: str, now_ns: int, *, generating: bool = True, demotes_decided: bool = False
) -> list[Action]:
    """Return every request that can be resumed elsewhere. Pinned ones that have begun may finish.

    Args:
        requests: The table.
        why: The reason, for the event history.
        now_ns: The present.
        generating: Return those that generate, too.
        demotes_decided: A preempted request whose objective was decided does not return to its class, where
            it would count as one whose deadline is ahead.
    """
    actions: list[Action] = []
    for tracked in requests.all.values():
        kept = tracked.phase in GENERATING and (tracked.pinned or not generating)
        if tracked.exit.disposition is None and not kept:
            parked = tracked.phase is Phase.READY and tracked.generation.preempted
            set_back = demotes_decided and parked and tracked.decided and not tracked.request.cls.late
            cause = Cause.DEMOTED if set_back else Cause.RETURNED
            actions += advance(requests, tracked, cause, now_ns, why=why)
    return actions


def expire(requests: RequestTable, alarm: Alarm, now_ns: int) -> list[Action]:
    """End the requests to be dropped whose deadline has passed."""
    actions: list[Action] = []
    for tracked in requests.drop_times.pop(now_ns):
        if not tracked.answered:
            actions += advance(requests, tracked, Cause.EXPIRED, now_ns)
    at_ns = requests.drop_times.next_ns()
    if at_ns is not None:
        alarm.want(at_ns)
    return actions


def repeat_aborts(requests: RequestTable, now_ns: int) -> list[Action]:
    """Repeat aborts without effect: the engine ignores one that overtakes its submission."""
    unanswered = requests.abort_checks.pop(now_ns)
    for tracked in unanswered:
        requests.abort_sent(tracked, now_ns)
    call_ids = tuple(tracked.generation.call_id for tracked in unanswered)
    return [Abort(call_ids=call_ids)] if unanswered else []
