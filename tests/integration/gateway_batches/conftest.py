"""A gateway that runs batches of files on the disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.storage import Storage
from qlm.gateway.sessions.gateway import Gateway
from support.batch_gateway import batch_gateway
from support.gateway import SystemClock


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Return the files on the disk that the gateway serves."""
    return storage_in(tmp_path / "files", SystemClock())


@pytest.fixture
async def gateway(tmp_path: Path, storage: Storage) -> AsyncIterator[Gateway]:
    """Yield the gateway."""
    async with batch_gateway(tmp_path, storage) as made:
        yield made
