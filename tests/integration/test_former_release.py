"""Records of this version and of efb3399, whose code runs here: each reads and continues the other's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from qlm.broker.codec import decode_dead_letter, decode_request, encode_request
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions, RequestExtensions
from qlm.domain.formats.plain import metadata_to_plain
from qlm.domain.ids import InstanceId, RequestId, SessionId
from qlm.domain.lease import Epoch, Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.store import Store
from qlm.domain.request import Request, RequestState
from qlm.store.embedded.store import EmbeddedStore
from qlm.store.redis.store import RedisStore
from support import former_release
from support.extensions import OF_CLASS, OF_LOG, OF_REQUEST
from support.needs import need
from support.redis import RedisServer
from support.requests import a_request

HOLDER = Holder(InstanceId("new"), SessionId("s"))
REQUEST = replace(a_request("r1", deadline_ms=400.0), extensions=OF_REQUEST)
ENDED = replace(a_request("r2"), extensions=OF_REQUEST)
PREFIX = "former-release:"


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the code of efb3399."""
    need(former_release.missing())
    return former_release.unpacked(tmp_path_factory.mktemp("former"))


def _text(request: Request) -> str:
    return encode_request(request).decode()


async def _lease(store: Store, request: Request) -> Granted:
    answer = await store.lease(request.metadata(), HOLDER, None)
    assert isinstance(answer, Granted), answer
    return answer


async def _append(
    store: Store,
    request: Request,
    epoch: Epoch,
    *token_ids: int,
    extensions: LogExtensions = NO_LOG_EXTENSIONS,
    end: Outcome | None = None,
) -> None:
    entry = LogEntry(
        id=request.id, epoch=epoch, offset=0, token_ids=token_ids, outcome=end, extensions=extensions
    )
    assert await store.append([entry]) == [AppendResult.TAKEN]


@asynccontextmanager
async def _embedded(path: Path) -> AsyncIterator[EmbeddedStore]:
    file = await SqliteFile.open(path)
    store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
    yield store
    await store.close()
    await file.close()


async def _some_output(store: Store) -> None:
    """Write an unfinished and an ended request, both with all extensions."""
    for request, end in ((REQUEST, None), (ENDED, Outcome.STOP)):
        await store.enqueue(request.metadata())
        epoch = (await _lease(store, request)).lease.epoch
        await _append(store, request, epoch, 5, 6, extensions=OF_LOG, end=end)


def test_messages_with_extensions_are_read_and_written_again_without_them(former: Path) -> None:
    late = replace(REQUEST, cls=REQUEST.cls.missed())
    program = "print(json.dumps([encode_request(decode_request(body.encode())).decode() for body in given]))"
    written = former_release.run(former, program, [_text(REQUEST), _text(late)])
    for body, request in zip(written, (REQUEST, late), strict=True):
        assert decode_request(body.encode()) == replace(request, extensions=RequestExtensions())


async def test_it_opens_a_journal_with_extensions_continues_a_log_and_ends_it(
    former: Path, tmp_path: Path
) -> None:
    path = tmp_path / "queue.db"
    async with _embedded(path) as store:
        await _some_output(store)
    program = """
async def main():
    file = await SqliteFile.open(Path(given["path"]))
    queues = await SqliteQueues.open(file)  # makes the checksums of its pages void
    store = await EmbeddedStore.open(Clock(), SqliteJournal(file))
    request, ended = (decode_request(body.encode()) for body in given["bodies"])
    answers = {"ended": await output(store, ended)}
    await store.enqueue(request.card())
    epoch = await lease(store, request)
    answers["begun"] = await output(store, request)
    answers["result"] = await append(store, request, epoch, 2, [7], Outcome.STOP if given["ends"] else None)
    await store.close()
    await queues.close()
    await file.close()
    print(json.dumps(answers))
asyncio.run(main())
"""
    given = {"path": str(path), "bodies": [_text(REQUEST), _text(ENDED)]}
    answers = former_release.run(former, program, given | {"ends": False})
    assert answers == {"ended": [5, 6], "begun": [5, 6], "result": "taken"}
    async with _embedded(path) as store:
        await store.enqueue(REQUEST.metadata())
        assert (await _lease(store, REQUEST)).output == (5, 6, 7)
        output = await store.read_output(REQUEST.id, 0)
        assert output is not None and output.extensions == OF_LOG
    given["path"] = str(path)
    program = program.replace("store, request, epoch, 2, [7]", "store, request, epoch, 3, [8]")
    assert former_release.run(former, program, given | {"ends": True})["begun"] == [5, 6, 7]
    async with _embedded(path) as store:
        for request, token_ids in ((REQUEST, (5, 6, 7, 8)), (ENDED, (5, 6))):
            output = await store.read_output(request.id, 0)
            assert output is not None
            assert (output.token_ids, output.outcome) == (token_ids, Outcome.STOP)
        record, output = await store.record(ENDED.id), await store.read_output(ENDED.id, 0)
        assert record is not None and output is not None
        assert (record.metadata.extensions, output.extensions) == (OF_REQUEST, OF_LOG)
    file = await SqliteFile.open(path)
    left = [key for key, _ in SqliteJournal(file).load() if key.startswith(("log/", "extensions/"))]
    await file.close()
    assert left == []


