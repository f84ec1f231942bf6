"""The folder into which a run of a scenario writes: all its files, or none of them."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from qlm.domain.errors import QlmError


def make_folder(path: Path) -> None:
    """Make the folder and those above it, if they are not there.

    Raises:
        QlmError: Something else has its name, or that of a folder above it.
        OSError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise QlmError(f"--out is {str(path)!r}, which is, or is in, a file; expected a folder") from error


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files under other names first, and give them their own once all are complete.

    Raises:
        OSError: One cannot be written; files of an earlier run are then as they were.
    """
    written = {folder / f".{name}.part": folder / name for name in contents}
    try:
        for part, file in written.items():
            part.write_bytes(contents[file.name])
        for part, file in written.items():
            part.replace(file)
    finally:
        for part in written:
            with suppress(OSError):
                part.unlink()
