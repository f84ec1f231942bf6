"""Where the plan generator's compiled code is kept if the folder of its source cannot be written."""

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
"""Under `data_dir`."""

FOLDER_VARIABLE: Final = "NUMBA_CACHE_DIR"
"""Numba's: who sets it has chosen a folder."""

_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about a folder."""


def compiled_code_folder(
    data_dir: Path,
    environment: Mapping[str, str] = os.environ,
    package: Path = Path(qlm.planner.fast.__path__[0]),
) -> Path | None:
    """Choose a folder for compiled code, and make it.

    Args:
        data_dir: Where the installation keeps what it writes.
        environment: That the choice may have been made in.
        package: Where the code's source lies.

    Returns:
        None if nothing has to be chosen: `FOLDER_VARIABLE` is set, or compiled code can lie in `__pycache__`
        beside its source. Else an absolute path under `data_dir`; if that cannot be written, a new temporary
        folder until this process ends, so that each start compiles again.

    Raises:
        OSError: There is no file or memory to be had to look, or no temporary folder.
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
    """Whether files can be written there; permissions alone do not tell. It is made if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        if error.errno in _PASSING:
            raise
        return False
