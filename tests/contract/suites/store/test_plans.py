"""Contract of every store: groups, virtual queues and instances."""

from dataclasses import replace

from contract.suites.store.values import (
    ARRIVAL_NS,
    BATCH,
    CHAT,
    G1,
    G2,
    G3,
    A,
    B,
    Subject,
    alive,
    enqueued,
    leased,
    listening,
    metadata,
    receives,
    status,
    until,
)
from qlm.domain.errors import InvalidValueError
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.notices import DrainAsked, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.plan_change import CloseGroup, CreateGroup, ResizeGroup, SetForecasts, SetHomes, SetQueue
from qlm.domain.ports.store import WAKE_JOINED, Store
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.store.core.limits import NOTIFY_WITHIN


def _queue(holder_queue: InstanceId, *groups: GroupId) -> SetQueue:
    return SetQueue(instance=holder_queue, groups=groups)


async def _chat(store: Store) -> ClassView:
    return next(view for view in (await store.view()).classes if view.cls == CHAT)


def _heads(groups: tuple[Group, ...]) -> list[tuple[GroupId, int, int | None]]:
    """Each group's id, remaining count, and head by its number."""
    return [
        (g.id, g.remaining, None if g.head_arrival_ns is None else g.head_arrival_ns - ARRIVAL_NS)
        for g in groups
    ]


async def test_groups_slice_the_order_of_arrival(subject: Subject) -> None:
    """The order of indexing does not matter; a request beyond all groups is ungrouped."""
    store = subject.store
    await enqueued(store, 5, 3, 1, 4, 2)
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=2), CreateGroup(id=G2, cls=CHAT, count=2)])
    view = await _chat(store)
    assert _heads(view.groups) == [(G1, 2, 1), (G2, 2, 3)]
    assert [group.seq for group in view.groups] == [0, 1]
    assert (view.queued, view.ungrouped_arrival_ns) == (5, ARRIVAL_NS + 5)
    assert [group.last_arrival_ns for group in view.groups] == [ARRIVAL_NS + 2, ARRIVAL_NS + 4]
    assert view.groups[0].deadline_ns == ARRIVAL_NS + 1 + 10_000_000_000
    assert view.groups[0].created_ns > 0


async def test_a_lease_counts_one_pull(subject: Subject) -> None:
    """It counts for the given group while requests remain in it; the heads of the others follow."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, 3)
    await store.enqueue(metadata(9, cls=BATCH))
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=1), CreateGroup(id=G2, cls=CHAT, count=2)])
    await leased(store, 9, A, G1, cls=BATCH)
    await leased(store, 8, A, G1)
    assert _heads((await _chat(store)).groups) == [(G1, 1, 1), (G2, 2, 2)]
    await leased(store, 1, A, G1)
    await leased(store, 1, A, G1)
    assert _heads((await _chat(store)).groups) == [(G1, 0, None), (G2, 2, 2)]
    await leased(store, 2, A, G1)
    view = await _chat(store)
    assert _heads(view.groups) == [(G1, 0, None), (G2, 2, 3)]
    assert view.groups[0].pulled == 1
    await leased(store, 3, A, GroupId("unknown"))
    view = await _chat(store)
    assert (view.queued, _heads(view.groups)) == (0, [(G1, 0, None), (G2, 2, None)])


async def test_ends_leave_a_group_one_too_many(subject: Subject) -> None:
    """The last group's head is none, until the controller resizes."""
    store = subject.store
    await enqueued(store, 1, 2)
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=1), CreateGroup(id=G2, cls=CHAT, count=1)])
    async with listening(store.wakeups()) as received:
        await store.cancel(metadata(1).id)
        await receives(received, ["removed"])
    assert _heads((await _chat(store)).groups) == [(G1, 1, 2), (G2, 1, None)]
    await store.apply([ResizeGroup(id=G2, count=0, sealed=True)])
    view = await _chat(store)
    assert _heads(view.groups) == [(G1, 1, 2), (G2, 0, None)]
    assert [group.sealed for group in view.groups] == [False, True]


