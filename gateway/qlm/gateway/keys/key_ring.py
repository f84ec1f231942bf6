"""The API keys as a gateway knows them: read from the shared state, looked up in memory."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ports.api_keys import ApiKey, ApiKeys
from qlm.domain.ports.clock import Clock
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.keys.secret import digest_of

_log = logging.getLogger(__name__)

FRESH_S: Final = 2.0
"""Age at which the known keys are read again: a revoked key is refused everywhere after this time."""

STALE_MAX_S: Final = 60.0
"""Age up to which the known keys count while they cannot be read, whatever the failure."""

READS_APART_S: Final = 0.1
"""Time between two reads for keys that are not known: wrong ones cost the shared state no more."""

_UNREADABLE: Final = "the API keys cannot be read"


class KeyRing:
    """The API keys of a deployment, as read lately."""

    def __init__(self, store: ApiKeys, clock: Clock, faults: FaultLog) -> None:
        """Know no key yet.

        Args:
            store: Where the keys are.
            clock: The time.
            faults: Receives failed reads.
        """
        self._store = store
        self._clock = clock
        self._faults = faults
        self._by_digest: Mapping[str, ApiKey] = {}
        self._read_ns: int | None = None
        self._failed: tuple[int, StoreUnavailableError] | None = None
        self._reading = asyncio.Lock()

    async def find(self, secret: str) -> ApiKey | None:
        """Return the key with a secret, which may have expired; None if there is none.

        Raises:
            StoreUnavailableError: The keys cannot be read, and those known are too old, or lack this one.
        """
        digest, now_ns = digest_of(secret), self._clock.now_ns()
        if self._age_s(now_ns) >= FRESH_S:
            await self._read_since(now_ns)
        if digest not in self._by_digest:
            await self._read_since(now_ns)  # it may be new
            failed = self._failed
            if digest not in self._by_digest and failed is not None and failed[0] >= now_ns:
                raise StoreUnavailableError(*failed[1].args) from failed[1]
        return self._by_digest.get(digest)

    async def _read_since(self, at_ns: int) -> None:
        """Make sure that the keys were read at a time or later; calls at the same time share a read."""
        async with self._reading:
            now_ns = self._clock.now_ns()
            if self._read_ns is not None and at_ns <= self._read_ns <= now_ns:
                return
            age_s = self._age_s(now_ns)
            # Else calls would wait in turn, each until the shared state does not answer.
            if self._failed is not None and at_ns <= self._failed[0] <= now_ns:
                self._go_on_without(self._failed[1], age_s)
                return
            if age_s < READS_APART_S:
                await asyncio.sleep(READS_APART_S - age_s)
                now_ns = self._clock.now_ns()
            try:
                keys = await self._store.api_keys()
            except Exception as error:
                self._faults.note(_log, error, _UNREADABLE)
                failed = _in_words_for_clients(error)
                self._failed = self._clock.now_ns(), failed
                self._go_on_without(failed, age_s)
                return
            if self._by_digest and not keys:
                _log.error(
                    "all %d API keys are gone from the shared state; if it was emptied, make them again "
                    "with `qlm keys create`: until then every call gets 401",
                    len(self._by_digest),
                )
            self._by_digest, self._read_ns = {key.digest: key for key in keys}, now_ns

    def _go_on_without(self, error: StoreUnavailableError, age_s: float) -> None:
        """Let the known keys count for a while; raise a new error with the text of `error` after that."""
        if age_s >= STALE_MAX_S:
            raise StoreUnavailableError(*error.args) from error

    def _age_s(self, now_ns: int) -> float:
        # abs: after the clock was set back, the keys must not stay as they are for that time.
        return float("inf") if self._read_ns is None else abs(now_ns - self._read_ns) / 1e9


def _in_words_for_clients(error: Exception) -> StoreUnavailableError:
    """Return the error of a failed read for clients: without words on damaged data or a bug."""
    return error if isinstance(error, StoreUnavailableError) else StoreUnavailableError(_UNREADABLE)
