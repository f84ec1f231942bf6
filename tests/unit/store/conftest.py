"""Files of an embedded queue and state, after an orderly stop and after a kill."""

import shutil
from pathlib import Path

import pytest

from support.embedded import Opened


@pytest.fixture
async def closed(tmp_path: Path) -> Path:
    """Files after an orderly stop."""
    folder = tmp_path / "closed"
    folder.mkdir()
    opened = await Opened.open(folder)
    await opened.fill(0, 20)
    await opened.close()
    return folder


@pytest.fixture
async def killed(closed: Path, tmp_path: Path) -> Path:
    """Files as a kill leaves them: some pages in the file, others in the log."""
    opened = await Opened.open(closed)
    await opened.fill(20, 20)
    folder = Path(shutil.copytree(closed, tmp_path / "killed"))
    await opened.close()
    return folder
