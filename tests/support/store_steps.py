"""Random histories of a store: few requests, groups and holders, so that steps meet."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import strategies as st

from contract.suites.store.values import (
    A_AGAIN,
    ARRIVAL_NS,
    BATCH,
    CHAT,
    GATEWAY,
    OTHER_GATEWAY,
    A,
    B,
    metadata,
    status,
)
from qlm.domain.errors import NotLeadingError
from qlm.domain.formats.extensions import (
    NO_LOG_EXTENSIONS,
    ClassExtensions,
    LogExtensions,
    RequestExtensions,
)
from qlm.domain.ids import ControllerId, GroupId, InstanceId, RequestId, TokenIds
from qlm.domain.leadership import Term
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.plan_change import CloseGroup, CreateGroup, ResizeGroup, SetForecasts, SetHomes, SetQueue
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestMetadata, RequestState
from qlm.domain.view import RequestFilter
from qlm.domain.virtual_queue import ClassForecast
from qlm.store.core.limits import StoreLimits
from support.extensions import OF_LOG, OF_REQUEST

START_NS = ARRIVAL_NS
LIMITS = StoreLimits(results_max=2, events_max=6, lengths_window=2, events_waiting_max=2)
HEARTBEAT_TTL_S = 1e7
"""Instances die by leaving only: the stores under comparison may have different clocks."""

EXTENSIONS: Final = (
    RequestExtensions(),
    OF_REQUEST,
    RequestExtensions(cls=ClassExtensions(p_met=0.5)),
    RequestExtensions(p_met=0.25, notify=True),
    RequestExtensions(cls=ClassExtensions(deadline_ms=3.0, reader_tokens_per_s=2.0)),
)
# Ids do not sort as arrivals do, and two requests arrive at the same nanosecond.
REQUESTS: tuple[RequestMetadata, ...] = tuple(
    replace(
        metadata(n, cls=CHAT if n != 2 else BATCH, drop=n == 1),
        arrival_ns=ARRIVAL_NS + (2, 1, 0, 1, 3)[n],
        extensions=EXTENSIONS[n],
    )
    for n in range(5)
)
OTHER_BODY = replace(REQUESTS[3], fingerprint="other", arrival_ns=ARRIVAL_NS + 4)
"""Has the id of another request, as two bodies with one Idempotency-Key have."""
HOLDERS = (A, A_AGAIN, B)
CONTROLLERS = (ControllerId("one"), ControllerId("other"))
GROUPS = tuple(GroupId(f"g{n}") for n in range(3))
INSTANCES = (A.instance, B.instance)
LAST_DUE_NS = max(metadata.drop_at_ns or 0 for metadata in REQUESTS)


@dataclass(frozen=True)
class Step:
    """One call: `run` makes it on a store of the given incarnation, `pass_s` seconds after the last step."""

    name: str
    run: Callable[[Store, int], Awaitable[Any]]
    pass_s: float = 0.0

    def __repr__(self) -> str:
        return f"{self.name} (after {self.pass_s:g} s)"


any_metadata = st.sampled_from((*REQUESTS, OTHER_BODY))
ids = st.sampled_from([metadata.id for metadata in REQUESTS])
holders = st.sampled_from(HOLDERS)
groups = st.sampled_from(GROUPS)
watchers = st.sampled_from((None, GATEWAY, OTHER_GATEWAY))
token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)
ends = st.sampled_from((None, None, None, Outcome.STOP, Outcome.LENGTH, Outcome.REFUSED, Outcome.FAILED))
mostly_zero = st.sampled_from((0, 0, 0, 0, 0, 0, 0, -1, 1))
off_by = st.tuples(st.sampled_from((0,) * 9 + (-1,)), mostly_zero)
"""Offsets to the incarnation and n of the current lease of a request."""
FORECAST = ClassForecast(cls=CHAT, service_s=0.5, answer_s=2.0, rate_rps=1.0)
changes = st.one_of(
    st.builds(CreateGroup, id=groups, cls=st.sampled_from((CHAT, BATCH)), count=st.integers(0, 3)),
    st.builds(ResizeGroup, id=groups, count=st.integers(0, 4), sealed=st.booleans()),
    st.builds(CloseGroup, id=groups),
    st.builds(
        SetQueue,
        instance=st.sampled_from(INSTANCES),
        groups=st.lists(groups, max_size=4).map(tuple),
    ),
    st.builds(
        SetForecasts,
        instance=st.sampled_from(INSTANCES),
        forecasts=st.sampled_from(
            ((), (ClassForecast(cls=CHAT, service_s=0.5, answer_s=2.0, rate_rps=1.0),))
        ),
    ),
    st.builds(
        SetHomes,
        instance=st.sampled_from(INSTANCES),
        models=st.sampled_from(((), (CHAT.model,), (BATCH.model, CHAT.model))),
    ),
)
filters = st.builds(
    RequestFilter,
    state=st.sampled_from((None, *RequestState)),
    model=st.sampled_from((None, CHAT.model, BATCH.model)),
    limit=st.integers(1, 4),
)


EntryParts = tuple[RequestId, tuple[int, int], int, TokenIds, Outcome | None, LogExtensions]


async def _epoch(store: Store, incarnation: int, id: RequestId, off: tuple[int, int]) -> Epoch:
    record = await store.record(id)
    if record and record.lease:
        epoch = record.lease.epoch
    else:
        # Rows without a lease do not tell their incarnation, which begins with them.
        epoch = Epoch(max(incarnation, record.events[0].at_ns if record else 0), 1)
    return Epoch(epoch.incarnation + off[0], epoch.n + off[1])


async def _entry(store: Store, incarnation: int, parts: EntryParts) -> LogEntry:
    id, off, offset_off, ids_, outcome, extensions = parts
    record = await store.record(id)
    return LogEntry(
        id=id,
        epoch=await _epoch(store, incarnation, id, off),
        offset=max(0, (record.output_tokens if record else 0) + offset_off),
        token_ids=ids_,
        outcome=outcome,
        detail="broke" if outcome is Outcome.FAILED else "",
        extensions=extensions,
    )


any_extensions = st.sampled_from(
    (NO_LOG_EXTENSIONS,) * 4
    + (LogExtensions(), OF_LOG, LogExtensions(render_state="x", render_state_tokens=1))
)
entries = st.tuples(ids, off_by, mostly_zero, token_ids, ends, any_extensions)


def _enqueue(metadata: RequestMetadata, watcher: Any) -> Step:
    return Step(f"enqueue {metadata.id} for {watcher}", lambda store, _: store.enqueue(metadata, watcher))


def _lease(metadata: RequestMetadata, holder: Any, group: Any) -> Step:
    return Step(
        f"lease {metadata.id} to {holder} of {group}", lambda store, _: store.lease(metadata, holder, group)
    )


def _reregister(metadata: RequestMetadata, holder: Any, output: Any) -> Step:
    name = f"reregister {metadata.id} of {holder} with {output}"
    return Step(name, lambda store, _: store.reregister(metadata, holder, output))


def _append(parts: Sequence[EntryParts]) -> Step:
    async def run(store: Store, incarnation: int) -> Any:
        return await store.append([await _entry(store, incarnation, one) for one in parts])

    return Step(f"append {parts}", run)


def _hold(what: str, id: RequestId, off: tuple[int, int]) -> Step:
    async def run(store: Store, incarnation: int) -> bool:
        epoch = await _epoch(store, incarnation, id, off)
        if what == "resume":
            return await store.resume(id, epoch)
        return await (store.park if what == "park" else store.release)(id, epoch, "because")

    return Step(f"{what} {id} under {off}", run)


def _demote(metadata: RequestMetadata, off: tuple[int, int]) -> Step:
    late = replace(metadata, cls=metadata.cls.missed())

    async def run(store: Store, incarnation: int) -> bool:
        return await store.demote(late, await _epoch(store, incarnation, metadata.id, off), "because")

    return Step(f"demote {metadata.id} under {off}", run)


def _heartbeat(holder: Any, replaces: Any, running: int) -> Step:
    beat = status(holder, running=running, active=CHAT.model if running > 1 else None)
    former = None if replaces is None else replaces.session

    async def run(store: Store, incarnation: int) -> Any:
        refusal = await store.heartbeat(beat, HEARTBEAT_TTL_S, former)
        return None if refusal is None else (refusal.session, refusal.process)

    return Step(f"heartbeat {holder} {running} for {former}", run)


def _led(name: str, off: tuple[int, int], write: Callable[[Store, Term], Awaitable[Any]]) -> Step:
    """Step of a leader, with an offset to the current term."""

    async def run(store: Store, incarnation: int) -> Any:
        led = await store.leader()
        term = Term(incarnation + off[0], (led.term.n if led else 1) + off[1])
        try:
            return await write(store, term)
        except NotLeadingError as error:
            return str(error)

    return Step(f"{name} under {off}", run)


def _with_pause(step: Step, pass_s: float) -> Step:
    return replace(step, pass_s=pass_s)


def _add_end(subject: str) -> Step:
    event = EndEvent(subject=subject, ended_as="completed", tenant="é", at_ns=START_NS)
    return Step(f"add end {subject}", lambda store, _: store.add_end(event))


def _notify(limit: int, again_s: float | None) -> Step:
    """Claim events, and settle the first one; what was claimed stays so for long."""

    async def notified(store: Store, _: int) -> Any:
        claimed = await store.claim_ends(limit, 1e4)
        again_ns = None if again_s is None else START_NS + round(again_s * 1e9)
        settled = [
            await store.settle_end(
                replace(each, done=("one",), failures=each.attempts, ended_as="ü"), again_ns
            )
            for each in claimed[:1]
        ]
        return claimed, settled, [await store.settle_end(each, None) for each in claimed[:1]]

    return Step(f"notify {limit} {again_s}", notified)


_steps = st.one_of(
    st.builds(_enqueue, any_metadata, watchers),
    st.builds(_enqueue, any_metadata, watchers),
    st.builds(_lease, any_metadata, holders, st.sampled_from((None, *GROUPS))),
    st.builds(_lease, any_metadata, holders, st.sampled_from((None, *GROUPS))),
    st.builds(_append, st.lists(entries, min_size=1, max_size=3)),
    st.builds(_append, st.lists(entries, min_size=1, max_size=3)),
    st.builds(_hold, st.sampled_from(("park", "resume", "release")), ids, off_by),
    st.builds(_demote, any_metadata, off_by),
    st.builds(_reregister, any_metadata, holders, token_ids),
    st.builds(_heartbeat, holders, st.none() | holders, st.integers(0, 2)),
    st.builds(lambda h: Step(f"leave {h}", lambda store, _: store.leave(h)), holders),
    st.just(Step("expire_leases", lambda store, _: store.expire_leases())),
    st.builds(
        lambda id, o: Step(f"cancel {id} {o}", lambda store, _: store.cancel(id, o)),
        ids,
        st.sampled_from((Outcome.CANCELLED, Outcome.STOP)),
    ),
    st.builds(
        lambda some: Step(
            f"end_waiting {some}", lambda store, _: store.end_waiting(some, Outcome.OUTPUT_LOST, "gone")
        ),
        st.lists(ids, max_size=3, unique=True),
    ),
    st.builds(lambda c: Step(f"withdraw {c.id}", lambda store, _: store.withdraw(c)), any_metadata),
    st.builds(lambda c: Step(f"erase {c.id}", lambda store, _: store.erase(c)), any_metadata),
    st.builds(
        lambda due, n: Step(f"expire {due} {n}", lambda store, _: store.expire(due, n)),
        st.sampled_from((START_NS, LAST_DUE_NS - 2, LAST_DUE_NS)),
        st.integers(1, 3),
    ),
    st.builds(lambda c: Step(f"apply {c}", lambda store, _: store.apply(c)), st.lists(changes, max_size=4)),
    st.builds(lambda c: Step(f"apply {c}", lambda store, _: store.apply(c)), st.lists(changes, max_size=4)),
    st.builds(
        lambda each, w: Step(f"watch {each.id} {w}", lambda store, _: store.watch(each, w)),
        any_metadata,
        st.sampled_from((GATEWAY, OTHER_GATEWAY)),
    ),
    st.builds(
        lambda id, w: Step(f"unwatch {id} {w}", lambda store, _: store.unwatch(id, w)),
        ids,
        st.sampled_from((GATEWAY, OTHER_GATEWAY)),
    ),
    st.builds(
        lambda id, o: Step(f"read {id} {o}", lambda store, _: store.read_output(id, o)),
        ids,
        st.integers(0, 4),
    ),
    st.builds(
        lambda name: Step(f"lead {name}", lambda store, _: store.acquire_leadership(name, HEARTBEAT_TTL_S)),
        st.sampled_from(CONTROLLERS),
    ),
    st.builds(lambda off: _led("resign", off, lambda store, term: store.resign(term)), off_by),
    st.builds(lambda off: _led("expire_leases", off, lambda store, term: store.expire_leases(term)), off_by),
    st.builds(
        lambda c, off: _led(f"apply {c}", off, lambda store, term: store.apply(c, term)),
        st.lists(changes, max_size=4),
        off_by,
    ),
    st.builds(
        lambda kind, data, off: _led(
            f"publish {kind} {data!r}", off, lambda store, term: store.publish(kind, data, term)
        ),
        st.sampled_from(PublishedKind),
        st.sampled_from((b"published", b"")),
        off_by,
    ),
    st.builds(lambda off: _led("mark indexed", off, lambda store, term: store.mark_indexed(term)), off_by),
    st.builds(_add_end, st.sampled_from(("batch_1", REQUESTS[0].id))),
    st.builds(_notify, st.integers(1, 3), st.sampled_from((None, 0.0, 1e5))),
    st.builds(lambda w: Step(f"records {w}", lambda store, _: store.records(w)), filters),
    st.builds(lambda i: Step(f"drain {i}", lambda store, _: store.ask_drain(i)), st.sampled_from(INSTANCES)),
)

# More than a day passes now and then: results are kept for a day.
steps = st.builds(_with_pause, _steps, st.sampled_from((0.0,) + (0.001,) * 18 + (90_000.0,)))
histories = st.lists(steps, min_size=20, max_size=60)


async def snapshot(store: Store) -> dict[str, Any]:
    """Read everything that a store returns."""
    return {
        "view": await store.view(),
        "records": list(await store.records(RequestFilter(limit=1000))),
        "places": [await store.queue_position(metadata.id) for metadata in REQUESTS],
        "outputs": [await store.read_output(metadata.id, 0) for metadata in REQUESTS],
        "waiting": [await store.waiting(each.cls) for each in (await store.view()).classes],
        "indexed": await store.indexed(),
        "leader": await store.leader(),
        "outbox": await store.outbox_state(),
        "published": [await store.published(kind) for kind in PublishedKind],
        "queues": [await store.virtual_queue(InstanceId(name)) for name in INSTANCES],
    }


class SteppedClock:
    """Clock that moves only by `advance`."""

    def __init__(self) -> None:
        self.time_ns = START_NS

    def now_ns(self) -> int:
        return self.time_ns

    def advance(self, seconds: float) -> None:
        self.time_ns += round(seconds * 1e9)
