"""What every store does with the lead: one controller has it, and whoever lost it changes nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from qlm.domain.errors import InvalidValueError, NotLeadingError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import Term
from qlm.domain.plan_change import CreateGroup, PlanChange, ResizeGroup, SetQueue
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestState
from qlm.store.contract_values import (
    CHAT,
    G1,
    A,
    Subject,
    alive,
    card,
    enqueued,
    hears,
    leased,
    listening,
    until,
)

ONE: Final = ControllerId("one")
OTHER: Final = ControllerId("other")
LONG_S: Final = 3600.0
"""Longer than any check takes."""
SHORT_S: Final = 0.05
"""Shorter than any check waits."""

PLAN: Final[Sequence[PlanChange]] = (
    CreateGroup(id=G1, cls=CHAT, count=1),
    SetQueue(instance=A.instance, groups=(G1,)),
)


def _writes(store: Store, term: Term) -> dict[str, Callable[[], Awaitable[object]]]:
    """All that a controller asks under its term, by name."""
    return {
        "apply": lambda: store.apply(PLAN, term),
        "apply nothing": lambda: store.apply((), term),
        "reap": lambda: store.reap(term),
        "mark_indexed": lambda: store.mark_indexed(term),
        "keep_plan": lambda: store.keep_plan(b"stale", term),
        "keep_signal": lambda: store.keep_signal(b"stale", term),
    }


async def _is_refused(store: Store, term: Term) -> None:
    """Whatever is asked under a term is refused and changes nothing."""
    before = await _kept(store)
    for name, write in _writes(store, term).items():
        try:
            await write()
        except NotLeadingError:
            continue
        raise AssertionError(f"{name} was done under {term}")
    assert not await store.resign(term)
    assert await _kept(store) == before


async def _kept(store: Store) -> tuple[object, ...]:
    """What controllers write."""
    return await store.view(), await store.indexed(), await store.kept_plan(), await store.kept_signal()


async def _lapsed(store: Store) -> None:
    async def nobody_leads() -> bool:
        return await store.leader() is None

    await until(nobody_leads, "the end of the lead")


async def check_the_first_to_ask_leads(subject: Subject) -> None:
    """Whoever asks meanwhile is told who does; a renewal keeps term and beginning."""
    store = subject.store
    assert await store.leader() is None
    first = await store.lead(ONE, LONG_S)
    assert (first.leader, first.term) == (ONE, Term(await store.incarnation(), 1))
    assert first.since_ns > 0
    assert await store.lead(OTHER, LONG_S) == first
    assert await store.lead(ONE, LONG_S) == first
    assert await store.leader() == first


async def check_a_lead_that_is_not_renewed_lapses(subject: Subject) -> None:
    """The next term is larger, also for the one that had it before."""
    store = subject.store
    terms = []
    for name in (ONE, OTHER, OTHER, ONE):
        led = await store.lead(name, SHORT_S)
        assert led.leader == name
        terms.append(led.term)
        await _lapsed(store)
    assert terms == [Term(await store.incarnation(), n) for n in (1, 2, 3, 4)]


async def check_the_last_renewal_counts(subject: Subject) -> None:
    """A shorter one shortens the lead, a longer one lengthens it; what others ask for does neither."""
    store = subject.store
    led = await store.lead(ONE, LONG_S)
    assert await store.lead(OTHER, SHORT_S) == led
    assert await store.lead(ONE, SHORT_S) == led
    await _lapsed(store)
    assert (await store.lead(OTHER, LONG_S)).term > led.term


async def check_a_lead_given_back_is_free_at_once(subject: Subject) -> None:
    """Those that stand by are woken; under a term that is not current nothing is given back."""
    store = subject.store
    led = await store.lead(ONE, LONG_S)
    async with listening(store.wakeups()) as heard:
        assert not await store.resign(Term(led.term.incarnation, led.term.n + 1))
        assert not await store.resign(Term(led.term.incarnation - 1, led.term.n))
        assert await store.leader() == led
        assert await store.resign(led.term)
        await hears(heard, ["leader"])
    assert await store.leader() is None
    assert not await store.resign(led.term)
    after = await store.lead(OTHER, LONG_S)
    assert (after.leader, after.term > led.term) == (OTHER, True)


async def check_the_leader_plans(subject: Subject) -> None:
    """Under its term all is done as without one; what is unsound is refused as ever."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await leased(store, 2, A)
    term = (await store.lead(ONE, LONG_S)).term
    await store.apply(PLAN, term)
    assert [group.id for group in (await store.virtual_queue(A.instance)).groups] == [G1]
    await store.keep_plan(b"plan", term)
    await store.keep_signal(b"signal", term)
    assert (await store.kept_plan(), await store.kept_signal()) == (b"plan", b"signal")
    assert list(await store.reap(term)) == []
    await store.leave(A)
    assert list(await store.reap(term)) == [card(2).id]
    try:
        await store.apply([ResizeGroup(id=G1, count=-1, sealed=False)], term)
    except InvalidValueError:
        return
    raise AssertionError("a count of -1 was taken")


async def check_who_lost_the_lead_changes_nothing(subject: Subject) -> None:
    """Neither while nobody leads, nor while another does, nor when it leads again under a new term."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await leased(store, 2, A)
    await store.leave(A)
    former = (await store.lead(ONE, SHORT_S)).term
    await _lapsed(store)
    await _is_refused(store, former)
    led = await store.lead(OTHER, LONG_S)
    assert led.term > former
    await _is_refused(store, former)
    await store.keep_plan(b"plan", led.term)
    assert await store.resign(led.term)
    assert (await store.lead(ONE, LONG_S)).term > led.term
    for stale in (former, led.term):
        await _is_refused(store, stale)
    assert await store.kept_plan() == b"plan"
    record = await store.record(card(2).id)
    assert record is not None and record.state is RequestState.RUNNING


async def check_terms_grow_when_the_store_is_emptied(subject: Subject) -> None:
    """The former leader must ask again before it changes anything, and is fenced by its old term."""
    former = Term(0, 0)
    for _ in range(3):
        former = (await subject.store.lead(ONE, LONG_S)).term
        assert await subject.store.resign(former)
    former = (await subject.store.lead(ONE, LONG_S)).term
    store = await subject.emptied()
    assert await store.leader() is None
    await _is_refused(store, former)
    led = await store.lead(OTHER, LONG_S)
    assert led.leader == OTHER
    assert led.term > former
    await _is_refused(store, former)
    await store.apply(PLAN, led.term)


async def check_an_empty_store_is_not_indexed_until_its_leader_says_so(subject: Subject) -> None:
    """What is written meanwhile does not count; an emptied store is not indexed either, until said again."""
    store = subject.store
    term = (await store.lead(ONE, LONG_S)).term
    await enqueued(store, 1)
    assert not await store.indexed()
    await store.mark_indexed(term)
    await store.mark_indexed(term)
    assert await store.indexed()
    store = await subject.emptied()
    await enqueued(store, 1)
    assert not await store.indexed()
    await store.mark_indexed((await store.lead(OTHER, LONG_S)).term)
    assert await store.indexed()


CHECKS = (
    check_the_first_to_ask_leads,
    check_a_lead_that_is_not_renewed_lapses,
    check_the_last_renewal_counts,
    check_a_lead_given_back_is_free_at_once,
    check_the_leader_plans,
    check_who_lost_the_lead_changes_nothing,
    check_terms_grow_when_the_store_is_emptied,
    check_an_empty_store_is_not_indexed_until_its_leader_says_so,
)
