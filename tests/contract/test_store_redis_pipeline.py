"""Script calls over one connection to Redis: order, single errors, silence, losses, cancelled callers."""

import asyncio
import builtins
import errno
import hashlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvloop
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection
from redis.exceptions import ConnectionError, DataError, ResponseError, TimeoutError

from qlm.store.redis.pipeline import READER, ScriptPipeline
from support.flaky import until
from support.redis import RedisServer, running_redis

ECHO = "return ARGV[1]"
FAILS = "if ARGV[1] == 'bad' then return redis.error_reply('ERR no') end return ARGV[1]"


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


async def _run(pipeline: ScriptPipeline, text: str, *arguments: str) -> list[object]:
    return await pipeline.run(text, _sha(text), [(each,) for each in arguments])


@asynccontextmanager
async def _pipeline(server: RedisServer, reply_timeout_s: float = 5.0) -> AsyncIterator[ScriptPipeline]:
    client = Redis.from_url(server.url)
    pipeline = ScriptPipeline(client.connection_pool.make_connection, reply_timeout_s)
    try:
        yield pipeline
    finally:
        await pipeline.close()
        await client.aclose()


def _noted(connections: list[AbstractConnection], port: int) -> Callable[[], AbstractConnection]:
    def connection() -> AbstractConnection:
        connections.append(Connection(port=port))
        return connections[-1]

    return connection


