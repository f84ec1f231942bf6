"""Random histories on the core, with the invariants of every step."""

import asyncio
from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings

from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.lease import Epoch
from qlm.domain.lease_answer import Granted
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.view import ClusterView
from qlm.store.embedded.memory import MemoryStore
from support.store_steps import LIMITS, Step, SteppedClock, histories, snapshot


def _waiting_is_what_is_queued(view: ClusterView, records: list[RequestRecord]) -> None:
    """The groups of a class slice its queued requests, sorted by arrival, then id."""
    queued = [record.metadata for record in records if record.state is RequestState.QUEUED]
    for cls in {metadata.cls for metadata in queued} | {view_.cls for view_ in view.classes}:
        (seen,) = [view_ for view_ in view.classes if view_.cls == cls]
        order = sorted((metadata.arrival_ns, metadata.id) for metadata in queued if metadata.cls == cls)
        assert seen.queued == len(order)
        for group in seen.groups:
            covered, order = order[: group.remaining], order[group.remaining :]
            assert group.head_arrival_ns == (covered[0][0] if covered else None)
            whole = covered and len(covered) == group.remaining
            assert group.last_arrival_ns == (covered[-1][0] if whole else None)
        assert seen.ungrouped_arrival_ns == (order[0][0] if order else None)
        assert all(a.seq < b.seq for a, b in pairwise(seen.groups))


def _groups_are_on_one_queue(view: ClusterView) -> None:
    open_groups = {group.id: group for cls in view.classes for group in cls.groups}
    queued = [group for queue in view.queues for group in queue.groups]
    assert len({group.id for group in queued}) == len(queued)
    assert all(open_groups[group.id] == group for group in queued)


def _states_fit(records: list[RequestRecord]) -> None:
    for record in records:
        assert (record.lease is not None) == (record.state in (RequestState.RUNNING, RequestState.PARKED))
        assert (record.outcome is not None) == (record.state is RequestState.ENDED)
        assert (record.ended_ns is not None) == (record.state is RequestState.ENDED)
        if record.erased:
            assert (record.state, record.output_tokens) == (RequestState.ENDED, 0)
        else:
            assert (record.first_token_ns is not None) == (record.output_tokens > 0)
        assert 1 <= len(record.events) <= LIMITS.events_max
    assert sum(record.state is RequestState.ENDED for record in records) <= LIMITS.results_max


class _History:
    """Observations of each request after the last step, to compare with the next ones."""

    def __init__(self) -> None:
        self.logs: dict[RequestId, TokenIds] = {}
        self.records: dict[RequestId, RequestRecord] = {}

    def forget(self, ids: set[RequestId]) -> None:
        """Forget requests that were dropped, and perhaps indexed anew."""
        for id in ids:
            self.logs.pop(id, None)
            self.records.pop(id, None)

    def logs_only_grow(
        self, logs: dict[RequestId, TokenIds], records: dict[RequestId, RequestRecord]
    ) -> None:
        """Check that a log grows until its request is erased, and has nothing from then on."""
        for id, before in self.logs.items():
            kept = () if records[id].erased else before
            assert logs[id][: len(before)] == kept
        self.logs = logs

    def records_only_move_on(self, records: dict[RequestId, RequestRecord]) -> None:
        for id, before in self.records.items():
            erased_now = records[id].erased and not before.erased
            assert before.state is not RequestState.ENDED or erased_now or records[id] == before
            assert before.first_token_ns in (None, records[id].first_token_ns)
        self.records = records


def _epochs_increase(epochs: dict[RequestId, list[Epoch]]) -> None:
    for granted in epochs.values():
        assert granted == sorted(set(granted))


async def _run(history: list[Step]) -> None:
    clock = SteppedClock()
    store = MemoryStore(clock, LIMITS)
    seen = _History()
    granted: defaultdict[RequestId, list[Epoch]] = defaultdict(list)
    for step in history:
        clock.advance(step.pass_s + 1e-9)
        answer = await step.run(store, await store.incarnation())
        now = await snapshot(store)
        records = {record.metadata.id: record for record in now["records"]}
        _waiting_is_what_is_queued(now["view"], now["records"])
        _groups_are_on_one_queue(now["view"])
        for queue in now["view"].queues:
            assert await store.virtual_queue(queue.instance) == queue, "a queue read alone is as in the view"
        _states_fit(now["records"])
        new = {id for id, record in records.items() if record.events[0].at_ns == clock.now_ns()}
        gone = {id for id in seen.records if id not in records} | new
        seen.forget(gone)
        for id in gone:
            granted.pop(id, None)
        logs = {part.id: part.token_ids for part in now["outputs"] if part is not None}
        seen.logs_only_grow(logs, records)
        seen.records_only_move_on(records)
        if isinstance(answer, Granted):
            (leased,) = [
                id for id, record in records.items() if record.lease == answer.lease and id in step.name
            ]
            granted[leased].append(answer.lease.epoch)
            _epochs_increase(granted)


@given(histories)
@settings(max_examples=400, deadline=None)
def test_every_history_keeps_the_invariants(history: list[Step]) -> None:
    asyncio.run(_run(history))
