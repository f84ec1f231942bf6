"""Contract of the leases of instances: one session of an instance at a time."""

from contract.suites.store.values import (
    A_AGAIN,
    PROCESS,
    A,
    B,
    Subject,
    alive,
    leased,
    listening,
    receives,
    status,
    until,
)
from qlm.domain.ids import ModelId, SessionId
from qlm.domain.lease import Holder, InstanceHeld
from qlm.domain.notices import DrainAsked

TTL_S = 3600.0
A_THIRD = Holder(A.instance, SessionId("a3"))


async def test_a_second_session_is_refused_while_the_first_lives(subject: Subject) -> None:
    """It is told who has the lease, and for how long; nothing changes, and nobody is woken."""
    store = subject.store
    await store.heartbeat(status(A), TTL_S)
    await store.ask_drain(A.instance)
    async with listening(store.wakeups()) as received:
        for session in (A_AGAIN, A_THIRD):
            refusal = await store.heartbeat(status(session, active=ModelId("llama")), TTL_S)
            assert refusal is not None
            assert (refusal.session, refusal.process) == (A.session, PROCESS)
            assert 0 < refusal.lapses_in_s <= TTL_S
        assert (await store.view()).instances == (status(A),)
        await alive(store, B)
        await receives(received, ["instance"])
    async with listening(store.notices(A.instance)) as notices:
        await receives(notices, [DrainAsked()])


async def test_the_session_that_has_the_lease_renews_it(subject: Subject) -> None:
    """The refusals of others do not disturb it."""
    store = subject.store
    await alive(store, A)
    assert await store.heartbeat(status(A_AGAIN), TTL_S) is not None
    assert await store.heartbeat(status(A, running=3), TTL_S) is None
    assert await store.heartbeat(status(A_AGAIN), TTL_S) is not None
    assert (await store.view()).instances == (status(A, running=3),)
    await leased(store, 1, A)


async def test_a_lease_that_lapsed_is_free(subject: Subject) -> None:
    """The session that had it is refused from then on."""
    store = subject.store
    await store.heartbeat(status(A), 0.05)

    async def acquired() -> bool:
        return await store.heartbeat(status(A_AGAIN), TTL_S) is None

    await until(acquired, "the lease of A to lapse")
    refusal = await store.heartbeat(status(A), TTL_S)
    assert refusal is not None and refusal.session == A_AGAIN.session


async def test_a_session_that_left_does_not_hold_the_instance(subject: Subject) -> None:
    """A session without the lease cannot give it up for the one that has it."""
    store = subject.store
    await alive(store, A)
    await store.leave(A_AGAIN)
    assert await store.heartbeat(status(A_AGAIN), TTL_S) is not None
    await store.leave(A)
    assert await store.heartbeat(status(A_AGAIN), TTL_S) is None


async def test_only_the_named_session_is_replaced(subject: Subject) -> None:
    """Of two that saw the same session end, one takes over."""
    store = subject.store
    await alive(store, A)
    async with listening(store.wakeups()) as received:
        assert await store.heartbeat(status(A_AGAIN), TTL_S, A.session) is None
        await receives(received, ["instance"])
        refusal = await store.heartbeat(status(A_THIRD), TTL_S, A.session)
        assert isinstance(refusal, InstanceHeld) and refusal.session == A_AGAIN.session
    assert (await store.view()).instances == (status(A_AGAIN),)
    assert await store.heartbeat(status(A_AGAIN), TTL_S, A.session) is None, "said twice"


async def test_an_emptied_store_gives_the_lease_to_the_first_that_asks(subject: Subject) -> None:
    """The other one learns it with its next heartbeat."""
    await alive(subject.store, A)
    store = await subject.emptied()
    assert await store.heartbeat(status(A_AGAIN), TTL_S) is None
    refusal = await store.heartbeat(status(A), TTL_S)
    assert refusal is not None and refusal.session == A_AGAIN.session
