"""Writes output logs: batched, one write of a request under way, and its end only after its log.

First tokens and ends are written at once, since a client waits for exactly those. Tokens in the middle of an
answer are, too, while few requests run; with more, they are written once per interval, which grows while the
process is too busy for its timers (decision 2). The end of one request never holds up the tokens of another.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final

from qlm.agents.core.events import Appended
from qlm.agents.core.lifecycle import Cause, advance, logged
from qlm.agents.core.request import Phase, TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Ack, Action, Append
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.output import AppendResult, LogEntry

LATENESS_FACTOR: Final = 4
"""Shortest interval of writes as a multiple of the lateness of timers: coarser events cost less."""

INTERVAL_MAX_NS: Final = 50_000_000
"""Longest interval for that reason; readers see single pauses beyond it."""


def flush(state: AgentState, now_ns: int) -> list[Action]:
    """Settle what is fully logged, and start a write if one is due and none is in flight."""
    output = state.requests.output
    actions = _settle_touched(state, now_ns) if output.touched else []
    if (due_ns := output.due_ns()) is None:
        return actions
    if now_ns < due_ns:
        state.alarm.want(due_ns)
        return actions
    for taken in output.begin_write(now_ns):
        if taken:
            actions.append(Append(entries=tuple([_entry(tracked) for tracked in taken])))
    return actions


def _settle_touched(state: AgentState, now_ns: int) -> list[Action]:
    """Queue touched requests with something to write; carry out the disposition of fully logged ones."""
    actions: list[Action] = []
    requests, output, apart = state.requests, state.requests.output, state.settings.ends_apart
    for id, tracked in output.take_touched().items():
        blocked = apart and tracked.phase is Phase.CLOSING and tracked.claim.writing
        if tracked.claim.epoch is None or blocked:
            output.remove(id)  # a new lease, or the answer to its write, touches it again
        elif (ends := _end_due(tracked)) or len(tracked.output) > tracked.sent or _more_due(tracked):
            output.place(tracked, ends=apart and ends)
        else:
            output.remove(id)
            if tracked.phase is Phase.CLOSING and tracked.logged >= len(tracked.output):
                demotes = state.settings.demotes_decided
                actions += logged(requests, tracked, draining=state.draining, demotes_decided=demotes)
                if tracked.generation.preempted:
                    state.stats.operations.preempted(tracked, now_ns)
                    state.alarm.want(now_ns + 1)  # a slot may be free, and nothing else may come to say so
    return actions


def appended(state: AgentState, event: Appended, now_ns: int) -> list[Action]:
    """Process the results of a write."""
    requests, settings = state.requests, state.settings
    ends = settings.ends_apart and event.entries[0].outcome is not None
    if event.results is None:
        requests.output.fail_write(now_ns + settings.retry_ns, ends=ends)
        for entry in event.entries:
            _unsend(requests, entry)
        return []
    if not ends:
        requests.output.end_write(now_ns, interval_ns=_interval_ns(state))
    actions: list[Action] = []
    for entry, result in zip(event.entries, event.results, strict=True):
        tracked = requests.all.get(entry.id)
        if tracked is not None and _of_this_lease(tracked, entry):
            tracked.claim.writing = False
            if result is AppendResult.TAKEN and entry.outcome is None:  # the most frequent one
                tracked.logged = entry.offset + len(entry.token_ids)
                if tracked.phase is Phase.CLOSING:
                    requests.output.touch(tracked)
            else:
                actions += _settled(requests, tracked, entry, result)
    return actions


def decides_nothing(event: Appended, requests: RequestTable) -> bool:
    """Return True for tokens and ends that were written while others generate.

    They free no slot, since an end did so when the generation ended; and a swap waits for those others.
    """
    if event.results is None or not requests.calls:
        return False
    return all([each is AppendResult.TAKEN for each in event.results])


def _interval_ns(state: AgentState) -> int:
    settings = state.settings
    if len(state.requests.running) <= settings.append_at_once_max:
        return 0
    busy_ns = min(LATENESS_FACTOR * state.requests.output.lateness_ns, INTERVAL_MAX_NS)
    return max(round(settings.append_interval_s * 1e9), busy_ns)


def _settled(
    requests: RequestTable, tracked: TrackedRequest, entry: LogEntry, result: AppendResult
) -> list[Action]:
    """Process the result of an end that was taken, or of an entry that was not."""
    match result:
        case AppendResult.TAKEN:
            tracked.logged = entry.offset + len(entry.token_ids)
            return [*advance(requests, tracked, Cause.LOGGED), Ack(delivery=tracked.claim.delivery)]
        case AppendResult.ENDED:
            return [*advance(requests, tracked, Cause.FORGOTTEN), Ack(delivery=tracked.claim.delivery)]
        case AppendResult.STALE:
            # The lease is lost, but perhaps to no other agent: return the message, whose lease decides.
            return [*advance(requests, tracked, Cause.FORGOTTEN), tracked.to_queue(None, "lease lost")]
        case AppendResult.UNKNOWN | AppendResult.GAP:
            tracked.claim.epoch = None
            tracked.exit.sent = False
            requests.output.forget(entry.id)
            requests.to_restore.add(entry.id)
            return []


def _end_due(tracked: TrackedRequest) -> bool:
    return tracked.phase is Phase.CLOSING and tracked.ended and not tracked.exit.sent


def _more_due(tracked: TrackedRequest) -> bool:
    """Return True if a request that leaves has something to log besides tokens."""
    generation = tracked.generation
    unscored = generation.scores is not None and generation.scores.sent < len(tracked.output)
    return tracked.phase is Phase.CLOSING and (generation.unrecorded or unscored)


def _entry(tracked: TrackedRequest) -> LogEntry:
    ending, claim, exit, generation = _end_due(tracked), tracked.claim, tracked.exit, tracked.generation
    epoch, sent, output = claim.epoch, tracked.sent, tracked.output
    assert epoch is not None
    entry = LogEntry(
        id=tracked.id,
        epoch=epoch,
        offset=sent,
        token_ids=tuple(output[sent:] if sent else output),
        outcome=exit.outcome if ending else None,
        detail=exit.why if ending else "",
        extensions=_extensions(tracked, ending=ending),
    )
    tracked.sent = len(output)
    if generation.scores is not None:
        generation.scores.sent = tracked.sent
    claim.writing = True
    generation.unrecorded = False
    exit.sent = ending
    return entry


def _extensions(tracked: TrackedRequest, *, ending: bool) -> LogExtensions:
    generation = tracked.generation
    if not ending and generation.scores is None and not generation.unrecorded:
        return NO_LOG_EXTENSIONS
    new = generation.unrecorded
    counts = _counts(
        generation.preemptions or None if new else None,
        generation.losses or None if new else None,
        generation.cached_tokens if ending else None,
    )
    if generation.scores is None:
        return counts
    pieces = generation.scores.unsent(tracked.request.prompt_tokens, len(tracked.output))
    return replace(counts, logprobs_at=pieces) if pieces else counts


@lru_cache(maxsize=1024)
def _counts(preemptions: int | None, losses: int | None, cached_tokens: int | None) -> LogExtensions:
    if preemptions is None and losses is None and cached_tokens is None:
        return NO_LOG_EXTENSIONS
    return LogExtensions(preemptions=preemptions, engine_losses=losses, cached_tokens=cached_tokens)


def _of_this_lease(tracked: TrackedRequest, entry: LogEntry) -> bool:
    epoch = tracked.claim.epoch
    return epoch is entry.epoch or epoch == entry.epoch


def _unsend(requests: RequestTable, entry: LogEntry) -> None:
    tracked = requests.all.get(entry.id)
    if tracked is not None and _of_this_lease(tracked, entry):
        tracked.sent = tracked.logged
        if tracked.generation.scores is not None:
            tracked.generation.scores.unsend(entry.extensions.logprobs_at, tracked.logged)
        tracked.claim.writing = False
        tracked.exit.sent = False
        counts = entry.extensions.preemptions, entry.extensions.engine_losses
        tracked.generation.unrecorded |= counts != (None, None)
        requests.output.touch(tracked)
