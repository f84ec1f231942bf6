"""Streams whose messages a render tier makes: what keeps them alive, and how long they wait for the tier."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo
from qlm.gateway.api.errors import ApiError, unavailable
from qlm.gateway.api.openai_shapes import StreamShape
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.http.derendered import DerenderedSink
from qlm.gateway.render.client import UNAVAILABLE, RenderClient
from qlm.gateway.render.derendering import Deltas, Derendered
from qlm.gateway.render.patience import patiently
from qlm.gateway.render.state import RenderState, pack
from qlm.gateway.render.turns import TURNS
from simulation.virtual_loop import VirtualLoop
from support.gateway import SystemClock, until
from support.ports import free_port
from support.rendering import emulated_tiers

PLAIN = RequestMetadata(
    id=RequestId("r"),
    cls=request_class(ModelId("m"), BatchSlo(), 0),
    tenant="t",
    slo=BatchSlo(),
    arrival_ns=7_000_000_000,
    prompt_tokens=5,
    sampling=Sampling(max_tokens=200),
    answer=Answer(kind=AnswerKind.CHAT),
)
METADATA = replace(
    PLAIN, extensions=replace(PLAIN.extensions, render_state=pack(RenderState({"model": "m"}, (1, 2))))
)
TOKENS = tuple(b"words and words " * 6)

SHOWN = len(TOKENS) // 2


@pytest.fixture
async def away() -> AsyncIterator[RenderClient]:
    client = RenderClient(f"http://127.0.0.1:{free_port()}", "m", SystemClock())
    yield client
    await client.close()


def sink_of(deltas: Deltas, shown: int = 0) -> DerenderedSink:
    sink = DerenderedSink(StreamShape(METADATA, "flex"), deltas, shown)
    sink.event(SendEvent(len(TOKENS), "", TOKENS))
    return sink


async def test_a_comment_goes_before_the_pieces_that_are_derendered_again() -> None:
    async with emulated_tiers("m") as tiers:
        deltas = Deltas(tiers["m"].client, METADATA)
        sink = sink_of(deltas, shown=SHOWN)
        sink.keep_alive()
        assert (await sink.take()).startswith(b":")
        assert deltas.tokens == 0
        assert (await sink.take()).startswith(b"data:")
        assert deltas.tokens > SHOWN


async def test_a_stream_that_none_resumes_takes_all_that_has_come() -> None:
    async with emulated_tiers("m") as tiers:
        pieces = []
        for repeatable in (True, False):
            deltas = Deltas(tiers["m"].client, METADATA)
            sink = DerenderedSink(StreamShape(METADATA, "flex"), deltas, 0, repeatable=repeatable)
            sink.event(SendEvent(len(TOKENS), "", TOKENS))
            await sink.take()
            pieces.append(deltas.tokens)
        assert pieces == [1, len(TOKENS)]


async def test_a_stream_that_none_resumes_ends_with_its_last_tokens() -> None:
    async with emulated_tiers("m") as tiers:
        deltas = Deltas(tiers["m"].client, METADATA)
        sink = DerenderedSink(StreamShape(METADATA, "flex"), deltas, 0, repeatable=False)
        sink.final(SendFinal(len(TOKENS), "", "stop", Outcome.STOP, token_ids=TOKENS))
        last = await sink.take()
        assert b"words and words" in last and last.endswith(b"data: [DONE]\n\n")
        assert await sink.take() == b""


async def test_a_stream_that_ends_badly_while_it_waits_for_its_turn_says_so() -> None:
    async with emulated_tiers("m") as tiers:
        deltas = Deltas(tiers["m"].client, METADATA)
        sink = DerenderedSink(StreamShape(METADATA, "flex"), deltas, 0, repeatable=False)
        sink.event(SendEvent(len(TOKENS), "", TOKENS))
        async with AsyncExitStack() as taken:
            for _ in range(TURNS):
                await taken.enter_async_context(deltas.turns.one(first=False))
            taking = asyncio.ensure_future(sink.take())
            await until(lambda: deltas.turns.waiting == 1)
            sink.final(SendFinal(len(TOKENS), "", None, Outcome.ENGINE_LOST, "gone"))
        assert b"engine_lost" in await taking


async def test_comments_go_on_while_the_tier_is_away(away: RenderClient) -> None:
    sink = sink_of(Deltas(away, METADATA))
    taking = asyncio.ensure_future(sink.take())
    await asyncio.sleep(0)  # until it has begun its first call
    sink.keep_alive()
    async with asyncio.timeout(10):
        assert (await taking).startswith(b":")


async def test_a_client_that_leaves_ends_the_wait_for_the_tier(away: RenderClient) -> None:
    sink = sink_of(Deltas(away, METADATA))
    taking = asyncio.ensure_future(sink.take())
    await asyncio.sleep(0)
    sink.close()
    async with asyncio.timeout(10):
        assert await taking == b""


def test_an_answer_waits_for_the_slow_start_of_a_tier_and_not_for_ever() -> None:
    async def waited_s(away_s: float) -> float:
        now_s = asyncio.get_running_loop().time

        async def derender() -> Derendered:
            if now_s() < away_s:
                raise unavailable("away", UNAVAILABLE)
            return Derendered({}, None)

        try:
            await patiently(derender)
        except ApiError:
            return -1
        return now_s()

    assert in_virtual_time(waited_s(60)) == pytest.approx(60, abs=1)
    assert in_virtual_time(waited_s(600)) == -1


def in_virtual_time(work: Coroutine[Any, Any, float]) -> float:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
