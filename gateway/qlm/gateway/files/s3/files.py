"""Files of clients in a bucket.

Keys: `<tenant>/files/<id>` is the content, `<id>.json` beside it what is known of it, written last: a file
without is unknown. A tenant's files are looked for below its own prefix only. An id begins with the time at
which its upload began, so that the newest file has the first key; those of ids without are listed last.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice, takewhile
from threading import Lock
from typing import BinaryIO, Final

from qlm.domain.errors import QlmError
from qlm.domain.ports.clock import Clock
from qlm.gateway.files.records import (
    FILE_PREFIX,
    PAGE_MAX,
    TIMED,
    UPLOAD_MAX_S,
    Page,
    RandomHex,
    StoredFile,
    file_from,
    is_id,
    is_tenant_name,
    newest_files_first,
    page_after,
    tenant_name,
    timed_hex,
)
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.known import KnownJson
from qlm.gateway.files.s3.reader import open_object

PART_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are written at a time; the storage takes up to 10 000 such parts, none below 5 MiB."""


class S3Incoming:
    """Content that comes: small ones are written at once, large ones in parts."""

    def __init__(self, files: "S3Files", bucket: Bucket, tenant: str, id: str) -> None:
        """Begin with no content."""
        self._files = files
        self._bucket = bucket
        self._tenant = tenant
        self._id = id
        self._key = content_key(tenant, id)
        self._buffer = bytearray()
        self._size_bytes = 0
        self._upload: str | None = None
        self._etags: list[str] = []
        self._discarded = False
        self._lock = Lock()  # a client may leave while a part is on its way in another thread

    def write(self, data: bytes) -> None:
        """Take a piece.

        Raises:
            ValueError: The content was discarded.
        """
        with self._lock:
            self._check_open()
            self._buffer += data
            self._size_bytes += len(data)
            while len(self._buffer) >= PART_BYTES:
                self._put_part(bytes(self._buffer[:PART_BYTES]))
                del self._buffer[:PART_BYTES]

    def keep(self, name: str, purpose: str, lifetime_s: int) -> StoredFile:
        """Make a file of it, durably: whole, or not at all.

        Raises:
            ValueError: The content was discarded.
        """
        with self._lock:
            self._check_open()
            self._end_content()
        return self._files.add(self._tenant, self._id, self._size_bytes, name, purpose, lifetime_s)

    def discard(self) -> None:
        """Delete what was not kept; of a file that was kept, nothing. In an outage, a sweep does it later."""
        with self._lock:
            self._discarded = True
            self._buffer.clear()
            upload, self._upload = self._upload, None
            if upload is not None:
                with contextlib.suppress(QlmError):
                    self._bucket.abort_parts(self._key, upload)

    def _check_open(self) -> None:
        if self._discarded:
            raise ValueError("the content was discarded")

    def _end_content(self) -> None:
        if self._upload is None:
            self._bucket.put(self._key, bytes(self._buffer))
        else:
            if self._buffer:
                self._put_part(bytes(self._buffer))
            self._bucket.end_parts(self._key, self._upload, self._etags)
            self._upload = None
        self._buffer.clear()

    def _put_part(self, data: bytes) -> None:
        if self._upload is None:
            self._upload = self._bucket.begin_parts(self._key)
        number = len(self._etags) + 1
        self._etags.append(self._bucket.put_part(self._key, self._upload, number, data))