async def test_enqueue_joins_the_newest_open_group(subject: Subject) -> None:
    """If the group is on a virtual queue, its instance is notified; the controller is told of it apart."""
    store = subject.store
    await enqueued(store, 1)
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=1)])
    async with listening(store.notices(A.instance)) as notices, listening(store.wakeups()) as wakeups:
        await enqueued(store, 2)
        assert (await _chat(store)).ungrouped_arrival_ns == ARRIVAL_NS + 2
        await store.apply([ResizeGroup(id=G1, count=2, sealed=False), _queue(A.instance, G1)])
        await receives(notices, [QueueChanged()])
        await enqueued(store, 3)
        await receives(notices, [QueueChanged()] * 2)
        await receives(wakeups, ["request", WAKE_JOINED])
        assert _heads((await _chat(store)).groups) == [(G1, 3, 1)]
        await store.apply([ResizeGroup(id=G1, count=3, sealed=True)])
        await receives(notices, [QueueChanged()] * 3)
        await enqueued(store, 4)
        await receives(wakeups, ["request", WAKE_JOINED, "request"])
    view = await _chat(store)
    assert (_heads(view.groups), view.ungrouped_arrival_ns) == ([(G1, 3, 1)], ARRIVAL_NS + 4)
    assert len(notices) == 3


async def test_only_a_request_near_the_front_notifies_its_instance(subject: Subject) -> None:
    """Requests before the new one on its instance's queue count, those after it do not."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await store.apply(
        [
            CreateGroup(id=G1, cls=CHAT, count=1),
            CreateGroup(id=G2, cls=BATCH, count=NOTIFY_WITHIN),
            _queue(A.instance, G1, G2),
        ]
    )
    changed = QueueChanged()
    async with listening(store.notices(A.instance)) as notices:
        await enqueued(store, 2)
        await receives(notices, [changed])
        await store.apply([_queue(A.instance, G2, G1)])
        await receives(notices, [changed] * 2)
        await enqueued(store, 3)
        # Equal notices that arrive together count once, so one of another kind shows that none was sent.
        await store.ask_drain(A.instance)
        await receives(notices, [changed, changed, DrainAsked()])
        await store.apply([ResizeGroup(id=G2, count=NOTIFY_WITHIN - 4, sealed=True)])
        await receives(notices, [changed, changed, DrainAsked(), changed])
        await enqueued(store, 4)
        await receives(notices, [changed, changed, DrainAsked(), changed, changed])
    assert _heads((await store.virtual_queue(A.instance)).groups)[1] == (G1, 4, 1)


async def test_resize_keeps_what_was_pulled(subject: Subject) -> None:
    """A group never counts fewer than were pulled from it; creating it again changes nothing."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2)
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=2)])
    await leased(store, 1, A, G1)
    await store.apply([ResizeGroup(id=G1, count=0, sealed=True), ResizeGroup(id=G2, count=5, sealed=True)])
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=7)])
    (group,) = (await _chat(store)).groups
    assert (group.count, group.pulled, group.sealed) == (1, 1, True)


async def test_queues_hold_known_groups_in_order(subject: Subject) -> None:
    """Unknown and repeated groups are left out; the version grows when the order changes, and only then."""
    store = subject.store
    assert await store.virtual_queue(A.instance) == VirtualQueue(instance=A.instance)
    await enqueued(store, 1, 2)
    await store.enqueue(metadata(3, cls=BATCH))
    await store.apply(
        [
            CreateGroup(id=G1, cls=CHAT, count=1),
            CreateGroup(id=G2, cls=BATCH, count=1),
            CreateGroup(id=G3, cls=CHAT, count=1),
            _queue(A.instance, G3, GroupId("unknown"), G2, G3, G1),
        ]
    )
    queue = await store.virtual_queue(A.instance)
    assert _heads(queue.groups) == [(G3, 1, 2), (G2, 1, 3), (G1, 1, 1)]
    assert queue.version == 1
    async with listening(store.notices(A.instance)) as received:
        await store.apply([_queue(A.instance, G3, G2, G1)])
        assert await store.virtual_queue(A.instance) == queue
        await store.apply([_queue(A.instance, G1, G2)])
        await receives(received, [QueueChanged()])
    changed = await store.virtual_queue(A.instance)
    assert ([group.id for group in changed.groups], changed.version) == ([G1, G2], 2)
    assert (await store.view()).queues == (changed,)


