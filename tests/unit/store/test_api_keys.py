"""API keys of the embedded store outlive the process."""

import time
from pathlib import Path

import orjson
import pytest

from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.api_keys import decode_api_key, encode_api_key
from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.store.embedded.store import EmbeddedStore

KEY = ApiKey(id="key_a", digest="1" * 64, tenant="a", scopes=(Scope.INFER,), created_ns=1, expires_ns=5)
OTHER = ApiKey(id="key_b", digest="2" * 64, tenant="b", scopes=(Scope.ADMIN,), created_ns=2)


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


async def reopened(folder: Path, damage: bytes | None = None) -> tuple[EmbeddedStore, SqliteFile]:
    file = await SqliteFile.open(folder / "qlm.sqlite")
    journal = SqliteJournal(file)
    if damage is not None:
        await journal.write([("api_key/key_c", damage)])
    return await EmbeddedStore.open(SystemClock(), journal), file


async def test_keys_and_their_removal_outlive_the_process(tmp_path: Path) -> None:
    store, file = await reopened(tmp_path)
    for key in (KEY, OTHER):
        await store.add_api_key(key)
    await store.remove_api_key(KEY.id)
    await file.close()  # as a kill -9 would: the store is not closed
    store, file = await reopened(tmp_path)
    assert list(await store.api_keys()) == [OTHER]
    await store.close()
    await file.close()


async def test_a_damaged_key_is_good_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, file = await reopened(tmp_path)
    await store.add_api_key(KEY)
    await store.close()
    await file.close()
    store, file = await reopened(tmp_path, damage=b'{"id": "key_c"}')
    assert list(await store.api_keys()) == [KEY]
    assert "the API key key_c is not used" in caplog.text
    await store.close()
    await file.close()


def test_a_scope_of_a_later_version_is_left_out() -> None:
    plain = orjson.loads(encode_api_key(KEY))
    plain |= {"scopes": ["batches", "infer"], "quota": 1}
    assert decode_api_key(orjson.dumps(plain)) == KEY
    with pytest.raises(UndecodableDataError, match="digest"):
        decode_api_key(b'{"id": "key_c", "expires_ns": null}')
