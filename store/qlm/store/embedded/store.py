"""Shared state in process with a journal: results and output logs survive a kill -9."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.ids import RequestId
from qlm.domain.leadership import Term
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.journal import Journal
from qlm.domain.ports.published import PublishedKind
from qlm.store.core import output_log, requests
from qlm.store.core.effects import Effects, Logged
from qlm.store.core.limits import StoreLimits
from qlm.store.core.state import RestoredLog, State
from qlm.store.embedded.journal_codec import (
    ENDED_PREFIX,
    EXTENSIONS_PREFIX,
    INCARNATION_KEY,
    LOG_PREFIX,
    Ended,
    decode_ended,
    decode_extensions,
    decode_log,
    encode_ended,
    encode_extensions,
    encode_log,
    ended_key,
    extensions_key,
    log_key,
)
from qlm.store.embedded.journal_writer import RETRY_S, Changes, JournalWriter
from qlm.store.embedded.memory import MemoryStore

T = TypeVar("T")

_JOURNALED: Final = (PublishedKind.CLUSTERS, PublishedKind.HISTORY)
"""What outlives the process of all that is published; its kind is its journal key."""


class EmbeddedStore(MemoryStore):
    """Memory store with a journal of ended requests and of the logs of unfinished ones; made by `open`.

    Unfinished requests are in the broker: after a restart the controller calls `enqueue` for each message.
    That attaches the log of the request, or returns created=False with the record if the request had ended.
    All leases from before the restart are void.

    A durable change is announced, and its call returns, only once it is written; until then reads of that
    request wait. The journal belongs to the caller, who closes it last.
    """

    def __init__(
        self,
        clock: Clock,
        state: State,
        writer: JournalWriter,
        log_keys: dict[RequestId, list[str]],
    ) -> None:
        """Use `open` instead."""
        super().__init__(clock, state=state)
        self._writer = writer
        self._log_keys = log_keys

    @classmethod
    async def open(
        cls,
        clock: Clock,
        journal: Journal,
        limits: StoreLimits | None = None,
        *,
        retry_s: float = RETRY_S,
    ) -> "EmbeddedStore":
        """Read the journal, and begin a new incarnation.

        Args:
            retry_s: Pause before a failed write is retried.

        Raises:
            UndecodableDataError: This version cannot read an entry of the journal.
        """
        entries = dict(journal.load())
        former = int(entries.get(INCARNATION_KEY, b"0"))
        state = State(max(clock.now_ns(), former + 1), limits)
        for key, value in entries.items():
            if key.startswith(ENDED_PREFIX):
                ended = decode_ended(key, value)
                requests.restore_ended(state, ended.record, ended.output, ended.detail, ended.extensions)
        logs = [decode_log(key, value) for key, value in entries.items() if key.startswith(LOG_PREFIX)]
        extensions = {
            key: decode_extensions(key, value)
            for key, value in entries.items()
            if key.startswith(EXTENSIONS_PREFIX)
        }
        log_keys, left_over = _restore_logs(state, logs, extensions)
        incarnation = (INCARNATION_KEY, str(state.incarnation).encode())
        await journal.write([incarnation], left_over, durable=True)
        writer = JournalWriter(journal, retry_s=retry_s)
        store = cls(clock, state, writer, log_keys)
        store._published.update({kind: entries[kind] for kind in _JOURNALED if kind in entries})
        return store

    async def close(self) -> None:
        await self._writer.close()
        await super().close()

    async def _settled(self, id: RequestId) -> None:
        await self._writer.settled(id)

    async def probe(self) -> None:
        await self._writer.probe()

    async def warnings(self) -> Sequence[str]:
        return self._writer.warnings()

    async def publish(self, kind: PublishedKind, data: bytes, term: Term | None = None) -> None:
        self._check_term(term)
        if kind is PublishedKind.CLUSTERS and data != self._published.get(kind):
            await self._writer.put(kind.value, data)
        if kind is PublishedKind.HISTORY:
            self._check_writable()
            self._writer.write_later({kind.value: data})  # planning does not wait for a disk
        self._published[kind] = data

    def _check_writable(self) -> None:
        self._writer.check()

    async def _commit(self, step: tuple[T, Effects]) -> T:
        answer, effects = step
        if effects.durable:
            ids = {*effects.ended, *effects.extended, *(logged.id for logged in effects.logged)}
            announce = partial(self._feeds.announce, effects)
            await self._writer.write(self._changes(effects), announce, ids, durable=bool(effects.ended))
        else:
            self._feeds.announce(effects)
        return answer

    def _changes(self, effects: Effects) -> Changes:
        changes: dict[str, bytes | None] = {}
        for logged in effects.logged:
            key = log_key(logged)
            changes[key] = encode_log(logged)
            self._log_keys.setdefault(logged.id, []).append(key)
        begun = (logged.id for logged in effects.logged if logged.offset == 0)
        for id in {*effects.extended, *begun}:
            changes |= self._extended(id)
        for id in effects.ended:
            changes.update(dict.fromkeys(self._log_keys.pop(id, ())))
            ended = self._ended(id)
            if ended is not None:
                changes[ended_key(id)] = encode_ended(ended)
                if ended.extensions is not NO_LOG_EXTENSIONS:
                    changes[extensions_key(id)] = None
        changes.update(dict.fromkeys(map(ended_key, effects.dropped)))
        return changes

    def _extended(self, id: RequestId) -> Changes:
        """Return the extensions of a log as an entry; a log without tokens is not in the journal."""
        row = self._state.requests.get(id)
        if row is None or row.times.first_ns is None or row.extensions is NO_LOG_EXTENSIONS:
            return {}
        return {extensions_key(id): encode_extensions(row.extensions, row.times.first_ns)}

    def _ended(self, id: RequestId) -> Ended | None:
        """Return an ended request; None if the step that ended it also dropped it."""
        record, output = requests.record(self._state, id), output_log.read_output(self._state, id, 0)
        if record is None or output is None:
            return None
        return Ended(record, output.detail, output.token_ids, output.extensions)


def _restore_logs(
    state: State, parts: Iterable[Logged], extensions: Mapping[str, tuple[LogExtensions, int]]
) -> tuple[dict[RequestId, list[str]], Sequence[str]]:
    """Reassemble the logs of unfinished requests, with their extensions by journal key.

    Returns:
        The journal keys of each log, and those of extensions whose log is gone: an earlier version ended it.
    """
    by_id: defaultdict[RequestId, list[Logged]] = defaultdict(list)
    for part in parts:
        by_id[part.id].append(part)
    kept: set[str] = set()
    for id, log in by_id.items():
        log.sort(key=lambda part: part.offset)
        _check_whole(log)
        token_ids = tuple(token_id for part in log for token_id in part.token_ids)
        first_token_ns, key = log[0].at_ns, extensions_key(id)
        of_log, written_ns = extensions.get(key, (NO_LOG_EXTENSIONS, first_token_ns))
        # After a roll-back another request may have the id.
        if written_ns == first_token_ns:
            kept.add(key)
        else:
            of_log = NO_LOG_EXTENSIONS
        requests.restore_log(state, id, RestoredLog(token_ids, first_token_ns, of_log))
    log_keys = {id: [log_key(part) for part in log] for id, log in by_id.items()}
    return log_keys, [key for key in extensions if key not in kept]


def _check_whole(log: Sequence[Logged]) -> None:
    length = 0
    for part in log:
        if part.offset != length:
            raise UndecodableDataError(
                f"journal lacks tokens {length} to {part.offset} of the output of {part.id!r}"
            )
        length += len(part.token_ids)
