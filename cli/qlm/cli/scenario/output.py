"""Files that commands write: whole, or not at all; of a simulation, all of them or none."""

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from qlm.domain.errors import QlmError


def make_folder(path: Path, files: Iterable[str] = ()) -> None:
    """Create the folder and its parents if they are missing, and check that it takes files.

    Args:
        path: The folder.
        files: Names of files to be written into it later.

    Raises:
        QlmError: A file has the name of the folder or of a parent, or something else that of a file.
        OSError: The folder cannot be created, or no file of one of the names in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise QlmError(f"{str(path)!r} is, or is in, a file; expected a folder") from error
    for name in files:
        _check_replaceable(path / name)
        _check_writable(path / name)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files under temporary names, and rename them when all are complete.

    Raises:
        QlmError: There is something else than a file of one of the names.
        OSError: A file cannot be written; files of an earlier run are then unchanged.
    """
    for name in contents:
        _check_replaceable(folder / name)
    written = {part_of(folder / name): folder / name for name in contents}
    try:
        for part, file in written.items():
            part.write_bytes(contents[file.name])
        for part, file in written.items():
            part.replace(file)
    finally:
        for part in written:
            with suppress(OSError):
                part.unlink()


def write_whole(path: Path, text: bytes) -> None:
    """Write a file under a temporary name, and rename it; the mode of one that is replaced stays.

    What a link names is replaced. Something else than a file, such as `/dev/stdout`, is written to.

    Raises:
        OSError: It cannot be written; a former file is unchanged.
    """
    file = path.resolve()
    former = file.exists()
    if former and not file.is_file():
        file.write_bytes(text)
        return
    part = part_of(file)
    try:
        part.write_bytes(text)
        if former:
            shutil.copymode(file, part)
        part.replace(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def part_of(file: Path) -> Path:
    """Return the temporary name of a file that is not complete."""
    return file.with_name(f".{file.name}.part")


def _check_writable(file: Path) -> None:
    part = part_of(file)
    try:
        part.touch()
    finally:
        with suppress(OSError):
            part.unlink()


def _check_replaceable(file: Path) -> None:
    if file.exists() and not file.is_file():
        raise QlmError(
            f"{file} cannot be written: it exists and is no regular file; expected none, or a file"
        )