async def test_a_group_is_on_one_queue(subject: Subject) -> None:
    """A second queue takes it from the first, and both instances are notified."""
    store = subject.store
    await enqueued(store, 1, 2)
    await store.apply(
        [
            CreateGroup(id=G1, cls=CHAT, count=1),
            CreateGroup(id=G2, cls=CHAT, count=1),
            _queue(A.instance, G1, G2),
        ]
    )
    async with listening(store.notices(A.instance)) as a, listening(store.notices(B.instance)) as b:
        await store.apply([_queue(B.instance, G1)])
        await receives(a, [QueueChanged()])
        await receives(b, [QueueChanged()])
    queues = (await store.view()).queues
    assert [(q.instance, q.version, [g.id for g in q.groups]) for q in queues] == [
        ("a", 2, [G2]),
        ("b", 1, [G1]),
    ]


async def test_a_closed_group_leaves_its_queue(subject: Subject) -> None:
    """Its requests are ungrouped, or move into the groups after it."""
    store = subject.store
    await enqueued(store, 1, 2)
    await store.apply(
        [
            CreateGroup(id=G1, cls=CHAT, count=1),
            CreateGroup(id=G2, cls=CHAT, count=1),
            _queue(A.instance, G1, G2),
        ]
    )
    async with listening(store.notices(A.instance)) as received:
        await store.apply([CloseGroup(id=G1), CloseGroup(id=G1), CreateGroup(id=G3, cls=CHAT, count=0)])
        await receives(received, [QueueChanged()])
    queue = await store.virtual_queue(A.instance)
    assert (_heads(queue.groups), queue.version) == ([(G2, 1, 1)], 2)
    view = await _chat(store)
    assert [(group.id, group.seq) for group in view.groups] == [(G2, 1), (G3, 2)]
    assert view.ungrouped_arrival_ns == ARRIVAL_NS + 2


async def test_view_lists_classes_in_use(subject: Subject) -> None:
    """It lists classes with waiting requests or open groups, in a fixed order, and no dead instance."""
    store = subject.store
    assert await store.view() == ClusterView(classes=(), instances=(), queues=())
    urgent, priority = replace(CHAT, target_ms=None), replace(CHAT, priority=-1)
    await alive(store, B, A)
    for n, cls in enumerate((CHAT, BATCH, urgent, priority)):
        await store.enqueue(metadata(n, cls=cls))
    await store.apply([CreateGroup(id=G1, cls=replace(CHAT, cluster="long"), count=0)])
    view = await store.view()
    expected = [priority, urgent, CHAT, replace(CHAT, cluster="long"), BATCH]
    assert [cls.cls for cls in view.classes] == expected
    assert view.instances == (status(A), status(B))
    for n in range(4):
        await store.cancel(metadata(n).id, Outcome.CANCELLED)
    await store.apply([CloseGroup(id=G1)])
    await store.leave(A)
    view = await store.view()
    assert (view.classes, view.instances) == ((), (status(B),))


async def test_a_negative_count_is_refused(subject: Subject) -> None:
    """Nothing of that plan is applied."""
    store = subject.store
    try:
        await store.apply([CreateGroup(id=G1, cls=CHAT, count=1), ResizeGroup(id=G1, count=-1, sealed=False)])
    except InvalidValueError as error:
        assert error.value == -1
    else:
        raise AssertionError("a count of -1 was taken")
    assert (await store.view()).classes == ()


