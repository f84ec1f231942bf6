"""Small files that are whole or absent, whatever is killed meanwhile."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.shell.disk import sync
from qlm.gateway.files.records import RandomHex

T = TypeVar("T")

_log = logging.getLogger(__name__)


def write_json(path: Path, value: Any, random_hex: RandomHex) -> None:
    """Replace a file by JSON, durably."""
    part = _part(path, value, random_hex)
    try:
        part.replace(path)
    except BaseException:
        part.unlink()
        raise
    sync(path.parent)


def write_json_once(path: Path, value: Any, random_hex: RandomHex) -> bool:
    """Write JSON to a file that does not exist; False if it does, which it then stays."""
    part = _part(path, value, random_hex)
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    sync(path.parent)
    return True


class JsonFiles:
    """Reads what `write_json` wrote; of each file that is damaged, the log has a line."""

    def __init__(self) -> None:
        """Begin without a damaged file."""
        self._damaged: set[Path] = set()

    def read(self, path: Path, decode: Callable[[Any], T]) -> T | None:
        """Return what a file has; None if there is no such file.

        Args:
            path: The file.
            decode: Makes it of the JSON.

        Raises:
            UndecodableDataError: It is damaged.
        """
        try:
            return decode(orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            if path not in self._damaged:
                self._damaged.add(path)
                _log.warning("%s is damaged, and what it is about left out: %r", path, error)
            # Clients see this, and the path is none of theirs.
            raise UndecodableDataError(f"{path.name} is damaged") from error

    def read_sound(self, path: Path, decode: Callable[[Any], T]) -> T | None:
        """Return what a file has; None if it is damaged or there is no such file."""
        with suppress(UndecodableDataError):
            return self.read(path, decode)
        return None


def changed_s(path: Path) -> int | None:
    """Return the time of change of a file, seconds since the epoch; None if there is none."""
    try:
        return int(path.stat().st_mtime)
    except FileNotFoundError:
        return None


def write_all(file: FileIO, data: bytes) -> None:
    """Write all of some data: a file without a buffer may take a part of it."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _part(path: Path, value: Any, random_hex: RandomHex) -> Path:
    data = orjson.dumps(value)
    part = path.with_name(f".{path.name}.{random_hex(8)}")
    with part.open("xb", buffering=0) as file:
        try:
            write_all(file, data)
            os.fsync(file.fileno())
        except BaseException:
            part.unlink()
            raise
    return part
