"""Contract of every store: one controller leads, and one that lost leadership changes nothing."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from contract.suites.store.values import (
    CHAT,
    G1,
    A,
    Subject,
    alive,
    enqueued,
    leased,
    listening,
    metadata,
    receives,
    until,
)
from qlm.domain.errors import InvalidValueError, NotLeadingError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import Term
from qlm.domain.plan_change import CreateGroup, PlanChange, ResizeGroup, SetQueue
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestState

ONE: Final = ControllerId("one")
OTHER: Final = ControllerId("other")
LONG_S: Final = 3600.0
"""Longer than any check runs."""
SHORT_S: Final = 0.05
"""Shorter than any check waits."""

PLAN: Final[Sequence[PlanChange]] = (
    CreateGroup(id=G1, cls=CHAT, count=1),
    SetQueue(instance=A.instance, groups=(G1,)),
)


def _writes(store: Store, term: Term) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every write of a controller under its term, by name."""
    return {
        "apply": lambda: store.apply(PLAN, term),
        "apply nothing": lambda: store.apply((), term),
        "expire_leases": lambda: store.expire_leases(term),
        "mark_indexed": lambda: store.mark_indexed(term),
        **{f"publish {kind}": partial(store.publish, kind, b"stale", term) for kind in PublishedKind},
    }


async def _is_refused(store: Store, term: Term) -> None:
    """Check that every write under a term is rejected and changes nothing."""
    before = await _written(store)
    for name, write in _writes(store, term).items():
        try:
            await write()
        except NotLeadingError:
            continue
        raise AssertionError(f"{name} was done under {term}")
    assert not await store.resign(term)
    assert await _written(store) == before


async def _written(store: Store) -> tuple[object, ...]:
    """Return all state that controllers write."""
    return (
        await store.view(),
        await store.indexed(),
        *[await store.published(kind) for kind in PublishedKind],
    )


async def _lapsed(store: Store) -> None:
    async def nobody_leads() -> bool:
        return await store.leader() is None

    await until(nobody_leads, "the end of the lead")


async def test_the_first_to_ask_leads(subject: Subject) -> None:
    """Others get the leadership that stands; a renewal keeps term and beginning."""
    store = subject.store
    assert await store.leader() is None
    first = await store.acquire_leadership(ONE, LONG_S)
    assert (first.leader, first.term) == (ONE, Term(await store.incarnation(), 1))
    assert first.since_ns > 0
    assert await store.acquire_leadership(OTHER, LONG_S) == first
    assert await store.acquire_leadership(ONE, LONG_S) == first
    assert await store.leader() == first


async def test_leadership_lapses_without_renewal(subject: Subject) -> None:
    """The next term is larger, also for the former leader."""
    store = subject.store
    terms = []
    for name in (ONE, OTHER, OTHER, ONE):
        led = await store.acquire_leadership(name, SHORT_S)
        assert led.leader == name
        terms.append(led.term)
        await _lapsed(store)
    assert terms == [Term(await store.incarnation(), n) for n in (1, 2, 3, 4)]


async def test_the_last_renewal_counts(subject: Subject) -> None:
    """The last renewal of the leader alone decides when leadership lapses."""
    store = subject.store
    led = await store.acquire_leadership(ONE, LONG_S)
    assert await store.acquire_leadership(OTHER, SHORT_S) == led
    assert await store.acquire_leadership(ONE, SHORT_S) == led
    await _lapsed(store)
    assert (await store.acquire_leadership(OTHER, LONG_S)).term > led.term


async def test_leadership_is_free_at_once_after_resigning(subject: Subject) -> None:
    """Standby controllers are woken; resigning under a former term does nothing."""
    store = subject.store
    led = await store.acquire_leadership(ONE, LONG_S)
    async with listening(store.wakeups()) as received:
        assert not await store.resign(Term(led.term.incarnation, led.term.n + 1))
        assert not await store.resign(Term(led.term.incarnation - 1, led.term.n))
        assert await store.leader() == led
        assert await store.resign(led.term)
        await receives(received, ["leader"])
    assert await store.leader() is None
    assert not await store.resign(led.term)
    after = await store.acquire_leadership(OTHER, LONG_S)
    assert (after.leader, after.term > led.term) == (OTHER, True)


async def test_the_leader_plans(subject: Subject) -> None:
    """Writes under its term work as without one; invalid ones are rejected."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await leased(store, 2, A)
    term = (await store.acquire_leadership(ONE, LONG_S)).term
    await store.apply(PLAN, term)
    assert [group.id for group in (await store.virtual_queue(A.instance)).groups] == [G1]
    for kind in PublishedKind:
        await store.publish(kind, kind.encode(), term)
    assert [await store.published(kind) for kind in PublishedKind] == [k.encode() for k in PublishedKind]
    assert list(await store.expire_leases(term)) == []
    await store.leave(A)
    assert list(await store.expire_leases(term)) == [metadata(2).id]
    try:
        await store.apply([ResizeGroup(id=G1, count=-1, sealed=False)], term)
    except InvalidValueError:
        return
    raise AssertionError("a count of -1 was taken")


async def test_a_former_leader_changes_nothing(subject: Subject) -> None:
    """Its former term is void without a leader, under another leader, and under its own later term."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await leased(store, 2, A)
    await store.leave(A)
    former = (await store.acquire_leadership(ONE, SHORT_S)).term
    await _lapsed(store)
    await _is_refused(store, former)
    led = await store.acquire_leadership(OTHER, LONG_S)
    assert led.term > former
    await _is_refused(store, former)
    await store.publish(PublishedKind.PLAN, b"plan", led.term)
    assert await store.resign(led.term)
    assert (await store.acquire_leadership(ONE, LONG_S)).term > led.term
    for stale in (former, led.term):
        await _is_refused(store, stale)
    assert await store.published(PublishedKind.PLAN) == b"plan"
    record = await store.record(metadata(2).id)
    assert record is not None and record.state is RequestState.RUNNING


async def test_terms_grow_when_the_store_is_emptied(subject: Subject) -> None:
    """The former leader must ask again before it changes anything, and is fenced by its old term."""
    former = Term(0, 0)
    for _ in range(3):
        former = (await subject.store.acquire_leadership(ONE, LONG_S)).term
        assert await subject.store.resign(former)
    former = (await subject.store.acquire_leadership(ONE, LONG_S)).term
    store = await subject.emptied()
    assert await store.leader() is None
    await _is_refused(store, former)
    led = await store.acquire_leadership(OTHER, LONG_S)
    assert led.leader == OTHER
    assert led.term > former
    await _is_refused(store, former)
    await store.apply(PLAN, led.term)


async def test_an_empty_store_is_not_indexed_until_its_leader_says_so(subject: Subject) -> None:
    """Other writes do not set it, and an emptied store is not indexed until it is marked again."""
    store = subject.store
    term = (await store.acquire_leadership(ONE, LONG_S)).term
    await enqueued(store, 1)
    assert not await store.indexed()
    await store.mark_indexed(term)
    await store.mark_indexed(term)
    assert await store.indexed()
    store = await subject.emptied()
    await enqueued(store, 1)
    assert not await store.indexed()
    await store.mark_indexed((await store.acquire_leadership(OTHER, LONG_S)).term)
    assert await store.indexed()