@contextmanager
def _stopped(server: RedisServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def _connections(server: RedisServer) -> int:
    async with Redis.from_url(server.url) as client:
        return int((await client.info("clients"))["connected_clients"])


async def test_many_callers_share_one_connection_and_get_their_own_answers(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        before = await _connections(redis_server)
        answers = await asyncio.gather(*(_run(pipeline, ECHO, str(n), f"{n}b") for n in range(500)))
        assert answers == [[str(n).encode(), f"{n}b".encode()] for n in range(500)]
        assert await _connections(redis_server) == before + 1


async def test_no_calls_have_no_answers(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        assert await _run(pipeline, ECHO) == []


async def test_a_call_that_fails_fails_alone(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        first, bad, last = await _run(pipeline, FAILS, "1", "bad", "2")
        assert (first, last) == (b"1", b"2")
        assert isinstance(bad, ResponseError) and "no" in str(bad)


async def test_a_script_that_redis_refuses_says_why(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        for _ in range(2):
            (answer,) = await _run(pipeline, "this is no Lua", "1")
            assert isinstance(answer, ResponseError) and "compiling" in str(answer)
        assert await _run(pipeline, ECHO, "2") == [b"2"]


async def test_an_argument_that_cannot_be_sent_disturbs_no_other_call(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        calls = [_run(pipeline, ECHO, "1"), _run(pipeline, ECHO, "2", "\ud800"), _run(pipeline, ECHO, "3")]
        first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
        assert (first, last) == ([b"1"], [b"3"])
        assert isinstance(refused, DataError)


async def test_scripts_that_redis_dropped_are_loaded_again(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline, Redis.from_url(redis_server.url) as client:
        assert await _run(pipeline, ECHO, "0") == [b"0"]
        await client.script_flush()
        assert await _run(pipeline, ECHO, "1", "2") == [b"1", b"2"]


async def test_a_refused_load_hides_no_answer(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline, Redis.from_url(redis_server.url) as client:
        await client.script_load(ECHO)
        assert await pipeline.run("this is no Lua", _sha(ECHO), [("1",)]) == [b"1"]


async def test_a_cancelled_caller_leaves_the_answers_of_others_in_place(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        assert await _run(pipeline, ECHO, "0") == [b"0"]
        with _stopped(redis_server):
            calls = [asyncio.create_task(_run(pipeline, ECHO, str(n))) for n in range(3)]
            await until(lambda: pipeline.waiting == 3)
            calls[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[1]
        assert await calls[0] == [b"0"] and await calls[2] == [b"2"]


async def test_a_silent_redis_fails_all_that_wait_and_is_asked_anew(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server, reply_timeout_s=0.2) as pipeline:
        assert await _run(pipeline, ECHO, "0") == [b"0"]
        with _stopped(redis_server):
            begun = time.monotonic()
            calls = [_run(pipeline, ECHO, str(n)) for n in range(3)]
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - begun < 2
            assert [type(each) for each in failed] == [TimeoutError] * 3
        assert await _run(pipeline, ECHO, "4") == [b"4"]


async def test_answers_that_the_loop_was_too_busy_to_read_are_no_silence(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server, reply_timeout_s=0.1) as pipeline:
        assert await _run(pipeline, ECHO, "0") == [b"0"]
        call = asyncio.create_task(_run(pipeline, ECHO, "1"))
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)  # just after the call was sent
        assert await call == [b"1"]


async def test_a_lost_connection_fails_what_waits_and_the_next_call_connects() -> None:
    with running_redis() as server:
        async with _pipeline(server) as pipeline:
            assert await _run(pipeline, ECHO, "0") == [b"0"]
            os.kill(server.pid, signal.SIGSTOP)
            waiting = asyncio.create_task(_run(pipeline, ECHO, "1"))
            await until(lambda: pipeline.waiting == 1)
            server.kill()
            with pytest.raises(ConnectionError):
                await waiting
            with pytest.raises(ConnectionError):
                await _run(pipeline, ECHO, "2")
            server.start()
            assert await _run(pipeline, ECHO, "3") == [b"3"]


async def test_nothing_is_called_after_the_end(redis_server: RedisServer) -> None:
    async with _pipeline(redis_server) as pipeline:
        assert await _run(pipeline, ECHO, "0") == [b"0"]
        with _stopped(redis_server):
            waiting = asyncio.create_task(_run(pipeline, ECHO, "1"))
            await until(lambda: pipeline.waiting == 1)
            await pipeline.close()
            with pytest.raises(ConnectionError, match="closed"):
                await waiting
        with pytest.raises(ConnectionError, match="closed"):
            await _run(pipeline, ECHO, "2")


def test_a_reset_fails_what_is_sent_before_the_reader_sees_it() -> None:
    """In uvloop, which production uses, writing to a closed socket raises."""

    async def calls(server: RedisServer) -> list[object]:
        async with _pipeline(server) as pipeline:
            assert await _run(pipeline, ECHO, "0") == [b"0"]
            os.kill(server.pid, signal.SIGSTOP)
            waiting = [asyncio.create_task(_run(pipeline, ECHO, str(n))) for n in range(20)]
            await until(lambda: pipeline.waiting == 20)
            server.kill()

            def call_in_each_turn() -> None:
                if not waiting[0].done():
                    waiting.append(asyncio.create_task(_run(pipeline, ECHO, "more")))
                    asyncio.get_running_loop().call_soon(call_in_each_turn)

            call_in_each_turn()
            await asyncio.wait(waiting[:1])
            return list(await asyncio.gather(*waiting, return_exceptions=True))

    with running_redis() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert {type(each) for each in runner.run(calls(server))} == {ConnectionError}


async def test_a_socket_that_times_out_is_a_lost_connection(redis_server: RedisServer) -> None:
    connections = list[AbstractConnection]()
    pipeline = ScriptPipeline(_noted(connections, redis_server.port), 5.0)
    assert await _run(pipeline, ECHO, "0") == [b"0"]
    with _stopped(redis_server):
        waiting = asyncio.create_task(_run(pipeline, ECHO, "1"))
        await until(lambda: pipeline.waiting == 1)
        stream = connections[0]._reader
        assert stream is not None
        stream.set_exception(builtins.TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        with pytest.raises(ConnectionError, match="timed out"):
            await waiting
    assert await _run(pipeline, ECHO, "2") == [b"2"]
    await pipeline.close()


async def test_a_cancelled_reader_fails_what_waits_and_the_next_call_connects(
    redis_server: RedisServer,
) -> None:
    async with _pipeline(redis_server) as pipeline:
        assert await _run(pipeline, ECHO, "0") == [b"0"]
        (reader,) = (each for each in asyncio.all_tasks() if each.get_name() == READER)
        with _stopped(redis_server):
            waiting = asyncio.create_task(_run(pipeline, ECHO, "1"))
            await until(lambda: pipeline.waiting == 1)
            reader.cancel()
            with pytest.raises(ConnectionError):
                await waiting
        assert await _run(pipeline, ECHO, "2") == [b"2"]


async def test_the_end_fails_those_that_wait_for_a_connection(redis_server: RedisServer) -> None:
    connections = list[AbstractConnection]()
    pipeline = ScriptPipeline(_noted(connections, redis_server.port), 5.0)
    with _stopped(redis_server):
        waiting = [asyncio.create_task(_run(pipeline, ECHO, str(n))) for n in range(2)]
        await until(lambda: connections)
        await pipeline.close()
        for each in waiting:
            with pytest.raises(ConnectionError, match="closed"):
                await each


async def test_a_redis_that_is_away_is_tried_once_for_all_callers() -> None:
    tried = list[AbstractConnection]()
    pipeline = ScriptPipeline(_noted(tried, 1), 1.0)
    calls = [_run(pipeline, ECHO, str(n)) for n in range(5)]
    failed = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in failed] == [ConnectionError] * 5 and len(tried) == 1
    await pipeline.close()
