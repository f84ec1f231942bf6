"""Files of clients on the disk: content and what is known of it, in a folder for each tenant.

Folders: `<root>/<tenant>/files/<id>` is the content, `<id>.json` beside it what is known of it, written last:
a file without is unknown. A tenant's files are looked for in its own folder only.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Final

from qlm.domain.ports.clock import Clock
from qlm.domain.shell.disk import sync
from qlm.gateway.files.disk.json_files import JsonFiles, write_all, write_json
from qlm.gateway.files.records import (
    FILE_PREFIX,
    ID_BYTES,
    PAGE_MAX,
    UPLOAD_MAX_S,
    Page,
    RandomHex,
    StoredFile,
    file_from,
    is_id,
    newest_files_first,
    page_after,
    tenant_name,
)

UPLOADS: Final = "uploads"
"""Folder of content that comes."""


class DiskIncoming:
    """Content that comes, in a file that is moved when it is kept."""

    def __init__(self, files: "DiskFiles", tenant: str, path: Path) -> None:
        """Begin with no content."""
        self._files = files
        self._tenant = tenant
        self._path = path
        self._file = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Take a piece."""
        write_all(self._file, data)

    def keep(self, name: str, purpose: str, lifetime_s: int) -> StoredFile:
        """Make a file of it, durably: whole, or not at all."""
        self._file.close()
        return self._files.add(self._tenant, self._path, name, purpose, lifetime_s)

    def discard(self) -> None:
        """Delete what was not kept; of a file that was kept, nothing."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class DiskFiles:
    """The files of all tenants below one folder, which several gateways may share.

    Attributes:
        root: The folder.
        json: Reads what is known of them.
    """

    def __init__(self, root: Path, clock: Clock, random_hex: RandomHex) -> None:
        """Use a folder, which is made when the first file comes."""
        self.root = root
        self.json = JsonFiles()
        self._clock = clock
        self._random_hex = random_hex

    def incoming(self, tenant: str) -> DiskIncoming:
        """Return a place for content of a tenant that comes."""
        return DiskIncoming(self, tenant, self.upload_path())

    def upload_path(self) -> Path:
        """Return a path for content that comes; `add` moves it."""
        folder = self.root / UPLOADS
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self._random_hex(ID_BYTES)

    def add(self, tenant: str, content: Path, name: str, purpose: str, lifetime_s: int) -> StoredFile:
        """Make a file of content, which is moved."""
        folder = self._folder(tenant)
        folder.mkdir(parents=True, exist_ok=True)
        id = FILE_PREFIX + self._random_hex(ID_BYTES)
        sync(content)
        content.rename(folder / id)
        now_s = self._now_s()
        made = StoredFile(
            id=id,
            name=name,
            purpose=purpose,
            size_bytes=(folder / id).stat().st_size,
            created_s=now_s,
            expires_s=now_s + lifetime_s,
        )
        try:
            write_json(folder / f"{id}.json", asdict(made), self._random_hex)
        except BaseException:  # what has no name would take room for ever
            (folder / f"{id}.json").unlink(missing_ok=True)
            (folder / id).unlink(missing_ok=True)
            raise
        return made

    def get(self, tenant: str, id: str) -> StoredFile | None:
        """Return a file; None if the tenant has none with this id.

        Raises:
            UndecodableDataError: What is known of it is damaged.
        """
        if not is_id(id, FILE_PREFIX):
            return None
        found = self.json.read(self._folder(tenant) / f"{id}.json", file_from)
        return None if found is None or found.expires_s <= self._now_s() else found

    def open(self, tenant: str, id: str) -> BinaryIO:
        """Open the content of a file for reading, from any offset.

        Raises:
            FileNotFoundError: There is none.
        """
        return self.content(tenant, id).open("rb")

    def content(self, tenant: str, id: str) -> Path:
        """Return the path of a file's content."""
        return self._folder(tenant) / id

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
        now_s = self._now_s()
        found = newest_files_first(
            each
            for each in self._known(self._folder(tenant))
            if each.expires_s > now_s and purpose in (None, each.purpose)
        )
        if oldest_first:
            found.reverse()
        return page_after(found, [each.id for each in found], after, limit)

    def used_bytes(self, tenant: str) -> int:
        """Return the size of all files of a tenant; of expired ones, too, until they are deleted."""
        return sum(each.size_bytes for each in self._known(self._folder(tenant)))

    def delete(self, tenant: str, id: str) -> bool:
        """Delete a file; False if the tenant has none with this id."""
        if not is_id(id, FILE_PREFIX):
            return False
        return _delete(self._folder(tenant), id)

    def sweep(self) -> None:
        """Delete expired files, and what is left of broken uploads."""
        for folder in self.root.glob("*/files"):
            for each in list(self._known(folder)):
                if each.expires_s <= self._now_s():
                    _delete(folder, each.id)
            for path in list(_nameless(folder)):
                _delete_old(path)
        for path in (self.root / UPLOADS).glob("*"):
            _delete_old(path)

    def _folder(self, tenant: str) -> Path:
        return self.root / tenant_name(tenant) / "files"

    def _known(self, folder: Path) -> Iterator[StoredFile]:
        """Yield the files of a folder whose JSON is sound."""
        for path in folder.glob(f"{FILE_PREFIX}*.json"):
            if (found := self.json.read_sound(path, file_from)) is not None:
                yield found

    def _now_s(self) -> int:
        return self._clock.now_ns() // 10**9


def _delete(folder: Path, id: str) -> bool:
    try:
        (folder / f"{id}.json").unlink()
    except FileNotFoundError:
        return False
    (folder / id).unlink(missing_ok=True)
    return True


def _nameless(folder: Path) -> Iterator[Path]:
    """Return content of which nothing is known: its gateway died before, or while it deleted it."""
    for path in folder.glob(f"{FILE_PREFIX}*"):
        if path.suffix != ".json" and not path.with_suffix(".json").exists():
            yield path


def _delete_old(path: Path) -> None:
    """Delete what is older than any upload lasts, by the clock of the machine."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > UPLOAD_MAX_S:
            path.unlink()
