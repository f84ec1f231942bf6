"""Recorder of store calls: writes to the history who called what, and with which effect."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qlm.domain.errors import NotLeadingError
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import InstanceId, TokenIds
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import Holder, InstanceHeld
from qlm.domain.lease_answer import Granted, LeaseAnswer
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.published import operation
from qlm.domain.request import RequestMetadata
from qlm.domain.view import Enqueued
from simulation.history import (
    Appended,
    FencedWrite,
    Heartbeat,
    History,
    Indexed,
    LeaderNamed,
    Leased,
    LookedUp,
    Released,
    Restored,
)
from simulation.process import Process
from simulation.settings import GATEWAYS
from simulation.store_server import StoreServer
from simulation.virtual_loop import VirtualLoop

_UNDER_A_TERM: Final = (
    "apply",
    "expire_leases",
    "mark_indexed",
    "publish",
)


class StoreRecorder:
    """Carries calls out on the store and records the events that checkers need."""

    def __init__(self, loop: VirtualLoop, history: History) -> None:
        self._loop = loop
        self._history = history
        self._serving: dict[InstanceId, Holder] = {}
        self._record_by_name: Mapping[str, Callable[..., None]] = {
            "enqueue": self._enqueued,
            "lease": self._leased,
            "reregister": self._reregistered,
            "append": self._appended,
            "release": self._released,
            "demote": self._demoted,
            "park": self._parked,
            "resume": self._resumed,
            "expire_leases": self._leases_expired,
            "heartbeat": self._heartbeat,
            "leave": self._left,
            "acquire_leadership": self._leader_named,
            "resign": self._resigned,
        }

    async def call(
        self,
        process: Process,
        name: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        store: StoreServer,
    ) -> Any:
        """Carry out one call and record it.

        Raises:
            NotLeadingError: As on the store.
        """
        try:
            answer = await getattr(store, name)(*arguments, **named)
        except NotLeadingError:
            self._fenced_write(process, operation(name, arguments), arguments, done=False)
            raise
        if name in _UNDER_A_TERM:
            self._fenced_write(process, operation(name, arguments), arguments, done=True)
        if name == "record" and process.name in GATEWAYS:
            self._history.add(LookedUp(self._loop.time(), arguments[0], known=answer is not None))
        record = self._record_by_name.get(name)
        if record is not None:
            record(answer, *arguments, **named)
        for ended in store.ended:
            self._count(f"ended {ended.outcome}")
            self._history.add(ended)
        store.ended.clear()
        return answer

    def _fenced_write(self, process: Process, name: str, arguments: Sequence[Any], *, done: bool) -> None:
        term = arguments[-1] if arguments else None
        if isinstance(term, Term):
            self._history.add(FencedWrite(self._loop.time(), process.name, name, term, done))
            self._count(f"{name} {'done' if done else 'refused'}")

    def _count(self, what: str) -> None:
        self._history.coverage[what] += 1

    def _enqueued(
        self, answer: Enqueued, metadata: RequestMetadata, watcher: object = None, incarnation: object = None
    ) -> None:
        if answer.created:
            self._history.add(Indexed(self._loop.time(), metadata.id))

    def _leased(self, answer: LeaseAnswer, metadata: RequestMetadata, holder: Holder, group: object) -> None:
        self._count(f"lease {type(answer).__name__.lower()}")
        if isinstance(answer, Granted):
            if answer.output:
                self._count("lease with output")
            epoch = answer.lease.epoch
            self._history.add(Leased(self._loop.time(), metadata.id, holder, epoch, len(answer.output)))

    def _reregistered(
        self, answer: LeaseAnswer, metadata: RequestMetadata, holder: Holder, output: TokenIds
    ) -> None:
        self._count(f"reregister {type(answer).__name__.lower()}")
        if isinstance(answer, Granted):
            now_s = self._loop.time()
            self._history.add(Leased(now_s, metadata.id, holder, answer.lease.epoch, len(answer.output)))
            self._history.add(Restored(now_s, metadata.id, answer.output))

    def _appended(self, results: Sequence[AppendResult], entries: Sequence[LogEntry]) -> None:
        now_s = self._loop.time()
        for entry, result in zip(entries, results, strict=True):
            self._count(f"append {result}")
            self._history.add(
                Appended(now_s, entry.id, entry.epoch, entry.offset, entry.token_ids, entry.outcome, result)
            )

    def _released(self, done: bool, id: Any, epoch: object, why: str) -> None:
        self._count("released" if done else "release refused")
        if done:
            self._history.add(Released(self._loop.time(), id))

    def _demoted(self, done: bool, metadata: RequestMetadata, epoch: object, why: str) -> None:
        self._count("demoted" if done else "demotion refused")
        if done:
            self._history.add(Released(self._loop.time(), metadata.id))

    def _parked(self, done: bool, id: object, epoch: object, why: str) -> None:
        self._count("parked" if done else "parking refused")

    def _resumed(self, done: bool, id: object, epoch: object) -> None:
        self._count("resumed" if done else "resume refused")

    def _leases_expired(self, ids: Sequence[Any], term: object = None) -> None:
        for id in ids:
            self._count("lease expired")
            self._history.add(Released(self._loop.time(), id))

    def _heartbeat(
        self, answer: InstanceHeld | None, status: InstanceStatus, ttl_s: float, replaces: object = None
    ) -> None:
        if answer is not None:
            self._count("heartbeat refused")
            return
        self._serving[status.id] = status.holder
        self._history.add(Heartbeat(self._loop.time(), status.holder, ttl_s))
        for _, state in status.engines:
            if state is EngineState.FAILED:
                self._count("engine failed")

    def _left(self, answer: None, holder: Holder) -> None:
        if self._serving.get(holder.instance) == holder:
            self._count("agent left")
            self._history.add(Heartbeat(self._loop.time(), holder, 0.0))

    def _leader_named(self, answer: Leadership, name: str, ttl_s: float) -> None:
        self._history.add(LeaderNamed(self._loop.time(), answer.leader, answer.term))

    def _resigned(self, done: bool, term: Term) -> None:
        self._count("leadership resigned" if done else "leadership was lost")
