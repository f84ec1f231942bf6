"""Logs of unfinished requests in the journal, where versions without a token log have them.

They are read when the store opens, and written when it closes: after an orderly stop such a version continues
them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.ids import RequestId
from qlm.store.core.effects import Logged
from qlm.store.core.state import RestoredLog
from qlm.store.embedded.journal_codec import (
    EXTENSIONS_PREFIX,
    LOG_PREFIX,
    decode_extensions,
    decode_log,
    encode_extensions,
    encode_log,
    extensions_key,
    log_key,
)


def decode_logs(entries: Mapping[str, bytes]) -> tuple[dict[RequestId, RestoredLog], Sequence[str]]:
    """Return the logs of unfinished requests in a journal, and their journal keys.

    Raises:
        UndecodableDataError: An entry cannot be read, or a log lacks tokens.
    """
    keys = [key for key in entries if key.startswith((LOG_PREFIX, EXTENSIONS_PREFIX))]
    logs = [decode_log(key, entries[key]) for key in keys if key.startswith(LOG_PREFIX)]
    extensions = {
        key: decode_extensions(key, entries[key]) for key in keys if key.startswith(EXTENSIONS_PREFIX)
    }
    return _put_together(logs, extensions), keys


def encode_logs(logs: Mapping[RequestId, RestoredLog]) -> dict[str, bytes]:
    """Return the entries of a journal with these logs."""
    entries = {}
    for id, log in logs.items():
        part = Logged(id, 0, log.token_ids, log.first_token_ns)
        entries[log_key(part)] = encode_log(part)
        if log.extensions is not NO_LOG_EXTENSIONS:
            entries[extensions_key(id)] = encode_extensions(log.extensions, log.first_token_ns)
    return entries


def _put_together(
    parts: Iterable[Logged], extensions: Mapping[str, tuple[LogExtensions, int]]
) -> dict[RequestId, RestoredLog]:
    by_id: defaultdict[RequestId, list[Logged]] = defaultdict(list)
    for part in parts:
        by_id[part.id].append(part)
    logs = {}
    for id, log in by_id.items():
        log.sort(key=lambda part: part.offset)
        _check_whole(log)
        token_ids = tuple(token_id for part in log for token_id in part.token_ids)
        first_token_ns = log[0].at_ns
        of_log, written_ns = extensions.get(extensions_key(id), (NO_LOG_EXTENSIONS, first_token_ns))
        # After a roll-back another request may have the id.
        if written_ns != first_token_ns:
            of_log = NO_LOG_EXTENSIONS
        logs[id] = RestoredLog(token_ids, first_token_ns, of_log)
    return logs


def _check_whole(log: Sequence[Logged]) -> None:
    length = 0
    for part in log:
        if part.offset != length:
            raise UndecodableDataError(
                f"journal lacks tokens {length} to {part.offset} of the output of {part.id!r}"
            )
        length += len(part.token_ids)
