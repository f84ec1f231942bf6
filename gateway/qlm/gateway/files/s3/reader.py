"""Content of an object, read in ranges: any size in bounded memory."""

import io
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from qlm.gateway.files.s3.bucket import Bucket

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE_BYTES: Final = 1024 * 1024
"""Bytes that are read at a time."""


class _Ranges(io.RawIOBase):
    def __init__(self, bucket: Bucket, key: str, size_bytes: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        pieces = []
        while data := self._next(PIECE_BYTES):
            pieces.append(data)
        return b"".join(pieces)

    def _next(self, bytes_max: int) -> bytes:
        end = min(self._at + bytes_max, self._size_bytes)
        if end <= self._at:
            return b""
        data = self._bucket.get_range(self._key, self._at, end)
        self._at += len(data)
        return data


def open_object(bucket: Bucket, key: str) -> BinaryIO:
    """Open an object for reading, from any offset.

    Raises:
        FileNotFoundError: There is none.
    """
    size_bytes = bucket.size_bytes(key)
    if size_bytes is None:
        raise FileNotFoundError(f"{bucket.where} has no {key}")
    return cast("BinaryIO", io.BufferedReader(_Ranges(bucket, key, size_bytes), PIECE_BYTES))
