"""Shared state in process with journal and token log: results and output logs survive a kill -9."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.api_keys import encode_api_key
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, merged, without_logprobs
from qlm.domain.ids import RequestId
from qlm.domain.leadership import Term
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.api_keys import ApiKey
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.journal import Journal
from qlm.domain.ports.published import PublishedKind
from qlm.domain.shell.damage import NO_CONSENT, Consent
from qlm.store.core import output_log, requests
from qlm.store.core.effects import Effects, Logged
from qlm.store.core.limits import StoreLimits
from qlm.store.core.state import RestoredLog, State
from qlm.store.embedded.api_keys import api_key_entry, journaled_api_keys
from qlm.store.embedded.journal_codec import (
    ENDED_PREFIX,
    INCARNATION_KEY,
    Ended,
    decode_ended,
    encode_ended,
    ended_key,
)
from qlm.store.embedded.journal_logs import decode_logs, encode_logs
from qlm.store.embedded.journal_writer import RETRY_S, JournalWriter
from qlm.store.embedded.media import MediaFiles
from qlm.store.embedded.memory import MemoryStore
from qlm.store.embedded.outbox import outbox_changes, restore_outbox
from qlm.store.embedded.restored_logs import find
from qlm.store.embedded.token_log import TokenLog
from qlm.store.embedded.write_chain import Changes, Output

T = TypeVar("T")

log = logging.getLogger("qlm.store")

_MACHINE_RESTARTED: Final = (
    "the machine has started since QLM last wrote tokens of unfinished requests: after a power failure, "
    "those of the last seconds are lost, and these requests continue from the tokens before"
)

_JOURNALED: Final = (PublishedKind.CLUSTERS, PublishedKind.HISTORY)
"""What outlives the process of all that is published; its kind is its journal key."""


class EmbeddedStore(MemoryStore):
    """Memory store with a journal of ended requests and a token log of unfinished ones; made by `open`.

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
        tokens: TokenLog,
        damage: Sequence[str],
        ending: dict[RequestId, int],
        media: MediaFiles,
    ) -> None:
        """Use `open` instead."""
        super().__init__(clock, state=state)
        self._media_files = media
        self._writer = writer
        self._tokens = tokens
        self._damage = damage
        self._ending = ending

    @classmethod
    async def open(
        cls,
        clock: Clock,
        journal: Journal,
        limits: StoreLimits | None = None,
        *,
        consent: Consent = NO_CONSENT,
        retry_s: float = RETRY_S,
    ) -> "EmbeddedStore":
        """Read the journal and the token log beside it, and begin a new incarnation of both.

        Args:
            clock: The clock.
            journal: The journal, whose path names the token log too.
            limits: Limits of the store.
            consent: Consent to damage of the token log and of media.
            retry_s: Pause before a failed write is retried.

        Raises:
            DamagedDataError: The token log or media are damaged, and there is no consent to that; their
                files were not changed.
            UndecodableDataError: This version cannot read an entry of the journal.
            StoreUnavailableError: The token log or media cannot be read, or the journal or that log not be
                written.
        """
        entries = dict(journal.load())
        former = int(entries[INCARNATION_KEY]) if INCARNATION_KEY in entries else None
        state = State(max(clock.now_ns(), (former or 0) + 1), limits)
        for key, value in entries.items():
            if key.startswith(ENDED_PREFIX) and (ended := decode_ended(key, value)) is not None:
                requests.restore_ended(state, ended.record, ended.output, ended.detail, ended.extensions)
        restore_outbox(state, entries)
        logs, log_keys = decode_logs(entries)
        found, media = find(journal.path, former, state.requests), MediaFiles(journal.path)
        now_s = clock.now_ns() / 1e9
        damage = (*found.damage, *await asyncio.to_thread(media.inspect, state.requests, now_s))
        consent(damage)
        for sentence in damage:
            log.error("%s", sentence)
        if found.machine_restarted:
            log.warning(_MACHINE_RESTARTED)
        for id, kept in (logs | found.logs).items():
            if id not in state.requests:
                requests.restore_log(state, id, kept)
        media.forget(state.requests, now_s)
        ending: dict[RequestId, int] = {}
        tokens = TokenLog(journal.path, state.incarnation, partial(_whole_log, state, ending))
        incarnation = (INCARNATION_KEY, str(state.incarnation).encode())
        try:
            tokens.restore(state.restored)
            found.keep()
            # The incarnation makes the former token log void, so the present one must be on the disk before,
            # and copies of damaged files.
            await journal.write([incarnation], log_keys, durable=True)
        except StoreUnavailableError:
            tokens.delete()  # each attempt would leave a copy
            raise
        found.put_away()
        media.put_away()
        writer = JournalWriter(journal, tokens, retry_s=retry_s)
        store = cls(clock, state, writer, tokens, damage, ending, media)
        store._published.update({kind: entries[kind] for kind in _JOURNALED if kind in entries})
        store._api_keys = journaled_api_keys(entries)
        return store

    async def close(self) -> None:
        await self._writer.close()
        await self._close_logs()
        await super().close()

    async def _close_logs(self) -> None:
        """Move the logs of unfinished requests to the journal, where every version finds them."""
        try:
            await self._writer.move(encode_logs(dict(self._unfinished())))
        except StoreUnavailableError as error:
            log.warning(
                "output of unfinished requests stays in the token log, for this version only: %s", error
            )
        else:
            self._tokens.delete()

    def _unfinished(self) -> Iterator[tuple[RequestId, RestoredLog]]:
        """Iterate over the logs of all requests whose end is not stored."""
        for id in self._tokens.ids():
            kept = _whole_log(self._state, self._ending, id)
            if kept is not None and kept.token_ids:
                yield id, kept

    async def _settled(self, id: RequestId) -> None:
        await self._writer.settled(id)

    def _is_settled(self, id: RequestId) -> bool:
        return self._writer.is_settled(id)

    async def probe(self) -> None:
        await self._writer.probe()

    async def warnings(self) -> Sequence[str]:
        return (*self._writer.warnings(), *self._damage, *self._media_files.warnings())

    async def publish(self, kind: PublishedKind, data: bytes, term: Term | None = None) -> None:
        self._check_term(term)
        if kind is PublishedKind.CLUSTERS and data != self._published.get(kind):
            await self._writer.put(kind.value, data)
        if kind is PublishedKind.HISTORY:
            self._check_writable()
            self._writer.write_later({kind.value: data})  # planning does not wait for a disk
        self._published[kind] = data

    async def add_api_key(self, key: ApiKey) -> None:
        await self._writer.settle({api_key_entry(key.id): encode_api_key(key)})
        await super().add_api_key(key)

    async def remove_api_key(self, id: str) -> bool:
        await self._writer.settle({api_key_entry(id): None})
        return await super().remove_api_key(id)

    async def put_media(self, id: RequestId, data: bytes) -> bool:
        return await self._media_files.put(id, data)

    async def media(self, id: RequestId) -> bytes | None:
        return await self._media_files.get(id)

    async def drop_media(self, id: RequestId) -> None:
        self._media_files.drop([id])

    def _drop_ended(self, ended: Iterable[RequestId]) -> None:
        self._media_files.drop(ended)

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        ends = any(entry.outcome is not None for entry in entries)
        results = None if ends else self.append_now(entries)
        return await super().append(entries) if results is None else results

    def append_now(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult] | None:
        self._check_writable()
        ids = {entry.id for entry in entries}
        ends = any(entry.outcome is not None for entry in entries)
        if ends or len(ids) < len(entries) or not self._writer.may_write_now(ids):
            return None
        # First the log, then the state: of a write that fails, nothing is left.
        now_ns = self._clock.now_ns()
        refusals = [output_log.refusal(self._state, entry) for entry in entries]
        taken = [entry for entry, refused in zip(entries, refusals, strict=True) if refused is None]
        logged = [Logged(each.id, each.offset, each.token_ids, now_ns) for each in taken if each.token_ids]
        extended = {
            each.id: merged(without_logprobs(self._state.requests[each.id].extensions), each.extensions)
            for each in taken
            if each.extensions is not NO_LOG_EXTENSIONS
        }
        if logged or extended:
            self._writer.write_now(logged, extended)
        results, effects = output_log.append_some(self._state, entries, refusals, now_ns)
        self._feeds.announce(effects)
        return results

    def _check_writable(self) -> None:
        self._writer.check()

    async def _commit(self, step: tuple[T, Effects]) -> T:
        answer, effects = step
        if effects.durable:
            ids = {*effects.ended, *effects.extended, *(logged.id for logged in effects.logged)}
            self._note_ends(effects)
            output, changes, announce = (
                self._output(effects),
                self._changes(effects),
                partial(self._written, effects),
            )
            await self._writer.write(
                output, changes, announce, ids, durable=bool(effects.ended or effects.outbox)
            )
        else:
            self._feeds.announce(effects)
        return answer

    def _note_ends(self, effects: Effects) -> None:
        """Note how long the logs are without what comes with the ends."""
        for id in effects.ended:
            row = self._state.requests.get(id)
            self._ending[id] = len(row.log) if row is not None else 0
        for part in effects.logged:
            if part.id in self._ending:
                self._ending[part.id] = min(part.offset, self._ending[part.id])

    def _written(self, effects: Effects) -> None:
        self._feeds.announce(effects)
        for id in effects.ended:
            self._ending.pop(id, None)
        if effects.ended:
            self._tokens.ended(effects.ended)
            self._drop_ended(effects.ended)

    def _output(self, effects: Effects) -> Output:
        """Return what belongs in the token log: the end of a request has all of its output."""
        open_ids = {id: extended for id, extended in effects.extended.items() if id not in effects.ended}
        return Output([each for each in effects.logged if each.id not in effects.ended], open_ids)

    def _changes(self, effects: Effects) -> Changes:
        changes: dict[str, bytes | None] = {}
        for id in effects.ended:
            ended = self._ended(id)
            if ended is not None:
                changes[ended_key(id)] = encode_ended(ended)
        changes.update(dict.fromkeys(map(ended_key, effects.dropped)))
        changes.update(outbox_changes(effects.outbox))
        return changes

    def _ended(self, id: RequestId) -> Ended | None:
        """Return an ended request; None if the step that ended it also dropped it."""
        record, output = requests.record(self._state, id), output_log.read_output(self._state, id, 0)
        if record is None or output is None:
            return None
        return Ended(record, output.detail, output.token_ids, output.extensions)


def _whole_log(state: State, ending: Mapping[RequestId, int], id: RequestId) -> RestoredLog | None:
    """Return the log of a request whose end is not stored.

    Args:
        ending: Tokens before the end, of requests whose end is under way: it may come to nothing.
    """
    row = state.requests.get(id)
    if row is None:
        return state.restored.get(id)
    if row.times.first_ns is None and row.extensions is NO_LOG_EXTENSIONS:
        return None
    tokens = row.log[: ending[id]] if id in ending else row.log  # the array itself: a log may be long
    return RestoredLog(tokens, row.times.first_ns or 0, row.extensions)
