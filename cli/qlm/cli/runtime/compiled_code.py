"""Folder of the plan generator's compiled code."""

import atexit
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import qlm.planner.fast

log = logging.getLogger("qlm.cli")

FOLDER: Final = "compiled"
"""Folder under `data_dir`."""

FOLDER_VARIABLE: Final = "NUMBA_CACHE_DIR"
"""Numba's variable for the folder; a user's value is respected."""

_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of the process or machine, which do not mean that a folder is read-only."""


def compiled_code_folder(
    data_dir: Path,
    environment: Mapping[str, str] = os.environ,
    package: Path = Path(qlm.planner.fast.__path__[0]),
) -> Path | None:
    """Choose a folder for compiled code, and create it.

    Args:
        data_dir: Data folder of the installation.
        environment: Environment variables of the process.
        package: Folder of the source code.

    Returns:
        None if no folder is needed: `FOLDER_VARIABLE` is set, or `__pycache__` beside the source can be
        written. Else an absolute path under `data_dir`. If that cannot be written, a temporary folder that
        is deleted when this process ends, so that each start compiles again.

    Raises:
        OSError: The check ran out of files or memory, or no temporary folder can be created.
    """
    if environment.get(FOLDER_VARIABLE) or _writable(package / "__pycache__"):
        return None
    folder = (data_dir / FOLDER).resolve()
    if _writable(folder):
        return folder
    temporary = Path(tempfile.mkdtemp(prefix="qlm-compiled-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    log.warning(
        "compiled code is kept in %s, for this start only: neither %s nor %s can be written",
        *(temporary, package, folder),
    )
    return temporary


def _writable(folder: Path) -> bool:
    """Create the folder if needed, and return True if files can be written in it."""
    try:  # permissions alone do not show this
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        if error.errno in _PASSING:
            raise
        return False
