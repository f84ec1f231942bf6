"""The end of a process's broker and store: what cannot be closed keeps nothing else open."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from qlm.broker.sqlite.broker import SqliteBroker
from qlm.cli.config.settings import Config
from qlm.cli.runtime.backends import broker_client, open_backends
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import QueueName
from qlm.store.embedded.store import EmbeddedStore
from support.gateway import SystemClock
from support.qlm_process import emulated

QUEUE = QueueName("qlm.class.m.batch.all")


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (EmbeddedStore, StoreUnavailableError("away")),
        (EmbeddedStore, ZeroDivisionError("a bug")),
        (SqliteBroker, BrokerUnavailableError("away")),
        (SqliteBroker, ZeroDivisionError("a bug")),
    ],
)
async def test_the_next_process_gets_all_that_a_failed_close_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type[Any], error: Exception
) -> None:
    config = Config.model_validate({**emulated("m"), "data_dir": str(tmp_path)})
    close = part.close

    async def fail(self: object) -> None:
        await close(self)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(part, "close", fail)
        with pytest.raises(type(error)):
            async with AsyncExitStack() as stack:
                backends = await open_backends(config, SystemClock(), stack)
                async with broker_client(backends) as broker:
                    await broker.publish(QUEUE, b"taken")
                    await broker.get(QUEUE)
    async with AsyncExitStack() as stack:
        backends = await open_backends(config, SystemClock(), stack)
        async with broker_client(backends) as broker:
            assert [each.body for each in await broker.get(QUEUE)] == [b"taken"]
