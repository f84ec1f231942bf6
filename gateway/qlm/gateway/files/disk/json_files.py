"""Small files that are whole or absent, whatever is killed meanwhile."""

import os
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from qlm.gateway.files.records import RandomHex


def write_json(path: Path, value: Any, random_hex: RandomHex) -> None:
    """Replace a file by JSON, durably."""
    part = _part(path, value, random_hex)
    try:
        part.replace(path)
    except BaseException:
        part.unlink()
        raise
    sync_folder(path.parent)


def write_json_once(path: Path, value: Any, random_hex: RandomHex) -> bool:
    """Write JSON to a file that does not exist; False if it does, which it then stays."""
    part = _part(path, value, random_hex)
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    sync_folder(path.parent)
    return True


def read_json(path: Path) -> Any:
    """Return the JSON in a file; None if there is no such file."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
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


def sync_folder(folder: Path) -> None:
    """Let new names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
