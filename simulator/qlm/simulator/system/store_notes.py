"""What is noted of calls at the store: who asked for what, and what it did."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qlm.domain.errors import NotLeadingError
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import TokenIds
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted, LeaseAnswer
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.request import RequestCard
from qlm.domain.view import Enqueued
from qlm.simulator.system.history import (
    Appended,
    Beat,
    History,
    Indexed,
    Leased,
    Led,
    Planned,
    Released,
    Restored,
)
from qlm.simulator.system.process import Process
from qlm.simulator.system.store_server import StoreServer
from qlm.simulator.system.virtual_loop import VirtualLoop

_UNDER_A_TERM: Final = ("apply", "reap", "mark_indexed", "keep_plan", "keep_signal")


class StoreNotes:
    """Lets calls happen at the store, and writes down what checkers need of them."""

    def __init__(self, loop: VirtualLoop, history: History) -> None:
        self._loop = loop
        self._history = history
        self._notes: Mapping[str, Callable[..., None]] = {
            "enqueue": self._enqueued,
            "lease": self._leased,
            "reregister": self._reregistered,
            "append": self._appended,
            "release": self._released,
            "demote": self._demoted,
            "park": self._parked,
            "resume": self._resumed,
            "reap": self._reaped,
            "heartbeat": self._beat,
            "leave": self._left,
            "lead": self._led,
            "resign": self._resigned,
        }

    async def noted(
        self,
        process: Process,
        name: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        store: StoreServer,
    ) -> Any:
        """Carry out one call.

        Raises:
            NotLeadingError: As on the store.
        """
        try:
            answer = await getattr(store, name)(*arguments, **named)
        except NotLeadingError:
            self._planned(process, name, arguments, done=False)
            raise
        if name in _UNDER_A_TERM:
            self._planned(process, name, arguments, done=True)
        note = self._notes.get(name)
        if note is not None:
            note(answer, *arguments, **named)
        for ended in store.ended:
            self._count(f"ended {ended.outcome}")
            self._history.add(ended)
        store.ended.clear()
        return answer

    def _planned(self, process: Process, name: str, arguments: Sequence[Any], *, done: bool) -> None:
        term = arguments[-1] if arguments else None
        if isinstance(term, Term):
            self._history.add(Planned(self._loop.time(), process.name, name, term, done))
            self._count(f"{name} {'done' if done else 'refused'}")

    def _count(self, what: str) -> None:
        self._history.coverage[what] += 1

    def _enqueued(
        self, answer: Enqueued, card: RequestCard, watcher: object = None, incarnation: object = None
    ) -> None:
        if answer.created:
            self._history.add(Indexed(self._loop.time(), card.id))

    def _leased(self, answer: LeaseAnswer, card: RequestCard, holder: Holder, group: object) -> None:
        self._count(f"lease {type(answer).__name__.lower()}")
        if isinstance(answer, Granted):
            if answer.output:
                self._count("lease with output")
            epoch = answer.lease.epoch
            self._history.add(Leased(self._loop.time(), card.id, holder, epoch, len(answer.output)))

    def _reregistered(self, answer: LeaseAnswer, card: RequestCard, holder: Holder, output: TokenIds) -> None:
        self._count(f"reregister {type(answer).__name__.lower()}")
        if isinstance(answer, Granted):
            now_s = self._loop.time()
            self._history.add(Leased(now_s, card.id, holder, answer.lease.epoch, len(answer.output)))
            self._history.add(Restored(now_s, card.id, answer.output))

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

    def _demoted(self, done: bool, card: RequestCard, epoch: object, why: str) -> None:
        self._count("demoted" if done else "demotion refused")
        if done:
            self._history.add(Released(self._loop.time(), card.id))

    def _parked(self, done: bool, id: object, epoch: object, why: str) -> None:
        self._count("parked" if done else "parking refused")

    def _resumed(self, done: bool, id: object, epoch: object) -> None:
        self._count("resumed" if done else "resume refused")

    def _reaped(self, ids: Sequence[Any], term: object = None) -> None:
        for id in ids:
            self._count("reaped")
            self._history.add(Released(self._loop.time(), id))

    def _beat(self, answer: None, status: InstanceStatus, ttl_s: float) -> None:
        self._history.add(Beat(self._loop.time(), status.holder, ttl_s))
        for _, state in status.engines:
            if state is EngineState.FAILED:
                self._count("engine failed")

    def _left(self, answer: None, holder: Holder) -> None:
        self._count("agent left")
        self._history.add(Beat(self._loop.time(), holder, 0.0))

    def _led(self, answer: Leadership, name: str, ttl_s: float) -> None:
        self._history.add(Led(self._loop.time(), answer.leader, answer.term))

    def _resigned(self, done: bool, term: Term) -> None:
        self._count("lead given back" if done else "lead was gone")
