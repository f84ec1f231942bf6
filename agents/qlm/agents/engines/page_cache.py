"""Prefetch of weights files into host memory before a start or reload: the page cache, real or emulated."""

import asyncio
import os
from pathlib import Path
from typing import Final, Protocol

_PATTERNS: Final = ("*.safetensors", "*.bin", "*.pt")
_CHUNK_BYTES: Final = 16 * 2**20


class WeightsCache(Protocol):
    """Cache in host memory for the weights files of one model."""

    async def prefetch(self) -> bool:
        """Read the files into host memory; False if there is nothing to read."""
        ...

    async def drop(self) -> None:
        """Release them from host memory, and stop a prefetch in progress."""
        ...


class PageCachedWeights:
    """Weights files of a folder, prefetched into the page cache of this machine.

    The page cache evicts the least recently read pages first. Nothing is pinned: pages go when other
    processes need the memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted = False

    async def prefetch(self) -> bool:
        """Read all files once, in a thread."""
        self._wanted = True
        return await asyncio.to_thread(self._read)

    async def drop(self) -> None:
        """Stop reading, and advise the kernel to drop the files' pages."""
        self._wanted = False
        await asyncio.to_thread(self._advise_away)

    def _files(self) -> list[Path]:
        return sorted(file for pattern in _PATTERNS for file in self._folder.glob(pattern))

    def _read(self) -> bool:
        files, buffer = self._files(), bytearray(_CHUNK_BYTES)
        for path in files:
            try:
                with path.open("rb", buffering=0) as file:
                    while self._wanted and file.readinto(buffer):
                        pass
            except OSError:
                return False
        return bool(files) and self._wanted

    def _advise_away(self) -> None:
        # The kernel keeps pages that another process has mapped.
        for path in self._files():
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError:
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class EmulatedWeights:
    """Weights of an emulated engine: a prefetch takes time and leaves a marker file.

    Args:
        marker: The file; emulated engines look for it (`qlm emulate --page-cache-marker`).
        read_s: Duration of a prefetch, real seconds.
    """

    def __init__(self, marker: Path, read_s: float) -> None:
        self._marker = marker
        self._read_s = read_s
        self._wanted = False

    async def prefetch(self) -> bool:
        """Wait `read_s` seconds, then create the marker."""
        self._wanted = True
        await asyncio.sleep(self._read_s)
        if self._wanted:
            await asyncio.to_thread(self._mark)
        return self._wanted

    async def drop(self) -> None:
        """Remove the marker."""
        self._wanted = False
        await asyncio.to_thread(self._marker.unlink, missing_ok=True)

    def _mark(self) -> None:
        self._marker.parent.mkdir(parents=True, exist_ok=True)
        self._marker.touch()
