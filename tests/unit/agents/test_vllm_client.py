import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.engines.vllm.client import VllmEngine
from qlm.agents.engines.vllm.stream import EVENT_BYTES_MAX, EngineStream
from qlm.domain.errors import EngineGarbledError, EngineRefusedError, EngineUnavailableError
from qlm.domain.ids import TOKEN_ID_MAX
from qlm.domain.ports.engine import CallObjective, Engine, EngineCall, EngineChunk
from qlm.domain.sampling import Sampling
from support.flaky import until


def sse(event: object) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def tokens(*ids: int, finish: str | None = None) -> bytes:
    return sse({"usage": None, "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish}]})


def usage(cached_tokens: object) -> bytes:
    return sse({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached_tokens}}})


USAGE = usage(32)
DONE = b"data: [DONE]\n\n"
WHOLE = tokens(1) + tokens(2, 3) + tokens(4, finish="length") + USAGE + DONE


def read(*pieces: bytes) -> list[EngineChunk]:
    stream = EngineStream()
    chunks = [stream.feed(piece) for piece in pieces]
    return [chunk for chunk in [*chunks, stream.last()] if chunk is not None]


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_however_the_bytes_arrive_the_answer_is_the_same(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(WHOLE)]
    chunks = read(*(WHOLE[start:end] for start, end in pairwise(ends)))
    assert [one for chunk in chunks for one in chunk.token_ids] == [1, 2, 3, 4]
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1].cached_tokens == 32


def test_an_event_without_end_is_no_answer() -> None:
    stream, piece = EngineStream(), b"data: " + b"x" * (EVENT_BYTES_MAX // 8)
    with pytest.raises(EngineGarbledError, match="without its end"):
        for _ in range(9):
            stream.feed(piece)


@pytest.mark.parametrize("more", [tokens(3), tokens(3, finish="length"), tokens(3, 4)])
def test_more_tokens_than_were_asked_for_are_no_answer(more: bytes) -> None:
    stream = EngineStream(tokens_max=2)
    assert stream.feed(tokens(1, 2)) == EngineChunk(token_ids=(1, 2))
    with pytest.raises(EngineGarbledError, match="at most 2"):
        stream.feed(more)


def test_tokens_that_arrive_together_are_one_chunk() -> None:
    assert read(tokens(1) + tokens(2), tokens(3) + DONE)[0].token_ids == (1, 2)


def test_a_stream_that_only_ends_was_aborted_while_waiting() -> None:
    assert read(DONE) == []
    assert read(USAGE + DONE) == []


def test_a_stream_that_ends_after_its_finish_is_whole_even_without_the_rest() -> None:
    assert read(tokens(1, finish="abort")) == [EngineChunk(token_ids=(1,), finish="abort")]


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (tokens(1), EngineUnavailableError, "broke off"),
        (b"", EngineUnavailableError, "broke off"),
        (tokens(1)[:-1], EngineUnavailableError, "broke off"),
        (sse({"error": {"message": "dead", "code": 500}}) + DONE, EngineUnavailableError, "dead"),
        (sse({"error": {"message": "too long", "code": 400}}) + DONE, EngineRefusedError, "too long"),
        (sse({"error": {"message": "busy", "code": 429}}) + DONE, EngineUnavailableError, "busy"),
        (sse({"error": {"message": "odd", "code": []}}) + DONE, EngineUnavailableError, "odd"),
        (sse({"error": "bad"}) + DONE, EngineUnavailableError, "bad"),
        (tokens(1, finish="error") + DONE, EngineUnavailableError, "'error'"),
        (b"data: {\n\n", EngineUnavailableError, "sent"),
        (sse([]), EngineUnavailableError, "sent"),
        (sse({"choices": [{}]}), EngineUnavailableError, "sent"),
        (tokens(1, finish="stop") + tokens(2), EngineGarbledError, "after the end"),
        (tokens(1, finish="stop") + tokens(2, finish="stop") + DONE, EngineGarbledError, "after the end"),
        (tokens(-1), EngineGarbledError, "token id -1"),
        (tokens(TOKEN_ID_MAX + 1), EngineGarbledError, f"token id {TOKEN_ID_MAX + 1}"),
        (usage("many"), EngineGarbledError, "a count of"),
        (usage(-1), EngineGarbledError, "a count of"),
        (usage(1.5), EngineGarbledError, "a count of"),
        (usage(True), EngineGarbledError, "a count of"),
        (usage([]), EngineGarbledError, "a count of"),
    ],
)
def test_a_stream_without_a_good_end_raises(data: bytes, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        read(data)


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        sse({"error": {"code": 500, "message": LONG}}),
        sse({"error": {"code": 400, "message": LONG}}),
        sse({"error": LONG}),
        tokens(1, finish=LONG),
        sse({"choices": [{"token_ids": [LONG], "finish_reason": None}]}),
        usage(LONG),
    ],
)
def test_an_error_of_any_length_becomes_a_short_one(data: bytes) -> None:
    with pytest.raises((EngineUnavailableError, EngineRefusedError), match="xxx") as caught:
        read(data)
    assert len(str(caught.value)) < 1000


