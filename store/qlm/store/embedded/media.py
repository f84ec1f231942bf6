"""Media of requests: in memory, or in files beside the journal, one for each request."""

import asyncio
import hashlib
import itertools
import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from qlm.domain.errors import StoreDataError, StoreUnavailableError
from qlm.domain.formats.media import media_digest
from qlm.domain.ids import RequestId
from qlm.domain.ports.media import MEDIA_KEPT_S
from qlm.domain.shell.damage import DAMAGED, kept_as
from qlm.domain.shell.disk import sync

FOLDER: Final = ".media"
"""End of the name of the folder; the journal's path is its beginning."""

_UNFINISHED: Final = ".new"

_MEDIA_NAME: Final = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{32})?")

_DAMAGED_NAME: Final = re.compile(rf"{_MEDIA_NAME.pattern}{re.escape(DAMAGED)}(\.[0-9]+)?")

log = logging.getLogger("qlm.store")


class MemoryMedia:
    """Part of `MemoryStore` with the media."""

    def __init__(self) -> None:
        super().__init__()
        self._media: dict[RequestId, bytes] = {}

    async def put_media(self, id: RequestId, data: bytes) -> bool:
        return self._media.setdefault(id, data) == data

    async def media(self, id: RequestId) -> bytes | None:
        return self._media.get(id)

    async def drop_media(self, id: RequestId) -> None:
        self._media.pop(id, None)

    def _drop_ended(self, ended: Iterable[RequestId]) -> None:
        """Drop the media of requests whose end is stored."""
        for id in ended:
            self._media.pop(id, None)


