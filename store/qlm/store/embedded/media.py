"""Media of requests: in memory, or in files beside the journal, one for each request."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.ports.media import MEDIA_KEPT_S

FOLDER: Final = ".media"
"""End of the name of the folder; the journal's path is its beginning."""

_UNFINISHED: Final = ".new"


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
    """Files with media; what is there at the start stays."""

    def __init__(self, journal: Path) -> None:
        """Read which there are.

        Raises:
            StoreUnavailableError: The folder cannot be read.
        """
        self._folder = journal.with_name(journal.name + FOLDER)
        self._writing = asyncio.Lock()
        self._numbers = itertools.count()
        try:
            self._names = {each.name for each in self._folder.iterdir()} if self._folder.is_dir() else set()
        except OSError as error:
            raise self._error(error) from error

    def forget(self, ended: Iterable[RequestId], now_s: float) -> None:
        """Delete those of requests that have ended, those that are too old, and those written in part."""
        names = {_name(id) for id in ended}
        for name in tuple(self._names):
            path = self._folder / name
            if name in names or name.endswith(_UNFINISHED) or _age_s(path, now_s) > MEDIA_KEPT_S:
                self._delete(name)

    async def put(self, id: RequestId, data: bytes) -> bool:
        """Write media, safe on the disk; False if there are others.

        Raises:
            StoreUnavailableError: They cannot be written.
        """
        async with self._writing:
            known = await self.get(id)
            if known is not None:
                return known == data
            # Known before it is written: a put that is cancelled may leave it, and a drop has to find it.
            self._names.add(_name(id))
            try:
                await asyncio.shield(asyncio.to_thread(self._write, _name(id), next(self._numbers), data))
            except OSError as error:
                raise self._error(error) from error
        return True

    async def get(self, id: RequestId) -> bytes | None:
        """Return media; None without.

        Raises:
            StoreUnavailableError: They cannot be read.
        """
        if _name(id) not in self._names:
            return None
        try:
            return await asyncio.to_thread((self._folder / _name(id)).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error) from error

    def drop(self, ids: Iterable[RequestId]) -> None:
        """Delete media, if there are any."""
        if self._names:
            for id in ids:
                if (name := _name(id)) in self._names:
                    self._delete(name)

    def _write(self, name: str, number: int, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = self._folder / f"{name}.{number}{_UNFINISHED}"
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _delete(self, name: str) -> None:
        # One that cannot be deleted now goes at a later start.
        self._names.discard(name)
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError:
            return

    def _error(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(f"the media in {self._folder} cannot be used: {error.strerror}")


def _name(id: RequestId) -> str:
    # Ids of clients with an Idempotency-Key may be as long as they like.
    return hashlib.sha256(id.encode()).hexdigest()


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except OSError:
        return 0.0