@dataclass
class Fickle:
    """A server that closes each connection at the request after the `patience`-th, without an answer."""

    patience: int
    answer: bytes = WHOLE
    status: str = "200 OK"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int((head.partition("content-length: ")[2].split() or ["0"])[0])
                self.heads.append(head)
                self.bodies.append(orjson.loads(await reader.readexactly(length) or b"{}"))
                if answered == self.patience:
                    break
                answered += 1
                writer.write(
                    f"HTTP/1.1 {self.status}\r\ncontent-length: {len(self.answer)}\r\n\r\n".encode()
                    + self.answer
                )
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


async def start(server: Fickle, api_key: str | None = None) -> tuple[VllmEngine, asyncio.Server]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    return VllmEngine(f"http://127.0.0.1:{port}", "m", seqs_max=8, api_key=api_key), listener


@pytest.fixture
async def cleanup() -> AsyncIterator[list[tuple[VllmEngine, asyncio.Server]]]:
    opened: list[tuple[VllmEngine, asyncio.Server]] = []
    yield opened
    for engine, listener in opened:
        await engine.close()
        listener.close()
        await listener.wait_closed()


def call(name: str, **sampling: Any) -> EngineCall:
    return EngineCall(call_id=name, prompt_ids=(1, 2), sampling=Sampling(max_tokens=4, **sampling))


async def collect(engine: Engine, one: EngineCall) -> list[int]:
    return [token_id async for chunk in engine.generate(one) for token_id in chunk.token_ids]


async def test_a_request_lost_on_a_stale_connection_is_sent_again_under_its_id(cleanup: Any) -> None:
    server = Fickle(patience=1)
    cleanup.append(await start(server))
    engine = cleanup[0][0]
    for name in ("a", "b", "c"):
        assert await collect(engine, call(name)) == [1, 2, 3, 4]
    assert [body["request_id"] for body in server.bodies] == ["a", "b", "b", "c", "c"]


async def test_a_request_lost_on_a_fresh_connection_is_not_sent_again(cleanup: Any) -> None:
    server = Fickle(patience=0)
    cleanup.append(await start(server))
    with pytest.raises(EngineUnavailableError, match="cannot reach the engine"):
        await collect(cleanup[0][0], call("a"))
    assert len(server.bodies) == 1


REFUSED, FAILED = EngineRefusedError, EngineUnavailableError


@pytest.mark.parametrize(
    ("status", "adapter", "error"),
    [
        *(("400 Bad Request", "", REFUSED), ("413 Too Large", "", REFUSED), ("422 Odd", "", REFUSED)),
        *((f"{status} No", "", FAILED) for status in (401, 403, 404, 405, 408, 429, 500, 503)),
        *(("404 Not Found", "poet", REFUSED), ("401 Unauthorized", "poet", FAILED)),
    ],
)
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
async def test_a_status_is_a_refusal_or_a_failure(
    cleanup: Any, status: str, adapter: str, error: type[Exception], prompt_logprobs: int | None
) -> None:
    """Only what no other engine would take ends a request: others wait for one that serves them."""
    cleanup.append(await start(Fickle(patience=9, status=status, answer=b'{"error": {"message": "no"}}')))
    with pytest.raises(error, match=f"answered {status[:3]}: .*no"):
        await collect(cleanup[0][0], replace(call("a", adapter=adapter), prompt_logprobs=prompt_logprobs))


async def test_nobody_there_is_unavailable_and_not_healthy() -> None:
    engine = VllmEngine("http://127.0.0.1:1", "m", seqs_max=8)
    try:
        with pytest.raises(EngineUnavailableError, match="cannot reach"):
            await collect(engine, call("a"))
        with pytest.raises(EngineUnavailableError, match=r"GET http://127\.0\.0\.1:1/metrics failed"):
            await engine.capacity()
        assert not await engine.healthy()
    finally:
        await engine.close()


async def test_only_sampling_that_differs_from_vllms_own_is_sent(cleanup: Any) -> None:
    server = Fickle(patience=9)
    cleanup.append(await start(server, api_key="secret"))
    engine = cleanup[0][0]
    await collect(engine, call("a"))
    await collect(engine, call("b", temperature=0.0, seed=7, stop_token_ids=(3,), logit_bias=((5, -1.0),)))
    plain, rich = (body["sampling_params"] for body in server.bodies)
    assert plain == {"max_tokens": 4, "detokenize": False}
    assert rich == {
        "max_tokens": 4,
        "detokenize": False,
        "temperature": 0.0,
        "seed": 7,
        "stop_token_ids": [3],
        "logit_bias": {"5": -1.0},
    }
    assert all("authorization: bearer secret" in head for head in server.heads)


async def test_an_adapter_is_asked_for_by_its_name(cleanup: Any) -> None:
    server = Fickle(patience=9)
    cleanup.append(await start(server))
    for one in (call("a"), call("b", adapter="poet")):
        await collect(cleanup[0][0], one)
    assert [body["model"] for body in server.bodies] == ["m", "poet"]


