"""What every store tells those who look: where a request stands, and the latest plan."""

from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.domain.ports.store import Store
from qlm.store.contract_values import BATCH, CHAT, G1, G2, A, B, Subject, alive, card, enqueued, leased, until


async def _place(store: Store, n: int) -> tuple[int, int, GroupId | None, int, InstanceId | None] | None:
    place = await store.queue_place(card(n).id)
    if place is None:
        return None
    group = None if place.group is None else place.group.id
    return (place.ahead, place.queued, group, place.group_ahead, place.instance)


async def check_a_waiting_request_has_a_place(subject: Subject) -> None:
    """In its class by arrival, and so in the group that covers it; whoever does not wait has none."""
    store = subject.store
    assert await _place(store, 1) is None
    await alive(store, A)
    await enqueued(store, 4, 2, 1, 3)
    await store.enqueue(card(9, cls=BATCH))
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
    place = await store.queue_place(card(3).id)
    assert place is not None and place.group is not None
    assert place.group == (await store.view()).classes[0].groups[1]
    epoch = await leased(store, 2, A, G2)
    assert [await _place(store, n) for n in (2, 3)] == [None, (1, 3, G2, 0, A.instance)]
    await store.release(card(2).id, epoch, "drain")
    assert [await _place(store, n) for n in (2, 3)] == [(1, 4, G2, 0, A.instance), (2, 4, None, 0, None)]
    await store.cancel(card(2).id)
    assert await _place(store, 2) is None


async def check_the_latest_plan_is_kept(subject: Subject) -> None:
    """As it was given; there is none at first, and an empty one is one."""
    store = subject.store
    assert await store.kept_plan() is None
    for data in (b'{"version": 1}', bytes(range(256)), b""):
        await store.keep_plan(data)
        assert await store.kept_plan() == data
        assert await store.kept_plan() == data


async def check_the_latest_signal_is_kept(subject: Subject) -> None:
    """Likewise, and neither stands for the other."""
    store = subject.store
    assert await store.kept_signal() is None
    await store.keep_plan(b"plan")
    assert await store.kept_signal() is None
    for data in (b'{"version": 1}', bytes(range(256)), b""):
        await store.keep_signal(data)
        assert await store.kept_signal() == data
    assert await store.kept_plan() == b"plan"


async def check_an_instance_without_a_place_is_told_of_until_it_lives(subject: Subject) -> None:
    """With the latest reason; it is no instance before, and forgotten when nobody says it any more."""
    store = subject.store
    assert await store.unplaced() == {}
    await store.say_unplaced(B.instance, "no node offers H100: 1", 3600.0)
    await store.say_unplaced(A.instance, "in use", 3600.0)
    await store.say_unplaced(A.instance, "no node is alive", 3600.0)
    assert list((await store.unplaced()).items()) == [
        (A.instance, "no node is alive"),
        (B.instance, "no node offers H100: 1"),
    ]
    assert (await store.view()).instances == ()
    await alive(store, A)
    assert list(await store.unplaced()) == [B.instance]
    await store.leave(A)
    assert list(await store.unplaced()) == [B.instance]
    await store.say_unplaced(B.instance, "in use", 0.001)

    async def forgotten() -> bool:
        return await store.unplaced() == {}

    await until(forgotten, "the end of what was said")


CHECKS = (
    check_a_waiting_request_has_a_place,
    check_the_latest_plan_is_kept,
    check_the_latest_signal_is_kept,
    check_an_instance_without_a_place_is_told_of_until_it_lives,
)
