"""A gateway that runs batches of files on the disk, and what tests of it look at."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from qlm.gateway.api.errors import ApiError
from qlm.gateway.batches.line_routes import PreparedLine
from qlm.gateway.files.records import Batch
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.app import create_app
from qlm.gateway.sessions.gateway import Gateway
from support.gateway import running_cluster, until
from support.stored_batches import add_batch, folder_of

ENDPOINT: Final = "/v1/completions"
CONTENT: Final = b"".join(
    orjson.dumps({"custom_id": f"{n}", "method": "POST", "url": ENDPOINT, "body": {"prompt": "x"}}) + b"\n"
    for n in range(3)
)


async def refuse(_: Gateway, __: dict[str, Any], ___: Mapping[str, str]) -> PreparedLine:
    """Refuse each line: a batch of such lines completes without an engine."""
    raise ApiError(status=400, message="refused")


def open_batch(storage: Storage, id: str | None = None) -> Path:
    """Add a batch; return its folder."""
    return folder_of(storage, add_batch(storage, CONTENT, endpoint=ENDPOINT, id=id)[1])


def place_of(folder: Path) -> str:
    return "/".join(folder.parts[-3:])


def ids(storage: Storage, count: int) -> list[str]:
    """Return unused ids in the order in which batches are looked at."""
    return sorted(storage.batches.new_id() for _ in range(count))


def batch(storage: Storage, folder: Path) -> Batch:
    found = storage.batches.read(place_of(folder))
    assert found is not None
    return found


async def ended(storage: Storage, *folders: Path) -> list[str]:
    """Wait for the ends of batches; return their statuses."""
    await until(lambda: all((folder / "end.json").exists() for folder in folders))
    return [batch(storage, folder).status for folder in folders]


def fast(storage: Storage, **pace: float) -> Storage:
    """Return a storage that is looked at often."""
    return replace(storage, pace=replace(storage.pace, scan_s=0.01, look_s=0.01, **pace))


@contextlib.asynccontextmanager
async def batch_gateway(folder: Path, storage: Storage) -> AsyncIterator[Gateway]:
    """Yield a gateway of a cluster in a folder, with files in a storage."""
    async with running_cluster(folder) as cluster:
        app = create_app(cluster.parts(storage=storage))
        yield app.state.gateway
