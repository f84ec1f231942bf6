"""Output folder of a simulation: all files of a run are written, or none."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from qlm.domain.errors import QlmError


def make_folder(path: Path) -> None:
    """Create the folder and its parents if they are missing.

    Raises:
        QlmError: A file has the name of the folder or of a parent.
        OSError: The folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise QlmError(f"--out is {str(path)!r}, which is, or is in, a file; expected a folder") from error


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files under temporary names, and rename them when all are complete.

    Raises:
        OSError: A file cannot be written; files of an earlier run are then unchanged.
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