class MediaFiles:
    """Files with media; what is there at the start stays.

    The name of a file has the digest of what was written to it. Files of the former version have none. What
    has another name, a backup or a file of the system, is left alone.
    """

    def __init__(self, journal: Path) -> None:
        """Read which there are.

        Raises:
            StoreUnavailableError: The folder cannot be read.
        """
        self._folder = journal.with_name(journal.name + FOLDER)
        self._writing = asyncio.Lock()
        self._numbers = itertools.count()
        self._unsound: dict[str, str] = {}
        try:
            paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
            media = sorted(filter(_is_media, paths), key=_changed_s)
        except OSError as error:
            raise self._error(error) from error
        self._files: dict[str, str] = {}
        for name in (path.name for path in media):
            # Of two for one request, one of which the former version wrote, the later sound one counts.
            other = self._files.get(_request_of(name))
            if other is None or self._fits(name) or not self._fits(other):
                self._files[_request_of(name)] = name
        own = {path.name for path in (*media, *filter(_is_leftover, paths))}
        self._others = own - set(self._files.values())

    def inspect(self, ended: Iterable[RequestId], now_s: float) -> Sequence[str]:
        """Return which of those that `forget` would leave are damaged, in a sentence each.

        Raises:
            StoreUnavailableError: One cannot be read.
        """
        gone = {_name(id) for id in ended}
        for request, name in self._files.items():
            path = self._folder / name
            if request in gone or _age_s(path, now_s) > MEDIA_KEPT_S or self._fits(name):
                continue
            self._unsound[name] = (
                f"{path}: the media of an unfinished request are damaged; that request ends with "
                f"output_lost; they are kept as {kept_as(path)}"
            )
        return tuple(self._unsound.values())

    def put_away(self) -> None:
        """Rename what `inspect` found; it is kept from now on, as long as media are.

        Raises:
            StoreUnavailableError: A file cannot be renamed.
        """
        for name in tuple(self._unsound):
            path = self._folder / name
            try:
                os.utime(path)
                path.replace(kept_as(path))
            except OSError as error:
                raise self._error(error) from error
            del self._files[_request_of(name)], self._unsound[name]

    def warnings(self) -> Sequence[str]:
        """Return which were found damaged since the start, in a sentence each."""
        return tuple(self._unsound.values())

    def forget(self, ended: Iterable[RequestId], now_s: float) -> None:
        """Delete those of requests that have ended, those that are too old, and those written in part."""
        gone = {_name(id) for id in ended}
        for request, name in tuple(self._files.items()):
            if request in gone or _age_s(self._folder / name, now_s) > MEDIA_KEPT_S:
                self._delete(request)
        for name in self._others:
            path = self._folder / name
            if not _DAMAGED_NAME.fullmatch(name) or _age_s(path, now_s) > MEDIA_KEPT_S:
                _unlink(path)

    async def put(self, id: RequestId, data: bytes) -> bool:
        """Write media, safe on the disk; False if there are others.

        Raises:
            StoreUnavailableError: They cannot be written.
        """
        request, digest = _name(id), media_digest(data)
        async with self._writing:
            known, name = await self._read(request), self._files.get(request, "")
            # What is known is written again if it is this, and was damaged since.
            if known is not None and (known == data or _digest_of(name) != digest):
                return known == data
            # Known before it is written: a put that is cancelled leaves it, and a drop has to find it.
            self._files[request] = f"{request}.{digest}"
            self._unsound.pop(name, None)
            await self._written(request, data)
        return True

    async def get(self, id: RequestId) -> bytes | None:
        """Return media; None without.

        Raises:
            StoreDataError: They are damaged.
            StoreUnavailableError: They cannot be read.
        """
        data, name = await self._read(_name(id)), self._files.get(_name(id), "")
        if data is None or _digest_of(name) in ("", media_digest(data)):
            return data
        if name not in self._unsound:
            self._unsound[name] = f"{self._folder / name}: the media of the request {id} are damaged"
            log.error("%s", self._unsound[name])
        raise StoreDataError("they do not fit their digest")

    def drop(self, ids: Iterable[RequestId]) -> None:
        """Delete media, if there are any."""
        if self._files:
            for id in ids:
                if _name(id) in self._files:
                    self._delete(_name(id))

    async def _written(self, request: str, data: bytes) -> None:
        """Write media in a thread, and wait for its end even if cancelled: the next put has to see them."""
        name = self._files[request]
        write = asyncio.get_running_loop().run_in_executor(None, self._write, name, next(self._numbers), data)
        try:
            await _ended(write)
        except OSError as error:
            raise self._error(error) from error
        finally:
            if self._files.get(request) != name:  # dropped meanwhile
                _unlink(self._folder / name)

    async def _read(self, request: str) -> bytes | None:
        if request not in self._files:
            return None
        try:
            return await asyncio.to_thread((self._folder / self._files[request]).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error) from error

    def _fits(self, name: str) -> bool:
        """Return whether a file has what was written to it, as far as its name says."""
        if not _digest_of(name):
            return True
        try:
            return media_digest((self._folder / name).read_bytes()) == _digest_of(name)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise self._error(error) from error

    def _write(self, name: str, number: int, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = self._folder / f"{name}.{number}{_UNFINISHED}"
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._folder / name)
        except OSError:
            _unlink(unfinished)
            raise
        sync(self._folder)

    def _delete(self, request: str) -> None:
        name = self._files.pop(request)
        self._unsound.pop(name, None)
        _unlink(self._folder / name)

    def _error(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(f"the media in {self._folder} cannot be used: {error.strerror}")


async def _ended(write: asyncio.Future[None]) -> None:
    """Wait until a write has ended, then raise what cancelled the wait, or stopped the write."""
    cancelled: asyncio.CancelledError | None = None
    while not write.done():
        try:
            await asyncio.wait([write])
        except asyncio.CancelledError as error:
            cancelled = error
    failed = write.exception()
    if cancelled is not None:
        raise cancelled
    if failed is not None:
        raise failed


def _name(id: RequestId) -> str:
    # Ids of clients with an Idempotency-Key may be as long as they like.
    return hashlib.sha256(id.encode()).hexdigest()


def _is_media(path: Path) -> bool:
    return _MEDIA_NAME.fullmatch(path.name) is not None and path.is_file()


def _is_leftover(path: Path) -> bool:
    """Return whether a file was written in part, or is kept as damaged."""
    return path.name.endswith(_UNFINISHED) or _DAMAGED_NAME.fullmatch(path.name) is not None


def _request_of(name: str) -> str:
    return name.partition(".")[0]


def _digest_of(name: str) -> str:
    """Return the digest in the name of a file; empty without."""
    return name.partition(".")[2]


def _unlink(path: Path) -> None:
    # One that cannot be deleted now goes at a later start.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _changed_s(path: Path) -> float:
    return path.stat().st_mtime


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except OSError:
        return 0.0