async def test_it_reads_ends_with_values_that_it_does_not_know(former: Path, tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    sampling = replace(ENDED.sampling, grammar="{}", adapter="a", media="0" * 32)
    asked = (replace(ENDED, sampling=sampling), replace(ENDED, id=RequestId("r3")))
    async with _embedded(path) as store:
        for request, end in zip(asked, (Outcome.STOP, Outcome.REFUSED), strict=True):
            await store.enqueue(request.metadata())
            await _append(store, request, (await _lease(store, request)).lease.epoch, 5, end=end)
    program = """
async def main():
    file = await SqliteFile.open(Path(given))
    queues = await SqliteQueues.open(file)
    store = await EmbeddedStore.open(Clock(), SqliteJournal(file))
    print(json.dumps([(await store.record(id)).outcome for id in ("r2", "r3")]))
    await store.close()
    await queues.close()
    await file.close()
asyncio.run(main())
"""
    assert former_release.run(former, program, str(path)) == ["stop", "failed"]
    async with _embedded(path) as store:
        records = [await store.record(request.id) for request in asked]
    ends = [(each.metadata, each.outcome) for each in records if each is not None]
    assert ends == [(asked[0].metadata(), Outcome.STOP), (asked[1].metadata(), Outcome.REFUSED)]


async def test_extensions_that_it_left_are_not_those_of_a_later_request(former: Path, tmp_path: Path) -> None:
    """It ended the request and dropped the result; another request has the id since, and a log of its own."""
    path = tmp_path / "queue.db"
    async with _embedded(path) as store:
        await _some_output(store)
    file = await SqliteFile.open(path)
    journal = SqliteJournal(file)
    entries = dict(journal.load())
    (log,) = [key for key in entries if key.startswith("log/")]
    at_ns = int.from_bytes(entries[log][:8], "little") + 1
    await journal.write([(log, at_ns.to_bytes(8, "little") + entries[log][8:])], durable=True)
    await file.close()
    async with _embedded(path) as store:
        await store.enqueue(REQUEST.metadata())
        assert (await _lease(store, REQUEST)).output == (5, 6)
        output = await store.read_output(REQUEST.id, 0)
        assert output is not None and output.extensions == NO_LOG_EXTENSIONS


async def test_it_continues_a_log_with_extensions_in_redis(former: Path, redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, SystemClock(), prefix=PREFIX)
    await _some_output(store)
    program = """
async def main():
    store = RedisStore(given["url"], Clock(), prefix=given["prefix"])
    request, ended = (decode_request(body.encode()) for body in given["bodies"])
    answers = {"ended": await output(store, ended), "id": (await store.record(request.id)).card.id}
    answers["created"] = (await store.enqueue(request.card())).created
    (view,) = (await store.view()).classes or [None]
    answers["accepted"] = view and view.accepted
    epoch = await lease(store, request)
    answers["begun"] = await output(store, request)
    answers["result"] = await append(store, request, epoch, 2, [7])
    await store.close()
    print(json.dumps(answers))
asyncio.run(main())
"""
    await store.release(REQUEST.id, (await _lease(store, REQUEST)).lease.epoch, "stop")
    given = {"url": redis_server.url, "prefix": PREFIX, "bodies": [_text(REQUEST), _text(ENDED)]}
    answers = former_release.run(former, program, given)
    known = {"id": REQUEST.id, "created": False, "accepted": 1}
    assert answers == known | {"ended": [5, 6], "begun": [5, 6], "result": "taken"}
    granted = await _lease(store, REQUEST)
    assert granted.output == (5, 6, 7)
    await _check_in_redis(store, granted)
    await store.close()


async def _check_in_redis(store: Store, granted: Granted) -> None:
    record, output = await store.record(REQUEST.id), await store.read_output(REQUEST.id, 0)
    assert record is not None and output is not None
    assert (record.state, record.metadata.extensions) == (RequestState.RUNNING, OF_REQUEST)
    assert output.extensions == OF_LOG
    await store.release(REQUEST.id, granted.lease.epoch, "stop")
    (view,) = (await store.view()).classes
    assert view.extensions == OF_CLASS


def test_what_it_writes_is_read(former: Path) -> None:
    program = """
from qlm.broker.codec import DeadLetter, encode_dead_letter
from qlm.domain.plain import card_to_plain
request = decode_request(given.encode())
letter = DeadLetter(reason="why", queue=request.cls.queue, at_ns=7, body=encode_request(request))
print(json.dumps([card_to_plain(request.card()), encode_dead_letter(letter).decode()]))
"""
    metadata, letter = former_release.run(former, program, _text(REQUEST))
    bare = replace(REQUEST, extensions=RequestExtensions())
    assert metadata == orjson.loads(orjson.dumps(metadata_to_plain(bare)))
    read = decode_dead_letter(letter.encode())
    assert (read.reason, read.at_ns, decode_request(read.body)) == ("why", 7, bare)


_WRITING = """
async def write(store):
    request, ended = (decode_request(body.encode()) for body in given["bodies"])
    for each, end in ((request, None), (ended, Outcome.STOP)):
        await store.enqueue(each.card())
        await append(store, each, await lease(store, each), 0, [5, 6], end)
"""


async def _check_continued(store: Store) -> None:
    """Continue the unfinished request with extensions, and read the ended one."""
    granted = await _lease(store, REQUEST)
    assert granted.output == (5, 6)
    entry = LogEntry(id=REQUEST.id, epoch=granted.lease.epoch, offset=2, token_ids=(7,), extensions=OF_LOG)
    assert await store.append([entry]) == [AppendResult.TAKEN]
    output, ended = await store.read_output(REQUEST.id, 0), await store.read_output(ENDED.id, 0)
    assert output is not None and ended is not None
    assert (output.token_ids, output.extensions) == ((5, 6, 7), OF_LOG)
    assert (ended.token_ids, ended.outcome, ended.extensions) == ((5, 6), Outcome.STOP, NO_LOG_EXTENSIONS)
    record = await store.record(ENDED.id)
    assert record is not None
    assert record.metadata == replace(ENDED, extensions=RequestExtensions()).metadata()


async def test_its_queue_file_is_read_and_continued(former: Path, tmp_path: Path) -> None:
    program = """
async def main():
    file = await SqliteFile.open(Path(given["path"]))
    queues = await SqliteQueues.open(file)
    store = await EmbeddedStore.open(Clock(), SqliteJournal(file))
    await write(store)
    request = decode_request(given["bodies"][0].encode())
    await queues.broker().publish(request.cls.queue, encode_request(request))
    await store.close()
    await queues.close()
    await file.close()
    print("null")
asyncio.run(main())
"""
    path = tmp_path / "queue.db"
    given = {"path": str(path), "bodies": [_text(REQUEST), _text(ENDED)]}
    former_release.run(former, _WRITING + program, given)
    file = await SqliteFile.open(path)
    queues = await SqliteQueues.open(file)
    (delivery,) = await queues.broker().get(REQUEST.cls.queue)
    message = decode_request(delivery.body)
    assert message == replace(REQUEST, extensions=RequestExtensions())
    store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
    await store.enqueue(message.metadata())
    await _check_continued(store)
    await store.close()
    await queues.close()
    await file.close()


async def test_its_records_in_redis_are_read_and_continued(former: Path, redis_server: RedisServer) -> None:
    prefix = f"{PREFIX}its:"
    program = """
async def main():
    store = RedisStore(given["url"], Clock(), prefix=given["prefix"])
    await write(store)
    await store.close()
    print("null")
asyncio.run(main())
"""
    given = {"url": redis_server.url, "prefix": prefix, "bodies": [_text(REQUEST), _text(ENDED)]}
    former_release.run(former, _WRITING + program, given)
    store = RedisStore(redis_server.url, SystemClock(), prefix=prefix)
    await _check_continued(store)
    await store.close()