async def test_a_grammar_is_sent_with_what_belongs_to_it(cleanup: Any) -> None:
    server = Fickle(patience=9)
    cleanup.append(await start(server))
    grammar = '{"structured_outputs":{"json":{"b":1,"a":2}},"reasoning_ended":false}'
    await collect(cleanup[0][0], call("a", grammar=grammar))
    (body,) = server.bodies
    assert list(body["sampling_params"]["structured_outputs"]["json"]) == ["b", "a"], "in the client's order"
    assert body["reasoning_ended"] is False
    assert "grammar" not in body["sampling_params"]


@pytest.mark.parametrize(
    ("status", "answer", "reported"),
    [
        ("200 OK", {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": 8192}}}, 8192),
        ("200 OK", {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": None}}}, None),
        ("200 OK", {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": 0}}}, None),
        ("200 OK", {"vllm_config": "VllmConfig(...)"}, None),
        ("200 OK", {"other": 1}, None),
        ("200 OK", [], None),
        ("404 Not Found", {"detail": "Not Found"}, None),
        ("500 Internal Server Error", {}, None),
    ],
)
async def test_the_token_budget_is_what_the_engine_reports_or_unknown(
    cleanup: Any, status: str, answer: object, reported: int | None
) -> None:
    listener = await asyncio.start_server(partial(answer_once, status, answer), "127.0.0.1", 0)
    engine = VllmEngine(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "m", seqs_max=8)
    cleanup.append((engine, listener))
    assert await engine.batched_tokens_max() == reported


async def answer_once(
    status: str, answer: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"GET /server_info?config_format=json ")
    body = orjson.dumps(answer)
    writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    writer.close()


async def test_an_engine_that_does_not_answer_reports_no_token_budget() -> None:
    engine = VllmEngine("http://127.0.0.1:1", "m", seqs_max=8)
    try:
        assert await engine.batched_tokens_max() is None
    finally:
        await engine.close()


@dataclass
class Silent(Fickle):
    """A server that, from the request after the `patience`-th on, neither answers nor closes."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super().serve(reader, Open(writer))  # type: ignore[arg-type]
            await reader.read()
        finally:
            writer.close()


@dataclass
class Open:
    """A writer whose connection stays open."""

    writer: asyncio.StreamWriter

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        """Leave it open."""


@pytest.mark.parametrize("reused", [False, True])
async def test_a_client_closed_under_a_request_is_unavailable(cleanup: Any, reused: bool) -> None:
    server = Silent(patience=int(reused))
    cleanup.append(await start(server))
    engine = cleanup[0][0]
    if reused:
        assert await collect(engine, call("a")) == [1, 2, 3, 4]
    sent = len(server.bodies)
    waiting = asyncio.create_task(collect(engine, call("b")))
    await until(lambda: len(server.bodies) > sent)
    await engine.close()
    with pytest.raises(EngineUnavailableError, match="cannot reach the engine"):
        await waiting
    assert len(server.bodies) == sent + 1


async def test_a_closed_client_is_unavailable_to_every_call(cleanup: Any) -> None:
    cleanup.append(await start(Fickle(patience=9)))
    engine = cleanup[0][0]
    await engine.close()
    with pytest.raises(EngineUnavailableError, match="its client is closed"):
        await collect(engine, call("a"))
    for ask in (engine.wake, engine.sleep, engine.capacity, partial(engine.abort, ["a"])):
        with pytest.raises(EngineUnavailableError, match="its client is closed"):
            await ask()
    assert not await engine.healthy()


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"data": 1}', b'{"data": [{}]}'])
async def test_garbage_for_its_models_is_unavailable(cleanup: Any, answer: bytes) -> None:
    labels = b'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="4096",num_gpu_blocks="256"} 1\n'
    cleanup.append(await start(Fickle(patience=9, answer=labels + answer)))
    engine = cleanup[0][0]
    with pytest.raises(EngineUnavailableError, match="cannot read the engine's capacity"):
        await engine.capacity()


@pytest.mark.parametrize("sends", [True, False])
async def test_qlms_scheduler_gets_the_objective_of_a_call_in_times_from_now(
    cleanup: Any, sends: bool
) -> None:
    server = Fickle(patience=9)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    engine = VllmEngine(
        f"http://127.0.0.1:{port}", "m", seqs_max=8, sends_objectives=sends, clock=lambda: 8_000_000_000
    )
    cleanup.append((engine, listener))
    objective = CallObjective(
        arrival_ns=7_500_000_000, ttft_s=1.0, tokens_per_s=4.8, deadline_ns=9_000_000_000, rank=3, shown=1,
        late_s=0.25,
    )  # fmt: skip
    await collect(engine, replace(call("a"), objective=objective))
    await collect(engine, call("b"))
    sent, without = (body["sampling_params"].get("extra_args") for body in server.bodies)
    assert without is None
    assert sent == (
        {"qlm": {"version": 1, "age_s": 0.5, "ttft_s": 1.0, "rate": 4.8, "left_s": 1.0, "shown": 1,
                 "late_s": 0.25, "rank": 3}}
        if sends else None
    )  # fmt: skip
