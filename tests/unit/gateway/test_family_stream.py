"""Streams of several answers to one chat."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.gateway.api.event_shape import FamilyEnd
from qlm.gateway.api.openai_shapes import StreamShape
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.http.derendered import DerenderedSink
from qlm.gateway.http.families.answers import InterleavedSource
from qlm.gateway.http.sinks import StreamSink
from qlm.gateway.render.derendering import Deltas
from qlm.gateway.render.rendering import RenderTiers
from qlm.gateway.render.state import RenderState, pack
from support.rendering import emulated_tiers
from support.requests import a_request

N = 3
STATE = pack(RenderState({"model": "m"}, (1, 2)))


def members() -> list[RequestMetadata]:
    first = replace(a_request("r").metadata(), answer=Answer(kind=AnswerKind.CHAT))
    extensions = replace(first.extensions, choices=N, render_state=STATE)
    return [replace(first, extensions=replace(extensions, choice=choice)) for choice in range(N)]


@pytest.fixture
async def tiers() -> AsyncIterator[RenderTiers]:
    async with emulated_tiers("m") as made:
        yield made


def chunks_of(data: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(each) for each in lines[:-1]]


async def streamed(sinks: Sequence[StreamSink | DerenderedSink], source: InterleavedSource) -> bytes:
    """Let the answers come, the last one first."""
    for choice in reversed(range(N)):
        text = f"{choice} says so"
        sinks[choice].event(SendEvent(3, text[:3], tuple(text[:3].encode())))
        taken = await source.take()
        assert taken
        rest = tuple(text[3:].encode())
        sinks[choice].final(SendFinal(len(text), text[3:], "stop", Outcome.STOP, token_ids=rest))
        if choice == N - 1:
            first = taken
        else:
            first += taken
        first += await source.take()
    while more := await source.take():
        first += more
    return first


@pytest.mark.parametrize("derendered", [False, True])
async def test_all_begin_in_order_whichever_comes_first(tiers: RenderTiers, derendered: bool) -> None:
    family = FamilyEnd()
    shapes = [StreamShape(each, "default", family=family) for each in members()]
    sinks: list[StreamSink | DerenderedSink] = [
        DerenderedSink(shape, Deltas(tiers["m"].client, each), 0, repeatable=False)
        if derendered
        else StreamSink(shape, 0)
        for shape, each in zip(shapes, members(), strict=True)
    ]
    source = InterleavedSource(sinks, shapes, family, lambda: None)
    chunks = chunks_of(await streamed(sinks, source))
    roles = [each["choices"][0]["index"] for each in chunks if "role" in each["choices"][0]["delta"]]
    assert roles == [0, 1, 2]
    assert [each["choices"][0]["index"] for each in chunks[:N]] == roles
    state = ChatCompletionStreamState()
    for each in chunks:
        list(state.handle_chunk(ChatCompletionChunk.model_validate(each)))
    made = state.get_final_completion()
    assert [(each.message.role, each.message.content) for each in made.choices] == [
        ("assistant", f"{choice} says so") for choice in range(N)
    ]
