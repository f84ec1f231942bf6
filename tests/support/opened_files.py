"""Files that this process has open."""

import contextlib
from pathlib import Path


def opened_below(root: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    paths = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            paths.append(str(descriptor.readlink()))
    return [path for path in paths if path.startswith(str(root))]