async def test_heartbeats_wake_the_controller_on_change(subject: Subject) -> None:
    """A new instance, session or model and a departure wake it; a change of gauges alone does not."""
    store = subject.store
    async with listening(store.wakeups()) as received:
        await alive(store, A)
        await receives(received, ["instance"])
        await store.heartbeat(status(A, running=7), 60.0)
        await store.heartbeat(status(A, running=7, active=ModelId("llama")), 60.0)
        await receives(received, ["instance"] * 2)
        assert (await store.view()).instances == (status(A, running=7, active=ModelId("llama")),)
        await store.heartbeat(status(replace(A, session=B.session)), 60.0, A.session)
        await receives(received, ["instance"] * 3)
        await store.leave(A)
        await store.leave(replace(A, session=B.session))
        await receives(received, ["instance"] * 4)


async def test_returned_work_wakes_the_controller(subject: Subject) -> None:
    """It may be in no group."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    async with listening(store.wakeups()) as received:
        await store.release(metadata(1).id, epoch, "drain")
        await receives(received, ["returned"])


async def test_drain_is_asked_of_the_living(subject: Subject) -> None:
    """The drain stands until the session ends, also for later subscriptions."""
    store = subject.store
    assert not await store.ask_drain(A.instance)
    await alive(store, A)
    async with listening(store.notices(A.instance)) as received:
        assert await store.ask_drain(A.instance)
        await receives(received, [DrainAsked()])
    await alive(store, A)
    async with listening(store.notices(A.instance)) as received:
        await receives(received, [DrainAsked()])
    another = replace(A, session=B.session)
    await alive(store, another, replaces=A.session)
    async with listening(store.notices(A.instance)) as received:
        await store.apply([CreateGroup(id=G1, cls=CHAT, count=0), _queue(A.instance, G1)])
        await receives(received, [QueueChanged()])
    await store.heartbeat(status(another), 0.05)

    async def gone() -> bool:
        return not await store.ask_drain(A.instance)

    await until(gone, "the death of A")


async def test_forecasts_reach_the_agent_and_the_next_plan(subject: Subject) -> None:
    """They stand until others replace them, whatever the queue does."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    first = (
        ClassForecast(cls=CHAT, service_s=0.25, answer_s=4.5, rate_rps=1.5),
        ClassForecast(cls=BATCH.missed(), service_s=1.0, answer_s=9.0, rate_rps=0.0),
    )
    await store.apply(
        [
            CreateGroup(id=G1, cls=CHAT, count=1),
            _queue(A.instance, G1),
            SetForecasts(instance=A.instance, forecasts=first),
        ]
    )
    queue = await store.virtual_queue(A.instance)
    assert (queue.forecasts, [group.id for group in queue.groups]) == (first, [G1])
    assert [(each.instance, each.forecasts) for each in (await store.view()).queues] == [(A.instance, first)]
    await store.apply([_queue(A.instance), SetForecasts(instance=A.instance, forecasts=first[:1])])
    queue = await store.virtual_queue(A.instance)
    assert (queue.forecasts, queue.groups) == (first[:1], ())
    assert (await store.virtual_queue(B.instance)).forecasts == ()


async def test_the_models_of_a_placement_reach_the_agent_and_the_next_plan(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    models = (ModelId("m"), ModelId("n"))
    await store.apply([SetHomes(instance=A.instance, models=models)])
    assert (await store.virtual_queue(A.instance)).homes == models
    assert [each.homes for each in (await store.view()).queues] == [models]
    await store.apply([SetHomes(instance=A.instance, models=())])
    assert (await store.virtual_queue(A.instance)).homes == ()
    assert (await store.virtual_queue(B.instance)).homes == ()
