"""Store that may lose keys, with the rules that the scripts of the Redis store have for what is left."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from qlm.domain.group import RequestClass
from qlm.domain.ids import GatewayId, GroupId, InstanceId, RequestId, TokenIds
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted, LeaseAnswer
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import RequestMetadata, RequestRecord, RequestState
from qlm.domain.view import Enqueued
from qlm.store.core.arrival_order import ArrivalOrder
from qlm.store.core.length_stats import LengthStats
from qlm.store.core.lifecycle import wait
from qlm.store.core.state import State
from qlm.store.embedded.memory import MemoryStore


class Key(NamedTuple):
    """A key of the store: its kind, and what it belongs to."""

    kind: str
    of: Any


def keys_of(state: State) -> list[Key]:
    """List the keys that a state has in Redis, as far as a loss can be told from a loss of another."""
    keys = [Key(kind, id) for id in state.requests for kind in ("request", "watchers")]
    keys += [Key("log", id) for id, row in state.requests.items() if row.log]
    keys += [Key(kind, cls) for cls in state.classes.rows for kind in ("class", "waiting")]
    keys += [Key("group", id) for id in state.groups]
    keys += [Key("queue", instance) for instance in state.queues]
    keys += [Key("instance", instance) for instance in state.instances]
    return [*keys, Key("held", None), Key("leader", None)]


class LossyStore(MemoryStore):
    """Memory store whose keys may be lost one by one.

    The row of a request still has the number of tokens of a log that was lost. Until a lease begins the log
    anew, nothing is appended to it, and an answer that has ended counts as lost.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._damaged: set[RequestId] = set()

    def present_keys(self) -> list[Key]:
        """List the present keys."""
        return keys_of(self._state)

    def lose(self, key: Key) -> None:
        """Lose a key, unless it went with another."""
        state = self._state
        match key.kind:
            case "request":
                self._lose_request(key.of)
            case "log" if key.of in state.requests and state.requests[key.of].log:
                del state.requests[key.of].log[:]
                self._damaged.add(key.of)
            case "watchers" if key.of in state.requests:
                state.requests[key.of].watchers = {}
            case "class" | "waiting":
                self._lose_of_class(key)
            case "group":
                self._lose_group(key.of)
            case "queue":
                self._lose_queue(key.of)
            case "instance":
                state.instances.pop(key.of, None)
            case "held":
                state.leases.rows.clear()
            case "leader" if state.leader is not None:
                state.leader.until_ns = 0

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        self._repair(metadata)
        answer = await super().enqueue(metadata, watcher, incarnation)
        return Enqueued(created=answer.created, record=self._reported(answer.record))

    async def record(self, id: RequestId) -> RequestRecord | None:
        record = await super().record(id)
        return None if record is None else self._reported(record)

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        part = await super().read_output(id, offset)
        if part is None or id not in self._damaged:
            return part
        return part._replace(outcome=_lost(part.outcome), detail="its output log has 0 tokens")

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        # No entry begins one token behind an empty log: it is refused for this or for a better reason.
        return await super().append(
            [replace(each, offset=1) if each.id in self._damaged else each for each in entries]
        )

    async def lease(self, metadata: RequestMetadata, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        return self._begun_anew(metadata.id, await super().lease(metadata, holder, group))

    async def reregister(self, metadata: RequestMetadata, holder: Holder, output: TokenIds) -> LeaseAnswer:
        return self._begun_anew(metadata.id, await super().reregister(metadata, holder, output))

    def _begun_anew(self, id: RequestId, answer: LeaseAnswer) -> LeaseAnswer:
        if isinstance(answer, Granted):
            self._damaged.discard(id)
        return answer

    def _repair(self, metadata: RequestMetadata) -> None:
        """Enter a known request again in what tells where it is."""
        row = self._state.requests.get(metadata.id)
        if row is None or row.outcome is not None or not row.metadata.is_same_request(metadata):
            return
        if row.holder is not None:
            self._state.leases.rows[metadata.id] = row
        elif row.state is RequestState.QUEUED and not row.waiting:
            wait(self._state, row)

    def _reported(self, record: RequestRecord) -> RequestRecord:
        if record.metadata.id not in self._damaged:
            return record
        return replace(record, output_tokens=0, outcome=_lost(record.outcome))

    def _lose_request(self, id: RequestId) -> None:
        state = self._state
        row = state.requests.pop(id, None)
        if row is None:
            return
        self._damaged.discard(id)
        state.leases.remove(row)
        if row.waiting:
            row.cls.waiting.remove(row.key)
        if row.outcome is not None:
            state.ends.ids.remove(id)

    def _lose_of_class(self, key: Key) -> None:
        cls: RequestClass = key.of
        row = self._state.classes.rows.get(cls)
        if row is None:
            return
        if key.kind == "class":
            row.accepted = row.prompt_tokens = row.prompt_squares = row.max_tokens = row.max_squares = 0
            row.finished, row.lengths = 0, LengthStats()
            return
        row.waiting = ArrivalOrder()
        for each in self._state.requests.values():
            if each.cls is row:
                each.waiting = False

    def _lose_group(self, id: GroupId) -> None:
        group = self._state.groups.pop(id, None)
        if group is None:
            return
        group.cls.groups.remove(group)
        if group.queue is not None:
            self._state.queues[group.queue].groups.remove(id)

    def _lose_queue(self, instance: InstanceId) -> None:
        queue = self._state.queues.pop(instance, None)
        for id in queue.groups if queue is not None else ():
            self._state.groups[id].queue = None


def _lost(outcome: Outcome | None) -> Outcome | None:
    return Outcome.OUTPUT_LOST if outcome is not None and outcome.ok else outcome
