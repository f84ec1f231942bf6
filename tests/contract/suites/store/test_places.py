"""Contract of every store: queue positions, what controllers publish, unplaced instances."""

from collections import Counter
from dataclasses import replace

from contract.suites.store.values import (
    BATCH,
    CHAT,
    G1,
    G2,
    A,
    B,
    Subject,
    alive,
    enqueued,
    leased,
    metadata,
    until,
)
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.length_histogram import length_bin
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import Store


async def _place(store: Store, n: int) -> tuple[int, int, GroupId | None, int, InstanceId | None] | None:
    place = await store.queue_position(metadata(n).id)
    if place is None:
        return None
    group = None if place.group is None else place.group.id
    return (place.predecessors, place.queued, group, place.group_predecessors, place.instance)


async def test_a_waiting_request_has_a_place(subject: Subject) -> None:
    """The position follows from the arrival order; a request that does not wait has none."""
    store = subject.store
    assert await _place(store, 1) is None
    await alive(store, A)
    await enqueued(store, 4, 2, 1, 3)
    await store.enqueue(metadata(9, cls=BATCH))
    assert await _place(store, 3) == (2, 4, None, 0, None)
    await store.apply(
        [
            CreateGroup(id=G1, cls=CHAT, count=1),
            CreateGroup(id=G2, cls=CHAT, count=2),
            SetQueue(instance=A.instance, groups=(G2,)),
        ]
    )
    assert [await _place(store, n) for n in (1, 2, 3, 4, 9)] == [
        (0, 4, G1, 0, None),
        (1, 4, G2, 0, A.instance),
        (2, 4, G2, 1, A.instance),
        (3, 4, None, 0, None),
        (0, 1, None, 0, None),
    ]
    place = await store.queue_position(metadata(3).id)
    assert place is not None and place.group is not None
    assert place.group == (await store.view()).classes[0].groups[1]
    epoch = await leased(store, 2, A, G2)
    assert [await _place(store, n) for n in (2, 3)] == [None, (1, 3, G2, 0, A.instance)]
    await store.release(metadata(2).id, epoch, "drain")
    assert [await _place(store, n) for n in (2, 3)] == [(1, 4, G2, 0, A.instance), (2, 4, None, 0, None)]
    await store.cancel(metadata(2).id)
    assert await _place(store, 2) is None


async def test_the_latest_of_each_kind_is_published(subject: Subject) -> None:
    """It is returned unchanged, whatever else is published; none is there at first; an empty one counts."""
    store, latest = subject.store, dict[PublishedKind, bytes | None].fromkeys(PublishedKind)
    assert await _published(store) == latest
    for data in (b'{"version": 1}', bytes(range(256)), b""):
        for kind in PublishedKind:
            await store.publish(kind, data + kind.encode() if data else data)
            latest[kind] = data + kind.encode() if data else data
            assert await _published(store) == latest
            assert await _published(store) == latest, "a second time"


async def _published(store: Store) -> dict[PublishedKind, bytes | None]:
    return {kind: await store.published(kind) for kind in PublishedKind}


async def test_accepted_prompts_are_counted_by_length(subject: Subject) -> None:
    """A request counts once, in the bin of its prompt, however often it is enqueued."""
    store = subject.store
    for n, tokens in ((1, 1), (2, 8), (3, 9), (4, 30_000), (5, 10_000_000), (5, 10_000_000)):
        await store.enqueue(replace(metadata(n), prompt_tokens=tokens))
    (chat,) = (await store.view()).classes
    expected = Counter(length_bin(tokens) for tokens in (1, 8, 9, 30_000, 10_000_000))
    assert {at: count for at, count in enumerate(chat.prompts) if count} == expected


async def test_an_unplaced_instance_is_listed_until_it_lives(subject: Subject) -> None:
    """It is listed with the latest reason, outside of views, until the report expires."""
    store = subject.store
    assert await store.unplaced() == {}
    await store.report_unplaced(B.instance, "no node offers H100: 1", 3600.0)
    await store.report_unplaced(A.instance, "in use", 3600.0)
    await store.report_unplaced(A.instance, "no node is alive", 3600.0)
    assert list((await store.unplaced()).items()) == [
        (A.instance, "no node is alive"),
        (B.instance, "no node offers H100: 1"),
    ]
    assert (await store.view()).instances == ()
    await alive(store, A)
    assert list(await store.unplaced()) == [B.instance]
    await store.leave(A)
    assert list(await store.unplaced()) == [B.instance]
    await store.report_unplaced(B.instance, "in use", 0.001)

    async def forgotten() -> bool:
        return await store.unplaced() == {}

    await until(forgotten, "the end of what was said")


async def test_a_refused_agent_is_listed_until_the_report_expires(subject: Subject) -> None:
    """With the latest reason, whether its instance lives or not."""
    store = subject.store
    assert await store.refused_agents() == {}
    await alive(store, A)
    await store.report_refused_agent(B.instance, "process 1", 3600.0)
    await store.report_refused_agent(A.instance, "process 2", 3600.0)
    await store.report_refused_agent(A.instance, "process 3", 3600.0)
    assert list((await store.refused_agents()).items()) == [
        (A.instance, "process 3"),
        (B.instance, "process 1"),
    ]
    await store.report_refused_agent(A.instance, "process 3", 0.001)

    async def forgotten() -> bool:
        return list(await store.refused_agents()) == [B.instance]

    await until(forgotten, "the end of the report")