class S3Files:
    """The files of all tenants in a bucket, which several gateways may share."""

    def __init__(self, bucket: Bucket, known: KnownJson, clock: Clock, random_hex: RandomHex) -> None:
        """Use a bucket."""
        self._bucket = bucket
        self._known = known
        self._clock = clock
        self._random_hex = random_hex

    def incoming(self, tenant: str) -> S3Incoming:
        """Return a place for content of a tenant that comes."""
        id = FILE_PREFIX + timed_hex(self._now_s(), self._random_hex)
        return S3Incoming(self, self._bucket, tenant, id)

    def add(
        self, tenant: str, id: str, size_bytes: int, name: str, purpose: str, lifetime_s: int
    ) -> StoredFile:
        """Make a file of content that is stored."""
        now_s = self._now_s()
        made = StoredFile(
            id=id,
            name=name,
            purpose=purpose,
            size_bytes=size_bytes,
            created_s=now_s,
            expires_s=now_s + lifetime_s,
        )
        try:
            self._bucket.put_json(_known_key(tenant, id), asdict(made))
        except BaseException:  # what has no name would take room until it is swept
            with contextlib.suppress(QlmError):
                self._bucket.delete(_known_key(tenant, id), content_key(tenant, id))
            raise
        return made

    def get(self, tenant: str, id: str) -> StoredFile | None:
        """Return a file; None if the tenant has none with this id."""
        if not is_id(id, FILE_PREFIX):
            return None
        plain = self._bucket.get_json(_known_key(tenant, id))
        found = None if plain is None else file_from(plain)
        return None if found is None or found.expires_s <= self._now_s() else found

    def open(self, tenant: str, id: str) -> BinaryIO:
        """Open the content of a file for reading, from any offset.

        Raises:
            FileNotFoundError: There is none.
        """
        return open_object(self._bucket, content_key(tenant, id))

    def page(
        self,
        tenant: str,
        after: str | None = None,
        limit: int = PAGE_MAX,
        purpose: str | None = None,
        *,
        oldest_first: bool = False,
    ) -> Page[StoredFile]:
        """Return files of a tenant, newest first unless asked otherwise, and whether more follow.

        Raises:
            LookupError: The tenant has no such file to begin behind.
        """
        if after is not None and self.get(tenant, after) is None:
            raise LookupError(after)
        now_s = self._now_s()
        ordered = self._oldest_first if oldest_first else self._newest_first
        wanted = (
            each
            for each in ordered(tenant, after, limit + 1)
            if each.expires_s > now_s and purpose in (None, each.purpose)
        )
        found = list(islice(wanted, limit + 1))
        return found[:limit], len(found) > limit

    def used_bytes(self, tenant: str) -> int:
        """Return the size of all files of a tenant; of expired ones, too, until they are deleted."""
        sizes = {each.key: each.size_bytes for each in self._bucket.entries(_folder(tenant))}
        return sum(size for key, size in sizes.items() if f"{key}.json" in sizes)

    def delete(self, tenant: str, id: str) -> bool:
        """Delete a file; False if the tenant has none with this id."""
        if not is_id(id, FILE_PREFIX) or self._bucket.size_bytes(_known_key(tenant, id)) is None:
            return False
        self._bucket.delete(_known_key(tenant, id), content_key(tenant, id))
        return True

    def sweep(self) -> None:
        """Delete expired files, and what is left of broken uploads."""
        for key, changed_s in list(self._contents()):
            plain = self._known.get(f"{key}.json")
            gone = self._bucket.now_s() - changed_s > UPLOAD_MAX_S if plain is None else False
            if gone or (plain is not None and plain["expires_s"] <= self._now_s()):
                self._bucket.delete(f"{key}.json", key)
        for key, upload, age_s in list(self._bucket.open_uploads()):
            if age_s > UPLOAD_MAX_S and _is_content(key):
                self._bucket.abort_parts(key, upload)

    def _newest_first(self, tenant: str, after: str | None, at_once: int) -> Iterator[StoredFile]:
        """Yield the files behind one, as they are asked for; so many are read at once."""
        folder = _folder(tenant)
        timed = f"{folder}{FILE_PREFIX}{TIMED}"
        if after is None or _is_timed(after):
            start = timed if after is None else _known_key(tenant, after)
            entries = self._bucket.entries(folder, start, at_once=2 * at_once)
            keys = (each.key for each in entries if each.key.endswith(".json"))
            while some := list(islice(keys, at_once)):
                yield from map(file_from, self._known.get_all(some))
            after = None
        others = takewhile(lambda each: each.key < timed, self._bucket.entries(folder))
        known = self._known.get_all(each.key for each in others if each.key.endswith(".json"))
        files = newest_files_first(map(file_from, known))
        yield from page_after(files, [each.id for each in files], after, len(files))[0]

    def _oldest_first(self, tenant: str, after: str | None, at_once: int) -> Iterator[StoredFile]:
        """Yield the files behind one, as they are asked for; the keys of all are listed."""
        folder = _folder(tenant)
        timed = f"{folder}{FILE_PREFIX}{TIMED}"
        keys = [each for each in self._bucket.keys(folder) if each.endswith(".json")]
        if after is None or not _is_timed(after):
            known = self._known.get_all(each for each in keys if each < timed)
            files = newest_files_first(map(file_from, known))[::-1]
            yield from page_after(files, [each.id for each in files], after, len(files))[0]
            after = None
        end = None if after is None else _known_key(tenant, after)
        newer = (each for each in reversed(keys) if each >= timed and (end is None or each < end))
        while some := list(islice(newer, at_once)):
            yield from map(file_from, self._known.get_all(some))

    def _contents(self) -> Iterator[tuple[str, float]]:
        for entry in self._bucket.entries(""):
            if _is_content(entry.key):
                yield entry.key, entry.changed_s

    def _now_s(self) -> int:
        return self._clock.now_ns() // 10**9


def content_key(tenant: str, id: str) -> str:
    """Return the key of a file's content."""
    return _folder(tenant) + id


def _is_timed(id: str) -> bool:
    """Return whether an id begins with its time."""
    return id.startswith(FILE_PREFIX + TIMED)


def _folder(tenant: str) -> str:
    return f"{tenant_name(tenant)}/files/"


def _is_content(key: str) -> bool:
    """Return whether a key is that of a file's content: the bucket may have objects of others, too."""
    tenant, _, rest = key.partition("/")
    return is_tenant_name(tenant) and rest.startswith("files/") and is_id(rest[len("files/") :], FILE_PREFIX)


def _known_key(tenant: str, id: str) -> str:
    return f"{content_key(tenant, id)}.json"
